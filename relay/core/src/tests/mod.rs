//! Tests of the core with a fake clock: sequences of calls, frames and time, and the expected
//! effects.

pub(crate) mod agent;
pub(crate) mod attempt;
pub(crate) mod fleet;
mod harness;
pub(crate) mod operator;
pub(crate) mod recovery;
pub(crate) mod schedule;
pub(crate) mod task;
