//! What a caller chooses when it opens the store, and the store's fixed limits.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::StoreFailure;
use super::records::schema::RecordSchema;
use super::sled::database;
use super::sled::database::SyncCall;

/// No value in sled is longer: sled moves large leaves to blob files that it never syncs, and a leaf holds up to 17 values.
pub(super) const MAX_VALUE: usize = 4_000;
/// Most bytes of changes in one append, and so in one journal entry.
pub const MAX_ENTRY: usize = 1 << 20;
/// Most appends that share one journal entry.
pub(super) const MAX_APPENDS_PER_ENTRY: usize = 256;
/// The record format that this version writes; it reads all before it.
pub const SCHEMA: u16 = RecordSchema::CURRENT.number();

/// How to open a store.
#[derive(Clone)]
pub struct StoreConfig {
    /// The store's own directory; created if missing.
    pub dir: PathBuf,
    /// The identity given to a new directory, or to this one after a loss was accepted.
    pub new_incarnation: Uuid,
    /// Start although acknowledged changes are missing. Makes a new incarnation.
    pub accept_loss: bool,
    /// What is put here comes from another history, by an import: see [`super::Opened::inherited`].
    pub inherited: bool,
    /// sled's page cache. 32 to 64 MiB: sled counts on-disk bytes and uses several times as much.
    pub cache_bytes: u64,
    /// Bytes of changes not yet in their records above which `has_room` says no; at twice that an append waits.
    pub overlay_bytes: usize,
    /// Bytes of such changes at which they are written to their records at once.
    pub apply_bytes: usize,
    /// Longest wait until a change is written to its record; until then later values replace it for free.
    pub apply_after: Duration,
    /// Bytes of changes that a telling of everything may hold back in the journal before it has to begin again.
    pub max_pinned_bytes: u64,
    /// Called once when a write or sync failed. The default aborts the process.
    pub on_fatal: FatalHook,
    /// The shape of records; tests of a migration give one that is not this version's.
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

/// What happens when durability can no longer be promised. Nothing is acknowledged after it was called.
#[derive(Clone)]
pub struct FatalHook(Arc<dyn Fn(&StoreFailure) + Send + Sync>);

impl FatalHook {
    pub fn new(hook: impl Fn(&StoreFailure) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    // After a failed sync the kernel may have marked the lost pages clean: only a restart reads what is really there.
    fn abort() -> Self {
        Self::new(|_| std::process::abort())
    }

    pub(super) fn call(&self, fatal: &StoreFailure) {
        tracing::error!(op = fatal.op, error = %fatal.message, "the store cannot write; stopping");
        (self.0)(fatal);
    }
}

impl fmt::Debug for FatalHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FatalHook")
    }
}
