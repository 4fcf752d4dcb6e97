//! The connection to a relay: its address, token and certificate authority, and lookups by an id
//! prefix. RelayClient is the authenticated channel with the typed gRPC clients.
//! Must not print, and must not decide anything about a task.

pub(crate) mod ca_file;
pub(crate) mod discovery;
pub(crate) mod id_prefix;
pub(crate) mod relay_client;
pub(crate) mod wait_reason;
