//! Everything that the daemon stores in its data directory: identity and lock, attempt
//! directories, conversations, relay epochs. Also the shared file primitives: atomic
//! replacement, checksummed records, private sockets. It must remove only files that it knows
//! by name, and must not use frames or the stream.

pub(crate) mod atomic_file;
pub(crate) mod attempt_dir;
pub(crate) mod checked_record;
pub(crate) mod conversation_store;
pub(crate) mod daemon_identity;
pub(crate) mod daemon_storage;
pub(crate) mod private_socket;
pub(crate) mod relay_epochs;
