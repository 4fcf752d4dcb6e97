//! A daemon and its attempts that follow a test's script frame by frame over the real stream.
//! It runs no process and no timer of its own besides its heartbeat.

pub(crate) mod scripted_attempt;
pub(crate) mod scripted_daemon;
