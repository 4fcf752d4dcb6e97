//! What goes into the output log and what comes out of it: chunks, pieces, cuts and ends.
//!
//! Plain data. Bytes are opaque here: nothing looks inside a payload or knows what `kind` means.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The largest chunk that one append takes.
pub const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// Output of one attempt, as its daemon numbered it.
#[derive(Debug, Clone)]
pub struct OutputChunk {
    pub attempt: Uuid,
    /// Byte offset of the first byte within the attempt's output.
    pub offset: u64,
    /// The last control frame that came before these bytes.
    pub after_control_seq: u64,
    /// Stream and visibility flags; kept and given back as they are.
    pub kind: u8,
    /// The daemon's wall clock, for display only.
    pub observed_at_ms: u64,
    pub bytes: Bytes,
}

/// What an accepted append left as the end of the attempt's output. Accepted is not yet durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedEnd {
    pub end: u64,
}

/// How far the output of one attempt has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputEnd {
    /// Accepted up to here; the next append starts here.
    pub end: u64,
    /// Synced to disk up to here: what may be acknowledged, and what readers see.
    pub durable: u64,
    /// The number carried by the last accepted chunk.
    pub after_control_seq: u64,
    /// Bytes below `durable` that readers get as cuts.
    pub cut_bytes: u64,
    /// Those at the end that stand for a cut whose length nobody knows.
    pub open_bytes: u64,
    /// Nothing will be added any more.
    pub sealed: bool,
}

/// Why a range of output is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CutReason {
    /// The daemon's outbox was full and dropped it.
    DaemonOverflow,
    /// The worker's disk was full.
    DiskFull,
    /// A line was longer than the daemon keeps.
    LineTooLong,
    /// It was lost with a crash of the worker.
    WorkerCrash,
    /// The attempt had used up its stored bytes.
    AttemptLimit,
    /// The relay dropped old segments.
    Retention,
    /// Stored, but unreadable.
    Corrupt,
    /// The attempt ended before these bytes reached the relay.
    NotReceived,
    /// Whoever recorded it was killed: nobody knows how much is missing, and one byte stands for it.
    RecorderLost,
    /// A newer daemon's reason, which this version does not know.
    Unknown,
}

impl CutReason {
    pub const fn code(self) -> &'static str {
        match self {
            Self::DaemonOverflow => "daemon_overflow",
            Self::DiskFull => "disk_full",
            Self::LineTooLong => "line_too_long",
            Self::WorkerCrash | Self::RecorderLost => "worker_crash",
            Self::AttemptLimit => "attempt_limit",
            Self::Retention => "retention",
            Self::Corrupt => "corrupt",
            Self::NotReceived => "not_received",
            Self::Unknown => "unknown",
        }
    }
}

/// One step of reading. Pieces follow each other without gap or overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputPiece {
    Bytes {
        offset: u64,
        observed_at_ms: u64,
        after_control_seq: u64,
        kind: u8,
        bytes: Bytes,
    },
    Cut {
        from: u64,
        to: u64,
        reason: CutReason,
    },
}

impl OutputPiece {
    pub fn start(&self) -> u64 {
        match self {
            Self::Bytes { offset, .. } => *offset,
            Self::Cut { from, .. } => *from,
        }
    }

    pub fn end(&self) -> u64 {
        match self {
            Self::Bytes { offset, bytes, .. } => *offset + bytes.len() as u64,
            Self::Cut { to, .. } => *to,
        }
    }

    /// Bytes this piece holds in memory; a cut holds none.
    pub fn payload_bytes(&self) -> usize {
        match self {
            Self::Bytes { bytes, .. } => bytes.len(),
            Self::Cut { .. } => 0,
        }
    }

    /// The part at and after `at`, which must lie inside the piece.
    pub(crate) fn starting_at(mut self, at: u64) -> Self {
        match &mut self {
            Self::Bytes { offset, bytes, .. } => {
                let skip = at.saturating_sub(*offset);
                let skip = usize::try_from(skip).map_or(bytes.len(), |skip| skip.min(bytes.len()));
                *bytes = bytes.slice(skip..);
                *offset += skip as u64;
            }
            Self::Cut { from, .. } => *from = at.max(*from),
        }
        self
    }
}
