//! Retention's half in the core: a finished task is removed once nothing can still change it. When
//! that should be, and how much, is the shell's to choose; here is what must hold. Daemons:
//! `fleet::daemon_removal`.

use crate::attempt::late_result::awaits_late_end;
use crate::core_state::CoreOwners;
use crate::ids::{TaskId, TenantId};
use crate::io::command::{Command, CommandOutcome, CommandReply};
use crate::io::effects::RecordChange;
use crate::io::stored_lookup::{RemovableTask, StoredNeeds, StoredRecords};
use crate::schedule::Schedule;
use crate::task::live_tasks::LiveTasks;
use crate::turn::CoreTurn;

/// Retention wants finished tasks gone. Those that may still change stay; the reply names the
/// removed ones.
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
        for one in stored.removable {
            let twice = removed.contains(&one.record.task);
            if twice || !may_remove_task(core.tasks, core.schedule, &one, turn) {
                continue;
            }
            removed.push(one.record.task);
            turn.push_change(RecordChange::RemoveTask {
                tenant: one.record.tenant.clone(),
                task: one.record.task,
                idempotency_key: one.idempotency_key,
                body: one.body,
                checkpoints: one.record.checkpoint_count,
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
