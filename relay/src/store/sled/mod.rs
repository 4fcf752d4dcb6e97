//! Everything that exists only because the store uses sled 0.34: opening its files, reading its
//! log format, surviving its damage and panics, counting its bytes. Replacing sled means
//! replacing this folder. Must not decide what a record or a journal entry means.

pub(crate) mod database;
pub(crate) mod directory_examination;
pub(crate) mod file_backup;
pub(crate) mod log_format;
pub(crate) mod log_repair;
pub(crate) mod offline_store;
pub(crate) mod panic_guard;
pub(crate) mod record_byte_count;
pub(crate) mod recovery_survey;
pub(crate) mod store_paths;
pub(crate) mod tree_walk;
