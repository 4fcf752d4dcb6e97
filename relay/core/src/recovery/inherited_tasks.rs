//! Inherited tasks: from an import, or from data whose newest changes or fences are lost.
//!
//! A lease that was granted after the last saved change may still be in use, on machines that
//! this relay has no record of. Every task found at boot is therefore fenced for the longest
//! possible grant, or until an operator confirms that the old fleet is down. Tasks submitted
//! later are not suspended.

use std::sync::Arc;

use crate::attempt::attempt_owners::{AttemptOwners, attempt_context};
use crate::attempt::machine::MachineEvent;
use crate::attempt::timers::TimerFact;
use crate::core_state::CoreOwners;
use crate::io::command::{Command, CommandOutcome, CommandReply, RequestActor};
use crate::io::stored_lookup::StoredRecords;
use crate::record::SuspensionRelease;
use crate::schedule::Schedule;
use crate::task::live_task::LiveTask;
use crate::task::live_tasks::LiveTasks;
use crate::turn::CoreTurn;

/// Ends the suspension after an import or an accepted loss: an operator confirms that no daemon
/// of the old fleet runs anything, which the relay cannot check. Inherited tasks may then be
/// leased; the reply counts the open tasks that were suspended.
#[derive(Debug)]
pub struct ReleaseInherited {
    pub by: RequestActor,
    pub reason: Arc<str>,
}

impl Command for ReleaseInherited {
    type Reply = u64;

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let released = SuspensionRelease {
            by: self.by.name,
            reason: self.reason,
            at: turn.now.wall,
        };
        let tasks = end_inherited_suspension(core.tasks, core.schedule, Some(released), turn);
        Ok(CommandReply::after_everything(tasks))
    }
}

impl AttemptOwners<'_> {
    /// An attempt that waits in this data may have been leased in those that are lost, and its
    /// holder still has it. An id is leased once: the task goes on under another.
    pub(crate) fn replace_queued_attempt(&mut self, live: &mut LiveTask, turn: &mut CoreTurn<'_>) {
        let (requested, timers) = (
            live.newest_attempt().requested_by_person,
            live.timers.clone(),
        );
        let context = attempt_context(self.roster, live, turn, None);
        live.apply_event(MachineEvent::Withdraw, &context);
        self.schedule.queue_attempt(live, requested, turn);
        // The new attempt keeps the time that the task has already waited.
        live.timers = timers;
    }
}

pub(crate) fn end_due_suspension(
    tasks: &mut LiveTasks,
    schedule: &mut Schedule,
    turn: &mut CoreTurn<'_>,
) {
    if schedule.is_suspension_over(turn.uptime_ms) {
        end_inherited_suspension(tasks, schedule, None, turn);
    }
}

/// Ends the suspension and returns how many open tasks it held back; without one it changes
/// nothing.
fn end_inherited_suspension(
    tasks: &mut LiveTasks,
    schedule: &mut Schedule,
    released: Option<SuspensionRelease>,
    turn: &mut CoreTurn<'_>,
) -> u64 {
    let fences = schedule.end_suspension(released, turn);
    let open = fences.iter().filter(|fence| tasks.is_live(fence.task));
    let count = open.count() as u64;
    for fence in &fences {
        // Its queue timer runs again, unless something else stops it.
        if let Some(live) = tasks.get(fence.task)
            && !schedule.is_queue_timer_paused(live)
        {
            let (config, now) = (turn.config, turn.now.monotonic);
            tasks.update_queue_timer(fence.task, &TimerFact::Unpaused, config, now);
        }
    }
    count
}
