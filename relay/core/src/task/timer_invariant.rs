//! The check of promise 6: no task waits for ever. Tests and simulations run it after every
//! step.

use crate::core_state::Core;
use crate::ids::TaskId;
use crate::record::AttemptState;
use crate::task::live_task::LiveTask;

impl Core {
    /// A task that no timer will ever wake although it waits for no person. There must be none.
    pub fn find_untimed_task(&self) -> Option<TaskId> {
        let deadline_armed =
            |live: &LiveTask| live.next_due().is_none() || self.deadlines.has(live.id());
        let mut tasks = self.tasks.values();
        let untimed =
            tasks.find(|live| !has_timer_or_waits_for_person(live) || !deadline_armed(live));
        untimed.map(|live| live.id())
    }
}

/// Promise 6: a task that can change without a person has a timer. Only parked and paused tasks
/// have none.
pub(crate) fn has_timer_or_waits_for_person(live: &LiveTask) -> bool {
    let record = live.record();
    let waits_for_people = record.attention.is_some() || record.paused.is_some();
    match live.newest_attempt().state {
        AttemptState::Queued => {
            live.timers.next_due_at().is_some()
                || !live.timers.armed_timers().collect::<Vec<_>>().is_empty()
        }
        AttemptState::Parked(_) | AttemptState::Ended(_) => {
            waits_for_people || live.retry_at.is_some()
        }
        AttemptState::Offered
        | AttemptState::Accepted
        | AttemptState::Starting
        | AttemptState::Prompted
        | AttemptState::Streaming
        | AttemptState::ToolRunning
        | AttemptState::WaitingInput
        | AttemptState::CleaningUp { .. } => live.lease_ends_at().is_some(),
    }
}
