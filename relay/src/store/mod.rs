//! The relay's durable store: keys and opaque bodies in one sled database, behind a journal. It
//! does not interpret tasks.
//!
//! A change is visible to reads from its [`Journal::append`] on. It is durable when
//! [`Store::durable`] reaches the number that the append returned. Nothing that depends on a
//! change may leave the relay before the change is durable.

mod config;
mod error;
pub(crate) mod journal;
mod reader;
pub(crate) mod records;
pub(crate) mod sled;
mod startup;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use bytes::Bytes;
use uuid::Uuid;

pub use config::{FatalHook, MAX_ENTRY, SCHEMA, StoreConfig};
pub(crate) use error::is_disk_full_error;
pub use error::{
    JournalAppendError, StoreFailure, StoreOpenError, StoreReadError, StoreStopped,
    UnreadableReason,
};
pub use journal::writer::Journal;
pub use reader::Store;
pub use records::dump::{DumpError, DumpItem};
pub use records::key::{KeyRange, KeyText, KeyTextError, MAX_TEXT, MetaKey, RecordKey, RecordKind};
pub use records::migration::MigrationSummary;
pub use records::schema::{RecordSchema, SchemaStep};
pub use records::verification::StoreVerification;
pub use sled::offline_store::OfflineStore;
pub use sled::record_byte_count::{RecordByteCount, file_bytes};

use journal::overlay::RawChange;
use journal::tail::JournalTail;

/// The number of an append. Numbers rise by one and are never used twice in one incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitSeq(u64);

impl CommitSeq {
    pub fn get(self) -> u64 {
        self.0
    }
}

impl std::fmt::Display for CommitSeq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether another process uses the store in this directory; false if the directory does not
/// exist.
pub fn is_in_use(dir: &std::path::Path) -> Result<bool, StoreOpenError> {
    sled::store_paths::is_locked(&sled::store_paths::StorePaths::in_dir(dir))
}

/// Locks a store's directory against every relay as long as the returned file is open.
pub(crate) fn lock_directory(dir: &std::path::Path) -> Result<std::fs::File, StoreOpenError> {
    sled::store_paths::lock(&sled::store_paths::StorePaths::in_dir(dir))
}

/// One change of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChange {
    Put(RecordKey, Vec<u8>),
    Delete(RecordKey),
}

/// An open store, and what was found in its directory.
#[derive(Debug)]
pub struct OpenedStore {
    pub store: Store,
    pub journal: Journal,
    /// The identity of this data.
    pub incarnation: Uuid,
    /// Number of starts; higher at every open, and already durable.
    pub relay_epoch: u64,
    /// The directory was empty. A caller that prepares a new directory should check the records
    /// instead, because a crash may have come between the store's first start and the caller's
    /// preparations.
    pub fresh: bool,
    /// The previous history may have gone further than this data, because of an import or an
    /// accepted loss. Set at each open until [`MetaKey::Inherited`] is deleted.
    pub inherited: bool,
    pub recovery: StoreRecovery,
}

/// What opening found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreRecovery {
    /// Journal entries whose changes were not yet in their records.
    pub journal_entries: u64,
    /// Changes in those entries.
    pub changes: u64,
    /// The last entry was torn by a crash, so it was never acknowledged and was dropped.
    pub torn_tail: bool,
    /// Half-written snapshot files that were moved to `quarantine/`.
    pub quarantined: Vec<PathBuf>,
    /// Files in sled's `blobs/`; always 0, because no value is large enough for one.
    pub blob_files: u64,
    /// Set when acknowledged changes are missing and that was accepted.
    pub accepted_loss: Option<String>,
    /// Set when records of an older schema were migrated.
    pub migrated: Option<MigrationSummary>,
}

/// One page of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScannedRecords {
    pub entries: Vec<(RecordKey, Bytes)>,
    /// Records in this page's range that could not be read and were skipped. A damaged page of
    /// sled counts once, with all its records.
    pub unreadable: u64,
    /// The first of them, with their keys if known.
    pub skipped_records: Vec<(Option<RecordKey>, UnreadableReason)>,
    /// There are more records after the last one.
    pub has_more: bool,
}

/// Which part of a range to read.
#[derive(Clone, Debug)]
pub struct ScanPage {
    /// Start after this key, in scan order. The key need not exist.
    pub after: Option<RecordKey>,
    pub limit: usize,
    pub reverse: bool,
}

impl ScanPage {
    pub fn first(limit: usize) -> Self {
        Self {
            after: None,
            limit,
            reverse: false,
        }
    }
}

impl StoreRecovery {
    fn record_tail(&mut self, tail: &JournalTail, blob_files: u64) {
        self.journal_entries = tail.entries.len() as u64;
        self.changes = tail
            .entries
            .iter()
            .map(|entry| entry.changes.len() as u64)
            .sum();
        self.torn_tail = tail.torn;
        self.blob_files = blob_files;
    }
}

impl StoreChange {
    /// The most bytes that the change adds to an append. Callers use it to keep appends below
    /// [`MAX_ENTRY`].
    pub fn size(&self) -> usize {
        match self {
            Self::Put(_, body) => body.len() + journal::overlay::PER_CHANGE + records::key::MAX_KEY,
            Self::Delete(_) => journal::overlay::PER_CHANGE + records::key::MAX_KEY,
        }
    }

    /// `None` for a key that this version does not know, and for facts about the directory
    /// itself.
    fn from_raw(raw: &RawChange) -> Option<Self> {
        let key = RecordKey::decode(&raw.key).filter(|key| key.kind() != RecordKind::Meta)?;
        Some(match &raw.body {
            Some(body) => Self::Put(key, body.to_vec()),
            None => Self::Delete(key),
        })
    }

    fn into_raw(self) -> RawChange {
        match self {
            Self::Put(key, body) => RawChange {
                key: key.encode().into(),
                body: Some(body.into()),
            },
            Self::Delete(key) => RawChange {
                key: key.encode().into(),
                body: None,
            },
        }
    }
}
