//! The words of the outbox: a record is something to say, an entry one change of the outbox, as it is kept on the disk.

use bytes::{Buf, Bytes};

/// Bookkeeping charged per record, so that many tiny chunks are bounded too.
pub(super) const RECORD_OVERHEAD: usize = 128;

/// Why output will never come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputCutReason {
    /// More was unacknowledged than is kept.
    Overflow,
    /// It was lost with the machine, or with the process that read it.
    WorkerCrash,
    /// A line that was too long to be read.
    LineTooLong,
    /// The process that read it was killed: nobody knows how much was still to be read, and one byte stands for it.
    RecorderLost,
    /// The worker's disk did not take it.
    DiskFull,
}

/// What a control frame says.
pub trait ControlBody: Clone {
    /// Bytes that are charged for it.
    fn size(&self) -> usize;
}

/// One record. `C` is the body of a control frame, `L` what a piece of output is, `T` when it was observed.
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
    /// `length` bytes from `offset` on are gone for good.
    Cut {
        offset: u64,
        length: u64,
        reason: OutputCutReason,
        after_control_seq: u64,
        observed_at: T,
    },
}

/// What the relay has in its keeping: everything up to and including these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckedPosition {
    pub control_seq: u64,
    pub output_offset: u64,
}

/// What must have happened on the disk before a record leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredDurability {
    /// It survives the daemon.
    Written,
    /// It survives the machine.
    Synced,
}

/// How far the attempt's transcript is folded into the records so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TranscriptProgress {
    /// Everything before this position of the transcript.
    pub consumed: u64,
    /// What the fold must remember at that position; its own business.
    pub snapshot: Bytes,
}

impl TranscriptProgress {
    pub(super) fn apply_change(&mut self, step: ProgressChange) {
        self.consumed = self.consumed.max(step.consumed);
        if let Some(snapshot) = step.snapshot {
            self.snapshot = snapshot;
        }
    }
}

/// Progress as it is stored: the snapshot only where it changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgressChange {
    pub consumed: u64,
    pub snapshot: Option<Bytes>,
}

/// One change of an outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutboxEntry<C, L, T> {
    /// Appended; a cut of output that is kept takes that output's place.
    Frame(QueuedRecord<C, L, T>),
    Acked(AckedPosition),
    /// Nothing of before is kept.
    Reset(OutboxNumbering),
    /// Control frames before this number are not wanted any more.
    ControlFramesDropped {
        control_before: u64,
    },
    /// A daemon took over what another one left.
    TakenOver,
    /// The relay said what it has: what was appended since the take-over is numbered so much higher.
    Renumbered {
        raised_by: u64,
    },
    /// Only the progress moved.
    ProgressOnly,
}

/// Where the numbers stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxNumbering {
    pub last_control_seq: u64,
    pub end_offset: u64,
    pub acked: AckedPosition,
    pub taken_over_at: Option<u64>,
}

/// An entry on its way to the disk or from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedEntry<C, L, T> {
    /// Rises from entry to entry.
    pub serial: u64,
    pub required_durability: RequiredDurability,
    pub progress: ProgressChange,
    pub entry: OutboxEntry<C, L, T>,
}

/// A record and what its leaving waits for.
#[derive(Clone, Debug)]
pub(super) struct PendingRecord<C, L, T> {
    pub(super) record: QueuedRecord<C, L, T>,
    pub(super) serial: u64,
    pub(super) required_durability: RequiredDurability,
    /// What a control frame is charged with.
    pub(super) control_memory: usize,
}

impl<C: ControlBody, L, T> QueuedRecord<C, L, T> {
    /// Memory that a control frame is charged with.
    pub(super) fn control_memory(&self) -> usize {
        match self {
            Self::Control { body, .. } => body.size() + RECORD_OVERHEAD,
            Self::Output { .. } | Self::Cut { .. } => 0,
        }
    }
}

impl<C, L, T> QueuedRecord<C, L, T> {
    /// Memory that output is charged with.
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

    /// Numbers above `above` become higher. True for a control frame whose number is one of them.
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

    /// What of it lies beyond `acked`; an acknowledgement may end inside a chunk.
    pub(super) fn unacked_part(mut self, acked: AckedPosition) -> Option<Self> {
        let known = |offset: u64| acked.output_offset.saturating_sub(offset);
        let is_wanted = match &mut self {
            Self::Control { seq, .. } => *seq > acked.control_seq,
            Self::Output { offset, bytes, .. } => {
                let known = known(*offset).min(bytes.len() as u64);
                let is_some_known = known > 0 && mutant!(AckTakesOutput);
                *offset += known;
                bytes.advance(usize::try_from(known).unwrap_or(usize::MAX));
                !bytes.is_empty() && !is_some_known
            }
            Self::Cut { offset, length, .. } => {
                let known = known(*offset).min(*length);
                (*offset, *length) = (*offset + known, *length - known);
                *length > 0
            }
        };
        is_wanted.then_some(self)
    }

    /// Adds the cut that follows right after this one and has the same cause.
    pub(super) fn merge_cut(&mut self, later: &Self) -> bool {
        match (self, later) {
            (
                Self::Cut {
                    offset,
                    length,
                    reason: why,
                    ..
                },
                Self::Cut {
                    offset: next,
                    length: added,
                    reason: cause,
                    ..
                },
            ) if *offset + *length == *next && why == cause => {
                *length += added;
                true
            }
            (Self::Control { .. } | Self::Output { .. } | Self::Cut { .. }, _) => false,
        }
    }
}

impl<C, L, T: Clone> QueuedRecord<C, L, T> {
    /// The cut that takes the place of output.
    pub(super) fn to_cut(&self, why: OutputCutReason) -> Option<Self> {
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
                reason: why,
                after_control_seq: *after_control_seq,
                observed_at: observed_at.clone(),
            }),
            Self::Control { .. } | Self::Cut { .. } => None,
        }
    }
}
