//! The settings for opening the store, and its fixed limits.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::StoreFailure;
use super::records::schema::RecordSchema;
use super::sled::database;
use super::sled::database::SyncCall;

/// Longest value in sled. sled moves larger leaves to blob files that it never syncs, and a
/// leaf contains up to 17 values.
pub(super) const MAX_VALUE: usize = 4_000;
/// Most bytes of changes in one append, and so in one journal entry.
pub const MAX_ENTRY: usize = 1 << 20;
/// Most appends that share one journal entry.
pub(super) const MAX_APPENDS_PER_ENTRY: usize = 256;
/// The record schema that this version writes; it reads all earlier ones.
pub const SCHEMA: u16 = RecordSchema::CURRENT.number();

/// How to open a store.
#[derive(Clone)]
pub struct StoreConfig {
    /// The store's own directory; created if missing.
    pub dir: PathBuf,
    /// The incarnation for a new directory, or for this one after a loss was accepted.
    pub new_incarnation: Uuid,
    /// Start although acknowledged changes are missing. Creates a new incarnation.
    pub accept_loss: bool,
    /// The records come from another relay's data, by an import: see
    /// [`super::OpenedStore::inherited`].
    pub inherited: bool,
    /// sled's page cache. 32 to 64 MiB: sled counts on-disk bytes and uses several times as
    /// much.
    pub cache_bytes: u64,
    /// Bytes of changes not yet applied to their records above which `has_room` returns false.
    /// At twice that an append waits.
    pub overlay_bytes: usize,
    /// Bytes of such changes at which they are applied at once.
    pub apply_bytes: usize,
    /// Longest wait until a change is applied. Until then a later value replaces it at no cost.
    pub apply_after: Duration,
    /// Bytes of changes that a dump may retain in the journal before it fails and has to start
    /// again.
    pub max_pinned_bytes: u64,
    /// Called once when a write or sync failed. The default aborts the process.
    pub on_fatal: FatalHook,
    /// The record schema; tests of a migration use another one than this version's.
    pub schema: RecordSchema,
    pub(super) sync: SyncCall,
}

impl StoreConfig {
    pub fn new(dir: impl Into<PathBuf>, new_incarnation: Uuid) -> Self {
        Self {
            dir: dir.into(),
            new_incarnation,
            accept_loss: false,
            inherited: false,
            cache_bytes: 48 << 20,
            overlay_bytes: 64 << 20,
            apply_bytes: 16 << 20,
            apply_after: Duration::from_millis(400),
            max_pinned_bytes: 2 << 30,
            on_fatal: FatalHook::abort(),
            schema: RecordSchema::CURRENT,
            sync: database::fdatasync(),
        }
    }
}

impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConfig")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

/// What happens when durability can no longer be guaranteed. Nothing is acknowledged after the
/// call.
#[derive(Clone)]
pub struct FatalHook(Arc<dyn Fn(&StoreFailure) + Send + Sync>);

impl FatalHook {
    pub fn new(hook: impl Fn(&StoreFailure) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    // After a failed sync the kernel may have marked the lost pages clean. Only a restart reads
    // what is really on disk.
    fn abort() -> Self {
        Self::new(|_| std::process::abort())
    }

    pub(super) fn call(&self, fatal: &StoreFailure) {
        tracing::error!(op = fatal.op, error = %fatal.message, "store write failed; stopping");
        (self.0)(fatal);
    }
}

impl fmt::Debug for FatalHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FatalHook")
    }
}
