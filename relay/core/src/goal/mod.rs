//! Work that outlives its attempt: progress, checkpoints, block, park, resume and hand-off, and
//! the list of parked tasks. Also the completion contract and the permission rules of a task.
//! Nothing here leases an attempt.

pub mod completion_contract;
pub(crate) mod hand_off;
pub mod parked_tasks;
pub(crate) mod permission_rules;
pub mod progress;
pub(crate) mod progress_report;
