//! Everything the daemon keeps in its data directory: identity and lock, attempt directories, conversations, relay epochs.
//! Also the file primitives they share: atomic replacement, checksummed records, private sockets.
//! Must not remove anything but files it knows by name, and must not know frames or the stream.

pub(crate) mod atomic_file;
pub(crate) mod attempt_dir;
pub(crate) mod checked_record;
pub(crate) mod conversation_store;
pub(crate) mod daemon_identity;
pub(crate) mod daemon_storage;
pub(crate) mod private_socket;
pub(crate) mod relay_epochs;
