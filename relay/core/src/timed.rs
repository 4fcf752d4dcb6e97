//! Promise 6, so that it can be asked after every step: nothing waits for ever.

use crate::core::Core;
use crate::id::TaskId;
use crate::live::Live;
use crate::record::State;

impl Core {
    /// A task that nothing will ever look at again, though no person is asked to; there must be none.
    pub fn waits_for_ever(&self) -> Option<TaskId> {
        let looked_at = |live: &Live| live.next_due().is_none() || self.deadlines.has(live.id());
        let mut tasks = self.tasks.values();
        let forgotten = tasks.find(|live| !is_timed(live) || !looked_at(live));
        forgotten.map(|live| live.id())
    }
}

/// Promise 6: whatever can still move on its own has a timer; only parked and paused work has none.
pub(crate) fn is_timed(live: &Live) -> bool {
    let record = live.record();
    let waits_for_people = record.attention.is_some() || record.paused.is_some();
    match live.newest().state {
        State::Queued => {
            live.timers.next().is_some() || !live.timers.armed().collect::<Vec<_>>().is_empty()
        }
        State::Parked(_) | State::Ended(_) => waits_for_people || live.retry_at.is_some(),
        State::Offered
        | State::Accepted
        | State::Starting
        | State::Prompted
        | State::Streaming
        | State::ToolRunning
        | State::WaitingInput
        | State::CleaningUp { .. } => live.lease_ends().is_some(),
    }
}
