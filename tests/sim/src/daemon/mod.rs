//! Simulated daemons: sessions, attempts, shims, outbox and disk. Decisions by time come from
//! baton_daemon_core; disk, transcript and processes are models. The relay's store is only read
//! to check a promise.

pub(crate) mod agent_process;
pub(crate) mod lease_grant;
pub(crate) mod outbox_disk;
pub(crate) mod outbox_sender;
pub(crate) mod reconnect;
pub(crate) mod relay_message_handler;
pub(crate) mod sim_attempt;
pub(crate) mod sim_daemon;
pub(crate) mod sim_shim;
