//! The group: what the writer takes from the queue at once, and the frames made from it.
//!
//! Pure except for draining the queue; the writer writes and publishes.

use bytes::Bytes;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::write_queue::{OutputWriterControl, OutputWriterJob, QueuedWrite, WriteBody};
use crate::output::piece::{CutReason, OutputEnd, OutputPiece};
use crate::output::segment::frame::{SegmentFrameClass, SegmentFrameHeader};

const GROUP_JOBS: usize = 2048;
/// The largest group. It is also at most a fraction of a segment, so that segments keep to
/// their size.
const GROUP_BYTES: usize = 4 << 20;
const GROUPS_PER_SEGMENT: u64 = 4;

pub(crate) fn group_bytes(segment_bytes: u64) -> usize {
    usize::try_from(segment_bytes / GROUPS_PER_SEGMENT)
        .map_or(GROUP_BYTES, |part| part.min(GROUP_BYTES))
}

/// A frame that is about to be written.
#[derive(Debug)]
pub(crate) struct PendingFrame {
    pub(crate) header: SegmentFrameHeader,
    pub(crate) payload: Bytes,
}

/// Collects what is queued. Returns the control job that must wait until the group is written,
/// if there is one.
pub(crate) fn collect_group(
    first: OutputWriterJob,
    jobs: &mut mpsc::Receiver<OutputWriterJob>,
    group: &mut Vec<QueuedWrite>,
    bytes_max: usize,
) -> Option<OutputWriterControl> {
    let mut bytes = 0;
    let mut next = Some(first);
    while let Some(job) = next {
        let write = match job {
            OutputWriterJob::Write(write) => write,
            OutputWriterJob::Control(control) => return Some(control),
        };
        bytes += write.body.size();
        group.push(write);
        if group.len() >= GROUP_JOBS || bytes >= bytes_max {
            return None;
        }
        next = jobs.try_recv().ok();
    }
    None
}

/// The frames in order; adjacent cuts with the same reason are merged.
pub(crate) fn frames(writes: &[QueuedWrite]) -> Vec<PendingFrame> {
    let mut frames: Vec<PendingFrame> = Vec::with_capacity(writes.len() + 1);
    for frame in writes.iter().flat_map(pending_frames) {
        let merged = frames
            .last_mut()
            .is_some_and(|last| last.header.try_merge_cut(&frame.header));
        if !merged {
            frames.push(frame);
        }
    }
    frames
}

fn pending_frames(write: &QueuedWrite) -> Vec<PendingFrame> {
    let frame = |offset, class, payload: &Bytes| PendingFrame {
        header: SegmentFrameHeader {
            attempt: write.attempt,
            offset,
            after_control_seq: write.after_control_seq,
            class,
            len: u32::try_from(payload.len()).expect("chunks are small"),
        },
        payload: payload.clone(),
    };
    let bare = |class| vec![frame(write.offset, class, &Bytes::new())];
    match &write.body {
        WriteBody::Bytes {
            kind,
            observed_at_ms,
            bytes,
            over_limit,
        } => {
            let class = SegmentFrameClass::Bytes {
                kind: *kind,
                observed_at_ms: *observed_at_ms,
            };
            let mut frames = vec![frame(write.offset, class, bytes)];
            if *over_limit > 0 {
                let from = write.offset + bytes.len() as u64;
                frames.push(frame(from, limit_cut(from + over_limit), &Bytes::new()));
            }
            frames
        }
        WriteBody::Cut { to, reason } => bare(SegmentFrameClass::Cut {
            to: *to,
            reason: *reason,
        }),
        WriteBody::Seal => bare(SegmentFrameClass::Seal),
        WriteBody::Forget => bare(SegmentFrameClass::Forget),
    }
}

fn limit_cut(to: u64) -> SegmentFrameClass {
    SegmentFrameClass::Cut {
        to,
        reason: CutReason::AttemptLimit,
    }
}

impl PendingFrame {
    /// A retention cut over known output; see `AttemptOutput::join`.
    pub(crate) fn retention_anchor(attempt: Uuid, end: OutputEnd) -> Self {
        let class = SegmentFrameClass::Cut {
            to: end.durable,
            reason: CutReason::Retention,
        };
        Self {
            header: SegmentFrameHeader {
                attempt,
                offset: 0,
                after_control_seq: end.after_control_seq,
                class,
                len: 0,
            },
            payload: Bytes::new(),
        }
    }

    /// The piece that followers get for this frame.
    pub(crate) fn to_piece(&self) -> Option<OutputPiece> {
        match self.header.class {
            SegmentFrameClass::Bytes {
                kind,
                observed_at_ms,
            } => Some(OutputPiece::Bytes {
                offset: self.header.offset,
                observed_at_ms,
                after_control_seq: self.header.after_control_seq,
                kind,
                bytes: self.payload.clone(),
            }),
            SegmentFrameClass::Cut { to, reason } => Some(OutputPiece::Cut {
                from: self.header.offset,
                to,
                reason,
            }),
            SegmentFrameClass::Seal | SegmentFrameClass::Forget => None,
        }
    }
}

impl SegmentFrameHeader {
    /// Extends a cut by the cut that follows it, if the reason is the same.
    fn try_merge_cut(&mut self, next: &Self) -> bool {
        let same_attempt = self.attempt == next.attempt;
        match (&mut self.class, next.class) {
            (
                SegmentFrameClass::Cut { to, reason },
                SegmentFrameClass::Cut {
                    to: next_to,
                    reason: next_reason,
                },
            ) if same_attempt && *to == next.offset && *reason == next_reason => {
                *to = next_to;
                true
            }
            (
                SegmentFrameClass::Bytes { .. }
                | SegmentFrameClass::Cut { .. }
                | SegmentFrameClass::Seal
                | SegmentFrameClass::Forget,
                _,
            ) => false,
        }
    }
}

impl WriteBody {
    fn size(&self) -> usize {
        match self {
            Self::Bytes { bytes, .. } => bytes.len(),
            Self::Cut { .. } | Self::Seal | Self::Forget => 0,
        }
    }
}
