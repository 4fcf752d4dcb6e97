//! Every decision of the relay, pure: no I/O, no clock, no randomness.
//!
//! `Core::handle(input, now, mint)` takes one fact or request and returns `Effects`: the writes that must
//! become durable, and what may be sent once they are. Time, ids and secrets come in as arguments, so a test
//! or a simulation can replay any history exactly.

pub mod config;
pub mod conversation;
mod core;
pub mod effects;
pub mod fences;
pub mod id;
pub mod input;
pub mod placement;
pub mod profile;
pub mod queue;
pub mod record;
pub mod reject;
pub mod requirements;
pub mod retry;
pub mod roster;
pub mod spec;
pub mod time;
pub mod timers;

#[cfg(test)]
mod samples;

pub use crate::core::{Core, Recovered};
