//! What the daemon reports about itself: its status, the health check server and client, and
//! `baton daemon check`. It only reads the status. It must not change an attempt or use the
//! relay's stream (the check opens its own connection).

pub(crate) mod daemon_status;
pub(crate) mod preflight_check;
pub(crate) mod server;
