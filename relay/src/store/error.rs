//! The errors of the store. Each message has the problem, the cause and the next step.

use std::io;
use std::path::PathBuf;

use uuid::Uuid;

use super::{CommitSeq, MAX_ENTRY, RecordKey};

/// Why a store was not opened. The directory is unchanged, unless the message says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    #[error(
        "the data directory {dir} is in use by another relay; stop that relay or choose another --data"
    )]
    Locked { dir: PathBuf },
    #[error("cannot {op} {path}: {source}")]
    Io {
        op: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "acknowledged changes are missing: the journal ends at {head}, but changes up to {watermark} were acknowledged; \
         restore a backup with `baton import FILE`, or start with --accept-loss to continue without them (`baton verify` shows \
         what is stored)"
    )]
    BehindWatermark {
        head: CommitSeq,
        watermark: CommitSeq,
    },
    #[error(
        "the journal has a gap after {after}: later entries exist, so the missing ones were acknowledged; \
         restore a backup with `baton import FILE`, or start with --accept-loss to continue from {after} (`baton verify` shows \
         what is stored)"
    )]
    JournalHole { after: CommitSeq },
    #[error(
        "the watermark file is missing or unreadable, so it is unknown which changes were acknowledged; \
         restore it, or start with --accept-loss"
    )]
    WatermarkMissing,
    #[error(
        "the watermark belongs to incarnation {watermark}, but the records belong to {found}; \
         they come from different data directories; restore both from one backup, or start with --accept-loss"
    )]
    ForeignWatermark { found: Uuid, watermark: Uuid },
    #[error("the record {what} is unreadable; restore a backup, or start with --accept-loss")]
    MetaUnreadable { what: &'static str },
    #[error(
        "the data has schema {found} of a newer version, but this version supports only {known}; nothing was changed; start \
         the newer version again, or go back with `baton import FILE` of an export made before the upgrade"
    )]
    NewerSchema { found: u16, known: u16 },
    #[error(
        "a change in the journal cannot be migrated from schema {from} to {known}; nothing was changed; \
         start the version that wrote it, stop it cleanly, which empties the journal, and then upgrade"
    )]
    Unmigratable { from: u16, known: u16 },
    #[error(
        "the database cannot be opened: {reason}; save what can be read with `baton export --data DIR --out FILE` and import \
         it into a new directory with `baton import FILE --data NEW --accept-loss`, or restore a backup, or move {dir} away to \
         start empty"
    )]
    Damaged { dir: PathBuf, reason: String },
    #[error(
        "a page of the database is damaged and a write to it failed, so a relay cannot run on this data; save what \
         can be read with `baton export --data DIR --out FILE` and import it into a new directory with `baton import FILE \
         --data NEW --accept-loss`, or restore a backup"
    )]
    DamagedPage,
    #[error("the disk of {dir} is full; free disk space and start again")]
    DiskFull { dir: PathBuf },
    #[error("there is no relay data in {dir}; use the data directory of a relay")]
    NoRelayData { dir: PathBuf },
    #[error("the first write failed: {0}")]
    Fatal(#[from] StoreFailure),
}

impl StoreOpenError {
    /// The machine code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Locked { .. } => "store_locked",
            Self::Io { .. } => "store_io",
            Self::BehindWatermark { .. } => "store_behind_watermark",
            Self::JournalHole { .. } => "store_journal_hole",
            Self::WatermarkMissing => "store_watermark_missing",
            Self::ForeignWatermark { .. } => "store_foreign_watermark",
            Self::MetaUnreadable { .. } => "store_meta_unreadable",
            Self::NewerSchema { .. } => "store_newer_schema",
            Self::Unmigratable { .. } => "store_unmigratable",
            Self::Damaged { .. } => "store_damaged",
            Self::DamagedPage => "store_damaged_page",
            Self::DiskFull { .. } => "store_disk_full",
            Self::NoRelayData { .. } => "store_not_there",
            Self::Fatal(_) => "store_write_failed",
        }
    }

    /// True if the only problem is a full disk.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::DiskFull { .. } => true,
            Self::Io { source, .. } => is_disk_full_error(source),
            Self::Fatal(fatal) => fatal.disk_full,
            Self::Locked { .. }
            | Self::BehindWatermark { .. }
            | Self::JournalHole { .. }
            | Self::WatermarkMissing
            | Self::ForeignWatermark { .. }
            | Self::MetaUnreadable { .. }
            | Self::NewerSchema { .. }
            | Self::Unmigratable { .. }
            | Self::Damaged { .. }
            | Self::DamagedPage
            | Self::NoRelayData { .. } => false,
        }
    }

    /// True if the relay could start with `--accept-loss`.
    pub fn is_acceptable_loss(&self) -> bool {
        match self {
            Self::BehindWatermark { .. }
            | Self::JournalHole { .. }
            | Self::WatermarkMissing
            | Self::ForeignWatermark { .. }
            | Self::MetaUnreadable { .. } => true,
            Self::Locked { .. }
            | Self::Io { .. }
            | Self::NewerSchema { .. }
            | Self::Unmigratable { .. }
            | Self::Damaged { .. }
            | Self::DamagedPage
            | Self::DiskFull { .. }
            | Self::NoRelayData { .. }
            | Self::Fatal(_) => false,
        }
    }
}

/// Why a record could not be read. It concerns this record only.
#[derive(Debug, thiserror::Error)]
pub enum StoreReadError {
    #[error("the record {key:?} is unreadable ({why}); `baton verify` lists all such records")]
    Unreadable {
        key: RecordKey,
        why: UnreadableReason,
    },
    #[error("the database could not be read: {0}")]
    Disk(String),
}

/// What is wrong with a stored value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableReason {
    #[error("its checksum does not match")]
    Checksum,
    #[error("it is shorter than its header")]
    Short,
    #[error("it has schema {0} of a newer version")]
    NewerSchema(u16),
    #[error("it cannot be migrated from schema {0}")]
    Step(u16),
    #[error("one of its parts is missing or belongs to another write")]
    IncompleteParts,
    #[error("its page in the database is damaged")]
    DamagedPage,
}

/// Why an append was refused. Nothing of it was accepted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalAppendError {
    #[error("one append of {bytes} bytes is over the limit of {MAX_ENTRY}; split it")]
    TooLarge { bytes: usize },
    #[error(transparent)]
    Stopped(#[from] StoreStopped),
}

/// The store has stopped, because a write failed or it was closed. Changes that were not yet
/// durable may or may not exist after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the store has stopped; after a restart it will be known whether the last changes are durable"
)]
pub struct StoreStopped;

/// A write or sync that failed. Nothing is acknowledged after it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{op} failed: {message}")]
pub struct StoreFailure {
    pub op: &'static str,
    pub message: String,
    /// It met a damaged page of the database. Another start would meet it again.
    pub damaged: bool,
    /// The disk was full. A start with enough space can continue.
    pub disk_full: bool,
}

impl StoreFailure {
    pub(super) fn new(op: &'static str, cause: &dyn std::fmt::Display) -> Self {
        Self {
            op,
            message: cause.to_string(),
            damaged: false,
            disk_full: false,
        }
    }

    pub(super) fn io(op: &'static str, error: &io::Error) -> Self {
        Self {
            disk_full: is_disk_full_error(error),
            ..Self::new(op, error)
        }
    }

    pub(super) fn sled(op: &'static str, error: &sled::Error) -> Self {
        Self {
            damaged: matches!(error, sled::Error::Corruption { .. }),
            disk_full: matches!(error, sled::Error::Io(error) if is_disk_full_error(error)),
            ..Self::new(op, error)
        }
    }
}

/// Whether the disk or this user's quota is full.
pub(crate) fn is_disk_full_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
