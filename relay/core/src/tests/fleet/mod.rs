//! Tests of daemons: presence, settlement after Hello, operations and removal by an operator.

pub(crate) mod daemon_liveness;
pub(crate) mod daemon_operation;
pub(crate) mod daemon_removal;
pub(crate) mod settlement;
