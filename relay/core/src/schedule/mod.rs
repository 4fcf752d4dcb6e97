//! Decides which queued task is leased next and to which daemon: queue, requirements,
//! placement, dispatch, conversation affinity, pauses and limits on open tasks. `dispatch` is
//! the only place where a queued attempt is leased to a daemon. Nothing here ends an attempt.

pub mod conversation;
pub(crate) mod dispatch;
pub(crate) mod open_task_limits;
pub(crate) mod pause;
pub mod placement;
pub mod queue;
pub mod requirements;
pub(crate) mod scheduler_status;
