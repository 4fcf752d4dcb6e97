//! What a worker decides, without anything that it does: time, chance and what was seen come in as arguments. `daemon/` does
//! the rest, and `tests/sim` runs the same code in a seeded world.
//!
//! `outbox` is what an attempt has to say and what of it may leave; `heartbeats` and `lease` count the right to run, `course` and `ladder` end what
//! has lost it; `stake` and `backoff` say how soon a lost stream is dialed again.

#[macro_use]
pub mod mutants;

pub mod backoff;
pub mod course;
pub mod heartbeats;
pub mod ladder;
pub mod lease;
pub mod outbox;
pub mod stake;
pub mod time;
