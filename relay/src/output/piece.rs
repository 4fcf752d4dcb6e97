//! The data that goes into the output log and comes out of it: chunks, pieces, cuts and ends.
//!
//! Plain data. Bytes are opaque: payloads are not inspected and `kind` is not interpreted.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The largest chunk that one append accepts.
pub const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// Output of one attempt, with the offsets that its daemon assigned.
#[derive(Debug, Clone)]
pub struct OutputChunk {
    pub attempt: Uuid,
    /// Byte offset of the first byte within the attempt's output.
    pub offset: u64,
    /// The last control frame before these bytes.
    pub after_control_seq: u64,
    /// Stream and visibility flags; stored and returned unchanged.
    pub kind: u8,
    /// The daemon's wall clock, for display only.
    pub observed_at_ms: u64,
    pub bytes: Bytes,
}

/// The end of the attempt's output after an accepted append. Accepted does not mean durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedEnd {
    pub end: u64,
}

/// How far the output of one attempt has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputEnd {
    /// Accepted up to here; the next append starts here.
    pub end: u64,
    /// Synced to disk up to here: may be acknowledged, and is visible to readers.
    pub durable: u64,
    /// The control sequence number of the last accepted chunk.
    pub after_control_seq: u64,
    /// Bytes below `durable` that readers get as cuts.
    pub cut_bytes: u64,
    /// Of those, the bytes at the end that stand for a cut of unknown length.
    pub open_bytes: u64,
    /// Nothing will be added any more.
    pub sealed: bool,
}

/// Why a range of output is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CutReason {
    /// The daemon's outbox was full and dropped it.
    DaemonOverflow,
    /// The worker's disk was full.
    DiskFull,
    /// A line was longer than the daemon's limit.
    LineTooLong,
    /// It was lost in a crash of the worker.
    WorkerCrash,
    /// The attempt had used up its stored bytes.
    AttemptLimit,
    /// The relay dropped old segments.
    Retention,
    /// Stored, but unreadable.
    Corrupt,
    /// The attempt ended before these bytes reached the relay.
    NotReceived,
    /// The process that recorded it was killed. The missing length is unknown; one byte stands
    /// for it.
    RecorderLost,
    /// A reason from a newer daemon that this version does not know.
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

/// One piece of a read. Pieces follow each other without gap or overlap.
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

    /// Bytes this piece has in memory; none for a cut.
    pub fn payload_bytes(&self) -> usize {
        match self {
            Self::Bytes { bytes, .. } => bytes.len(),
            Self::Cut { .. } => 0,
        }
    }

    /// The part from `at` on, which must lie inside the piece.
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
