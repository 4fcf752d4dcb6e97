//! The errors of the store. Each says what happened, why, and what to do next.

use std::io;
use std::path::PathBuf;

use uuid::Uuid;

use super::{CommitSeq, MAX_ENTRY, RecordKey};

/// Why a store was not opened. Nothing in the directory was changed, unless the text says so.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    #[error(
        "the data directory {dir} is in use by another relay; stop that one or choose another --data"
    )]
    Locked { dir: PathBuf },
    #[error("cannot {op} {path}: {source}")]
    Io {
        op: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "acknowledged changes are missing: the journal ends at {head} and {watermark} was acknowledged; \
         restore a backup with `baton import FILE`, or start with --accept-loss to go on without them (`baton verify` says \
         what is there)"
    )]
    BehindWatermark {
        head: CommitSeq,
        watermark: CommitSeq,
    },
    #[error(
        "the journal has a hole after {after}: later entries are there, so this was acknowledged; \
         restore a backup with `baton import FILE`, or start with --accept-loss to go on from {after} (`baton verify` says \
         what is there)"
    )]
    JournalHole { after: CommitSeq },
    #[error(
        "the watermark file is missing or unreadable, so nobody can say what was acknowledged; \
         restore it, or start with --accept-loss"
    )]
    WatermarkMissing,
    #[error(
        "the watermark belongs to incarnation {watermark} and the records to {found}; \
         they are from different histories: restore both, or start with --accept-loss"
    )]
    ForeignWatermark { found: Uuid, watermark: Uuid },
    #[error("the record {what} is unreadable; restore a backup, or start with --accept-loss")]
    MetaUnreadable { what: &'static str },
    #[error(
        "the data has the schema {found} of a newer version, and this one knows only {known}; nothing was changed: start \
         the newer version again, or go back with `baton import FILE` of an export that was made before the upgrade"
    )]
    NewerSchema { found: u16, known: u16 },
    #[error(
        "a change that is only in the journal cannot be brought from schema {from} to {known}; nothing was changed: \
         start the version that wrote it, stop it in good order, which empties the journal, and upgrade then"
    )]
    Unmigratable { from: u16, known: u16 },
    #[error(
        "the database does not open: {reason}; save what can be read with `baton export --data DIR --out FILE` and make a \
         new directory of it with `baton import FILE --data NEW --accept-loss`, or restore a backup, or move {dir} away to \
         start empty"
    )]
    Damaged { dir: PathBuf, reason: String },
    #[error(
        "a page of the database is damaged and a write to it has failed, so that a relay cannot go on here; save what \
         can be read with `baton export --data DIR --out FILE` and make a new directory of it with `baton import FILE \
         --data NEW --accept-loss`, or restore a backup"
    )]
    DamagedPage,
    #[error("the disk under {dir} is full; make room, and start again")]
    DiskFull { dir: PathBuf },
    #[error("there is no relay's data in {dir}; name the directory that a relay was started with")]
    NoRelayData { dir: PathBuf },
    #[error("the first write failed: {0}")]
    Fatal(#[from] StoreFailure),
}

impl StoreOpenError {
    /// A stable word for programs.
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

    /// True where nothing is wrong but that there is no room.
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

    /// True where `--accept-loss` would let the relay start.
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
    #[error("it has the newer schema {0}")]
    NewerSchema(u16),
    #[error("it cannot be brought up from schema {0}")]
    Step(u16),
    #[error("a part of it is missing or of another write")]
    IncompleteParts,
    #[error("the page of the database on which it stands is damaged")]
    DamagedPage,
}

/// Why an append was refused. Nothing of it was taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalAppendError {
    #[error("one append of {bytes} bytes is over the limit of {MAX_ENTRY}; split it")]
    TooLarge { bytes: usize },
    #[error(transparent)]
    Stopped(#[from] StoreStopped),
}

/// The store has stopped: a write failed, or it was closed. What was not yet durable may or may not be there later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store has stopped; whether the last changes are durable is known after a restart")]
pub struct StoreStopped;

/// A write or sync that failed, after which nothing is acknowledged any more.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{op} failed: {message}")]
pub struct StoreFailure {
    pub op: &'static str,
    pub message: String,
    /// It met a damaged page of the database: another start would meet it again.
    pub damaged: bool,
    /// The disk had no room for it: a start that finds some goes on.
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

/// The disk, or this user's part of it.
pub(crate) fn is_disk_full_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
