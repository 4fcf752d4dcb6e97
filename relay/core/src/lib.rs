//! All decisions of the relay as pure code: no I/O, no clock, no randomness.
//!
//! `Core::handle(input, store, now, ids)` takes one input and returns `Effects`: the record
//! changes that must become durable, and the deliveries that may be sent once they are. Time,
//! ids and secrets are arguments, so a test or a simulation can replay any history exactly.

#[macro_use]
pub mod mutants;

mod agent;
pub mod attempt;
pub mod commands;
pub mod config;
mod core_state;
pub mod fleet;
pub mod goal;
pub mod ids;
pub mod io;
pub mod operator;
pub mod record;
pub mod recovery;
pub mod schedule;
pub mod task;
mod tick;
pub mod time;
mod turn;

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;

pub use crate::core_state::{Core, RecoveredState};
pub use crate::io::stored_lookup::{StoredLookup, StoredTasks, TaskLookup, UnreadableRecord};
/// Removes secrets from texts before they are stored.
pub use baton_redaction as redaction;
