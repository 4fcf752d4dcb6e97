//! Whole histories against the core with a fake clock: what a client, a daemon and time do, and what must follow.

pub(crate) mod agent;
pub(crate) mod attempt;
pub(crate) mod fleet;
mod harness;
pub(crate) mod operator;
pub(crate) mod recovery;
pub(crate) mod schedule;
pub(crate) mod task;
