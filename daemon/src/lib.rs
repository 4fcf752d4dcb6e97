//! The daemon: holds one stream to the relay, runs what it is given as child processes, and lets no
//! process outlive its attempt.

pub mod attempt;
pub mod backoff;
pub mod clock;
pub mod lease;
pub mod outbox;
pub mod phases;
pub mod process;
pub mod timers;
