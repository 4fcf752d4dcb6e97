//! Data types of the outbox: a record is a frame to send, an entry is one change of the outbox
//! as it is stored on disk.

use bytes::{Buf, Bytes};

/// Bookkeeping charged per record, so that the limit also bounds many tiny chunks.
pub(super) const RECORD_OVERHEAD: usize = 128;

/// Why a range of output will never be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputCutReason {
    /// More output was unacknowledged than the limit allows.
    Overflow,
    /// It was lost with the machine, or with the process that read it.
    WorkerCrash,
    /// A line was too long to be read.
    LineTooLong,
    /// The process that read the output was killed. The amount of unread output is unknown, and
    /// a length of one byte stands for it.
    RecorderLost,
    /// The daemon's disk could not store it.
    DiskFull,
}

/// The content of a control frame.
pub trait ControlBody: Clone {
    /// Bytes of memory that it is charged with.
    fn size(&self) -> usize;
}

/// One frame to send. `C` is the body of a control frame, `L` the label of a piece of output,
/// `T` the time of observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueuedRecord<C, L, T> {
    Control {
        seq: u64,
        observed_at: T,
        body: C,
    },
    Output {
        offset: u64,
        after_control_seq: u64,
        observed_at: T,
        label: L,
        bytes: Bytes,
    },
    /// `length` bytes from `offset` on are lost.
    Cut {
        offset: u64,
        length: u64,
        reason: OutputCutReason,
        after_control_seq: u64,
        observed_at: T,
    },
}

/// What the relay has stored: everything up to and including these numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckedPosition {
    pub control_seq: u64,
    pub output_offset: u64,
}

/// What the disk must have done before a record may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredDurability {
    /// Written: the record survives a crash of the daemon.
    Written,
    /// Synced: the record survives a crash of the machine.
    Synced,
}

/// How much of the attempt's transcript has been turned into records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TranscriptProgress {
    /// Everything before this transcript position has been read.
    pub consumed: u64,
    /// State of the transcript reader at that position, opaque to the outbox.
    pub snapshot: Bytes,
}

impl TranscriptProgress {
    pub(super) fn apply_change(&mut self, change: ProgressChange) {
        self.consumed = self.consumed.max(change.consumed);
        if let Some(snapshot) = change.snapshot {
            self.snapshot = snapshot;
        }
    }
}

/// Progress as it is stored: the snapshot only when it changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgressChange {
    pub consumed: u64,
    pub snapshot: Option<Bytes>,
}

/// One change of an outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutboxEntry<C, L, T> {
    /// Appends a record. A cut replaces the buffered output that it covers.
    Frame(QueuedRecord<C, L, T>),
    Acked(AckedPosition),
    /// Drops every earlier record.
    Reset(OutboxNumbering),
    /// Drops the control frames before this number.
    ControlFramesDropped {
        control_before: u64,
    },
    /// A new daemon took the outbox over from an earlier one.
    TakenOver,
    /// The relay reported which frames it has. Frames appended since the take-over get numbers
    /// that are higher by this much.
    Renumbered {
        raised_by: u64,
    },
    /// Only the progress changed.
    ProgressOnly,
}

/// State of both numberings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxNumbering {
    pub last_control_seq: u64,
    pub end_offset: u64,
    pub acked: AckedPosition,
    pub taken_over_at: Option<u64>,
}

/// An entry as it is written to the disk or read from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedEntry<C, L, T> {
    /// Increases with every entry.
    pub serial: u64,
    pub required_durability: RequiredDurability,
    pub progress: ProgressChange,
    pub entry: OutboxEntry<C, L, T>,
}

/// A record and what has to be durable before it is sent.
#[derive(Clone, Debug)]
pub(super) struct PendingRecord<C, L, T> {
    pub(super) record: QueuedRecord<C, L, T>,
    pub(super) serial: u64,
    pub(super) required_durability: RequiredDurability,
    /// Memory charged for a control frame.
    pub(super) control_memory: usize,
}

impl<C: ControlBody, L, T> QueuedRecord<C, L, T> {
    /// Memory charged for a control frame.
    pub(super) fn control_memory(&self) -> usize {
        match self {
            Self::Control { body, .. } => body.size() + RECORD_OVERHEAD,
            Self::Output { .. } | Self::Cut { .. } => 0,
        }
    }
}

impl<C, L, T> QueuedRecord<C, L, T> {
    /// Memory charged for output.
    pub(super) fn output_memory(&self) -> usize {
        match self {
            Self::Output { bytes, .. } => bytes.len() + RECORD_OVERHEAD,
            Self::Control { .. } | Self::Cut { .. } => 0,
        }
    }

    pub(super) fn is_control_before(&self, number: u64) -> bool {
        matches!(self, Self::Control { seq, .. } if *seq < number)
    }

    pub(super) fn is_covered_by(&self, cut: &Self) -> bool {
        match (self, cut) {
            (
                Self::Output { offset, bytes, .. },
                Self::Cut {
                    offset: from,
                    length,
                    ..
                },
            ) => offset >= from && offset + bytes.len() as u64 <= from + length,
            (Self::Control { .. } | Self::Output { .. } | Self::Cut { .. }, _) => false,
        }
    }

    /// Raises the numbers above `above`. True for a control frame that got a new number.
    pub(super) fn renumber(&mut self, above: u64, by: u64) -> bool {
        match self {
            Self::Control { seq: number, .. } => {
                let is_new = *number > above;
                *number += if is_new { by } else { 0 };
                is_new
            }
            Self::Output {
                after_control_seq: number,
                ..
            }
            | Self::Cut {
                after_control_seq: number,
                ..
            } => {
                *number += if *number > above { by } else { 0 };
                false
            }
        }
    }

    /// The part that is not covered by `acked`. An acknowledgement may end inside a chunk.
    pub(super) fn unacked_part(mut self, acked: AckedPosition) -> Option<Self> {
        let acked_bytes = |offset: u64| acked.output_offset.saturating_sub(offset);
        let has_unacked_part = match &mut self {
            Self::Control { seq, .. } => *seq > acked.control_seq,
            Self::Output { offset, bytes, .. } => {
                let skipped = acked_bytes(*offset).min(bytes.len() as u64);
                let is_partly_acked = skipped > 0 && mutant!(AckTakesOutput);
                *offset += skipped;
                bytes.advance(usize::try_from(skipped).unwrap_or(usize::MAX));
                !bytes.is_empty() && !is_partly_acked
            }
            Self::Cut { offset, length, .. } => {
                let skipped = acked_bytes(*offset).min(*length);
                (*offset, *length) = (*offset + skipped, *length - skipped);
                *length > 0
            }
        };
        has_unacked_part.then_some(self)
    }

    /// Adds a cut that directly follows this one and has the same reason.
    pub(super) fn merge_cut(&mut self, later: &Self) -> bool {
        match (self, later) {
            (
                Self::Cut {
                    offset,
                    length,
                    reason,
                    ..
                },
                Self::Cut {
                    offset: next,
                    length: added,
                    reason: next_reason,
                    ..
                },
            ) if *offset + *length == *next && reason == next_reason => {
                *length += added;
                true
            }
            (Self::Control { .. } | Self::Output { .. } | Self::Cut { .. }, _) => false,
        }
    }
}

impl<C, L, T: Clone> QueuedRecord<C, L, T> {
    /// The cut that replaces this output.
    pub(super) fn to_cut(&self, reason: OutputCutReason) -> Option<Self> {
        match self {
            Self::Output {
                offset,
                after_control_seq,
                observed_at,
                bytes,
                ..
            } => Some(Self::Cut {
                offset: *offset,
                length: bytes.len() as u64,
                reason,
                after_control_seq: *after_control_seq,
                observed_at: observed_at.clone(),
            }),
            Self::Control { .. } | Self::Cut { .. } => None,
        }
    }
}
