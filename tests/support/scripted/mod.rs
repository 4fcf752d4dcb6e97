//! A daemon and its attempts that follow a test's script frame by frame over the real stream.
//! It starts no process and has no timer except its heartbeat.

pub(crate) mod scripted_attempt;
pub(crate) mod scripted_daemon;
