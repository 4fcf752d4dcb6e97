//! Simulated daemons: they use the real daemon stream but start no processes.
//! `completion_recorder` counts what the relay acknowledges to them.

pub(crate) mod completion_recorder;
pub(crate) mod output_writer;
pub(crate) mod simulated_daemon;
