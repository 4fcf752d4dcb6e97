//! What the daemon reports about itself: its status, the health check server and client, and `baton daemon check`.
//! Reads status only.
//! Must not change an attempt or talk on the relay's stream (the check opens a connection of its own).

pub(crate) mod daemon_status;
pub(crate) mod preflight_check;
pub(crate) mod server;
