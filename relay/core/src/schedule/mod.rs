//! Which queued task is leased next and to whom: queue, requirements, placement, dispatch, conversation affinity, pauses, limits on open tasks.
//! The only place where a queued attempt is leased to a daemon (dispatch).
//! It never ends an attempt.

pub mod conversation;
pub(crate) mod dispatch;
pub(crate) mod open_task_limits;
pub(crate) mod pause;
pub mod placement;
pub mod queue;
pub mod requirements;
pub(crate) mod scheduler_status;
