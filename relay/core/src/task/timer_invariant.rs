//! The check of promise 6: no task waits for ever. Tests and simulations run it after every
//! step.

use crate::record::AttemptState;
use crate::task::live_task::LiveTask;

/// Promise 6: whatever can still move on its own has a timer; only parked and paused work has none.
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
