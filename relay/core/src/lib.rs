//! Every decision of the relay, pure: no I/O, no clock, no randomness.
//!
//! `Core::handle(input, now, mint)` takes one fact or request and returns `Effects`: the writes that must
//! become durable, and what may be sent once they are. Time, ids and secrets come in as arguments, so a test
//! or a simulation can replay any history exactly.

#[macro_use]
pub mod mutants;

mod agent_calls;
mod agent_held;
mod attempt;
mod bounds;
pub mod config;
pub mod contract;
pub mod conversation;
mod core;
pub mod damage;
pub mod diagnose;
mod dispatch;
pub mod effects;
mod ends;
mod expiry;
pub mod fences;
mod finished;
pub mod fleet;
pub mod force;
mod force_limit;
mod frame;
pub mod gate;
pub mod goal;
mod handoff;
mod heartbeats;
pub mod id;
mod inherited;
pub mod input;
mod known_daemons;
mod late;
mod live;
mod open;
mod operate;
pub mod parked;
mod pausing;
pub mod placement;
pub mod profile;
pub mod queue;
pub mod record;
mod recover;
pub mod reject;
mod repeats;
mod requests;
pub mod requirements;
mod retention;
mod retries;
pub mod retry;
pub mod roster;
mod rules;
mod scheduler;
mod sessions;
pub mod spec;
mod submit;
mod task;
pub mod time;
mod timed;
pub mod timers;

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;

pub use crate::core::{Core, RecoveredState};
pub use crate::finished::{StoredLookup, StoredTasks, TaskLookup, UnreadableRecord};
/// What must not be kept of words about work.
pub use baton_secrets as secrets;
