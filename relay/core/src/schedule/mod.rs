//! Decides which queued task is leased next and to which daemon: queue, requirements,
//! placement, dispatch, conversation affinity, pauses and limits on open tasks. `dispatch` is
//! the only place where a queued attempt is leased to a daemon. Nothing here ends an attempt.

pub(crate) mod attempt_queue;
pub mod conversation;
pub(crate) mod dispatch;
pub(crate) mod inherited_suspension;
pub(crate) mod lease_check;
pub(crate) mod lease_fence;
pub(crate) mod open_task_limits;
pub(crate) mod pause;
pub mod placement;
pub mod queue;
pub mod requirements;
pub(crate) mod scheduler_status;
pub(crate) mod wait_reason;

use crate::attempt::fences::Fences;
use crate::record::{PausesRecord, SchedulerRecord};
use crate::time::MonotonicTime;

use conversation::ConversationAffinity;
use queue::TaskQueue;

/// What decides whether and where a task may be leased: the queue, the fences, the pauses and the
/// scheduler's record.
#[derive(Debug)]
pub struct Schedule {
    queue: TaskQueue,
    fences: Fences,
    affinity: ConversationAffinity,
    scheduler: SchedulerRecord,
    /// When the scheduler's record was last written, with the uptime in it.
    scheduler_written_at: MonotonicTime,
    pauses: PausesRecord,
    /// Nothing is leased for now; what is leased goes on.
    dispatch_suspended: bool,
}

impl Schedule {
    pub(crate) fn new(
        scheduler: SchedulerRecord,
        pauses: PausesRecord,
        now: MonotonicTime,
    ) -> Self {
        Self {
            queue: TaskQueue::default(),
            fences: Fences::default(),
            affinity: ConversationAffinity::default(),
            scheduler,
            scheduler_written_at: now,
            pauses,
            dispatch_suspended: false,
        }
    }

    pub(crate) fn suspend_dispatch(&mut self, suspended: bool) {
        self.dispatch_suspended = suspended;
    }

    /// When a fence ends or a deferred task is due in the queue.
    pub(crate) fn next_change_at(&self) -> Option<MonotonicTime> {
        let sources = [self.fences.next_end_at(), self.queue.next_requeue_at()];
        sources.into_iter().flatten().min()
    }
}
