//! Errors of the output log: one enum per call, each case with a machine code.

use std::io;
use std::path::{Path, PathBuf};

use super::piece::CHUNK_BYTES_MAX;

/// The log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    #[error("cannot {doing} {}: {source}; check that the data directory exists and is writable", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("invalid output settings: {0}")]
    Config(&'static str),
}

impl OutputError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io {
            doing,
            path,
            source,
        }
    }
}

/// An append, cut or seal was refused; nothing of it was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutputAppendError {
    #[error("output chunk of {len} bytes is larger than {CHUNK_BYTES_MAX}; split it")]
    TooLarge { len: usize },
    #[error("output continues at byte {expected}; replay from there")]
    Gap { expected: u64 },
    #[error("the output cut from byte {from} to {to} is empty")]
    EmptyCut { from: u64, to: u64 },
    #[error("output of this attempt is sealed at byte {end}")]
    Sealed { end: u64 },
    #[error(
        "the relay's disk is full; nothing was stored; replay later from the last acknowledged byte"
    )]
    DiskFull,
    #[error("the output log is closed")]
    Closed,
}

impl OutputAppendError {
    pub const fn code(self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "output_chunk_too_large",
            Self::Gap { .. } => "output_gap",
            Self::EmptyCut { .. } => "output_empty_cut",
            Self::Sealed { .. } => "output_sealed",
            Self::DiskFull => "disk_full",
            Self::Closed => "output_closed",
        }
    }
}

/// Waiting for durability ended without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutputSyncError {
    #[error("output is accepted only up to byte {end}")]
    NotAccepted { end: u64 },
    #[error("the relay's disk is full; output that was accepted but not yet stored was discarded")]
    DiskFull,
    #[error("the output log is closed or has forgotten this attempt")]
    Closed,
}

/// A read failed or found nothing.
#[derive(Debug, thiserror::Error)]
pub enum OutputReadError {
    /// No byte of this attempt is known: it wrote none, or all of it was removed by retention
    /// or forgotten. A caller whose record has a final offset shows that range as cut by
    /// retention.
    #[error("no output of this attempt is stored")]
    Unknown,
    #[error("cannot read stored output: {0}")]
    Io(#[from] io::Error),
    #[error("the output log was closed before the attempt's output ended")]
    Closed,
}
