//! Decisions of the daemon without I/O: time, randomness and observations are arguments. The
//! crate in `daemon/` executes them, and `tests/sim` runs the same code in a simulation with a
//! seed.
//!
//! `outbox` queues an attempt's frames and decides which may be sent. `heartbeat_tracker` and
//! `lease_clock` decide how long an attempt may run. `child_lifecycle` and
//! `termination_sequence` end its processes. `reconnect_urgency` and `reconnect_delay` decide
//! how soon a lost stream is reconnected.

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
