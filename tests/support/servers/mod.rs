//! Relays and daemons that tests start, in the test's process or as processes of the executable.
//! Owns their start, restart, stop and kill, and their data directories.
//! Makes no assertion about tasks; that is the test's business.

pub(crate) mod embedded_daemon;
pub(crate) mod embedded_relay;
pub(crate) mod server_processes;
pub(crate) mod small_disk;
