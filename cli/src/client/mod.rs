//! The connection to a relay: which one, with which token and certificate authority, and lookups by a shortened id.
//! RelayClient is the authenticated channel with the typed gRPC clients.
//! Must not print, and must not decide anything about a task.

pub(crate) mod ca_file;
pub(crate) mod discovery;
pub(crate) mod id_prefix;
pub(crate) mod relay_client;
pub(crate) mod wait_reason;
