//! Tests of a task from submission to removal: inputs, progress, blocks, contracts, size
//! limits, cancel, retention.

pub(crate) mod block;
pub(crate) mod cancel;
pub(crate) mod contract;
pub(crate) mod input;
pub(crate) mod lifecycle;
pub(crate) mod progress;
pub(crate) mod retention;
pub(crate) mod size_limits;
pub(crate) mod submission;
