//! The retention rules of the core. A finished task may be removed once no late result or
//! receipt can arrive for it, and a daemon may be forgotten once it can deliver nothing more.
//! The shell decides when to remove and how much; this module checks that it is safe.

use crate::attempt::late_result::awaits_late_end;
use crate::core_state::CoreOwners;
use crate::ids::{TaskId, TenantId};
use crate::io::command::{Command, CommandOutcome, CommandReply};
use crate::io::effects::RecordChange;
use crate::io::stored_lookup::{RemovableTask, StoredNeeds, StoredRecords};
use crate::schedule::Schedule;
use crate::task::live_tasks::LiveTasks;
use crate::turn::CoreTurn;

/// The stored `last_seen` of a connected daemon is at most this old.
#[derive(Debug)]
pub struct RemoveFinishedTasks {
    pub tasks: Vec<(TenantId, TaskId)>,
}

impl Command for RemoveFinishedTasks {
    type Reply = Vec<TaskId>;

    fn stored_needs(&self) -> StoredNeeds {
        StoredNeeds::removable(&self.tasks)
    }

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Vec<TaskId>> {
        let mut removed: Vec<TaskId> = Vec::with_capacity(stored.removable.len());
        for candidate in stored.removable {
            let twice = removed.contains(&candidate.record.task);
            if twice || !may_remove_task(core.tasks, core.schedule, &candidate, turn) {
                continue;
            }
            removed.push(candidate.record.task);
            turn.push_change(RecordChange::RemoveTask {
                tenant: candidate.record.tenant.clone(),
                task: candidate.record.task,
                idempotency_key: candidate.idempotency_key,
                body: candidate.body,
                checkpoints: candidate.record.checkpoint_count,
            });
        }
        Ok(CommandReply::after_everything(removed))
    }
}

fn may_remove_task(
    tasks: &LiveTasks,
    schedule: &Schedule,
    one: &RemovableTask,
    turn: &CoreTurn<'_>,
) -> bool {
    let record = &one.record;
    let over = record.state.is_terminal() && !tasks.is_live(record.task);
    let awaited = awaits_late_end(record, turn) && !mutant!(AwaitedRemoved);
    let guarded = schedule.has_fence_of_task(record.task) && !mutant!(FencedRemoved);
    over && !awaited && !guarded
}
