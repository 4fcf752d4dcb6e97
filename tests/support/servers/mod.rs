//! Relays and daemons that tests start, in the test's process or as processes of the
//! executable: their start, restart, stop and kill, and their data directories. This module
//! makes no assertions about tasks.

pub(crate) mod embedded_daemon;
pub(crate) mod embedded_relay;
pub(crate) mod relay_and_daemon;
pub(crate) mod server_processes;
pub(crate) mod small_disk;
