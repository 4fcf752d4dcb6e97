//! What a worker decides, without anything that it does: time, chance and what was seen come in as arguments. `daemon/` does
//! the rest, and `tests/sim` runs the same code in a seeded world.
//!
//! `outbox` is what an attempt has to say and what of it may leave; `heartbeats` and `lease` count the right to run, `course` and `ladder` end what
//! has lost it; `stake` and `backoff` say how soon a lost stream is dialed again.

#[macro_use]
pub mod mutants;

pub mod child_lifecycle;
pub mod heartbeat_tracker;
pub mod lease_clock;
pub mod outbox;
pub mod reconnect_delay;
pub mod reconnect_urgency;
pub mod termination_sequence;
pub mod time;
