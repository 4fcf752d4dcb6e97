//! Every decision of the relay, pure: no I/O, no clock, no randomness.
//!
//! `Core::handle(input, now, mint)` takes one fact or request and returns `Effects`: the writes that must
//! become durable, and what may be sent once they are. Time, ids and secrets come in as arguments, so a test
//! or a simulation can replay any history exactly.

pub mod id;
pub mod spec;
pub mod time;
