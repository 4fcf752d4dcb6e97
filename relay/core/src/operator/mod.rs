//! Operators: operations on tasks and daemons with audit and rate limit, and inspection of
//! state that is in no record. Inspection changes nothing; every operation is one commit with
//! its audit entry.

pub mod daemon_operation;
pub(crate) mod inspection;
pub(crate) mod rate_limit;
pub mod task_operation;
