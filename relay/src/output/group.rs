//! The group: what the writer takes from the queue at once, and the frames it becomes.
//!
//! Pure but for draining the queue; writing and publishing are the writer's.

use bytes::Bytes;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::frame::{Class, Header};
use super::piece::{CutReason, OutputEnd, Piece};
use super::queue::{Body, Control, Job, Write};

const GROUP_JOBS: usize = 2048;
/// At most, and never more than a part of a segment, so that segments keep to their size.
const GROUP_BYTES: usize = 4 << 20;
const SEGMENT_PARTS: u64 = 4;

pub(crate) fn group_bytes(segment_bytes: u64) -> usize {
    usize::try_from(segment_bytes / SEGMENT_PARTS).map_or(GROUP_BYTES, |part| part.min(GROUP_BYTES))
}

/// A frame on its way to disk.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) header: Header,
    pub(crate) payload: Bytes,
}

/// Collects what is queued; answers with the job that must wait until the group is done, if there was one.
pub(crate) fn gather(
    first: Job,
    jobs: &mut mpsc::Receiver<Job>,
    group: &mut Vec<Write>,
    bytes_max: usize,
) -> Option<Control> {
    let mut bytes = 0;
    let mut next = Some(first);
    while let Some(job) = next {
        let write = match job {
            Job::Write(write) => write,
            Job::Control(control) => return Some(control),
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

/// Frames in order; cuts of one reason that touch become one.
pub(crate) fn frames(writes: &[Write]) -> Vec<Outgoing> {
    let mut frames: Vec<Outgoing> = Vec::with_capacity(writes.len() + 1);
    for frame in writes.iter().flat_map(outgoing) {
        let grown = frames
            .last_mut()
            .is_some_and(|last| last.header.takes_over(&frame.header));
        if !grown {
            frames.push(frame);
        }
    }
    frames
}

fn outgoing(write: &Write) -> Vec<Outgoing> {
    let frame = |offset, class, payload: &Bytes| Outgoing {
        header: Header {
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
        Body::Bytes {
            kind,
            observed_at_ms,
            bytes,
            over_limit,
        } => {
            let class = Class::Bytes {
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
        Body::Cut { to, reason } => bare(Class::Cut {
            to: *to,
            reason: *reason,
        }),
        Body::Seal => bare(Class::Seal),
        Body::Forget => bare(Class::Forget),
    }
}

fn limit_cut(to: u64) -> Class {
    Class::Cut {
        to,
        reason: CutReason::AttemptLimit,
    }
}

impl Outgoing {
    /// A cut over what is known already; see `Attempt::join`.
    pub(crate) fn anchor(attempt: Uuid, end: OutputEnd) -> Self {
        let class = Class::Cut {
            to: end.durable,
            reason: CutReason::Retention,
        };
        Self {
            header: Header {
                attempt,
                offset: 0,
                after_control_seq: end.after_control_seq,
                class,
                len: 0,
            },
            payload: Bytes::new(),
        }
    }

    /// What followers get of this frame.
    pub(crate) fn piece(&self) -> Option<Piece> {
        match self.header.class {
            Class::Bytes {
                kind,
                observed_at_ms,
            } => Some(Piece::Bytes {
                offset: self.header.offset,
                observed_at_ms,
                after_control_seq: self.header.after_control_seq,
                kind,
                bytes: self.payload.clone(),
            }),
            Class::Cut { to, reason } => Some(Piece::Cut {
                from: self.header.offset,
                to,
                reason,
            }),
            Class::Seal | Class::Forget => None,
        }
    }
}

impl Header {
    /// Grows a cut by the cut that follows it, for the same reason.
    fn takes_over(&mut self, next: &Self) -> bool {
        let same_attempt = self.attempt == next.attempt;
        match (&mut self.class, next.class) {
            (
                Class::Cut { to, reason },
                Class::Cut {
                    to: further,
                    reason: also,
                },
            ) if same_attempt && *to == next.offset && *reason == also => {
                *to = further;
                true
            }
            (Class::Bytes { .. } | Class::Cut { .. } | Class::Seal | Class::Forget, _) => false,
        }
    }
}

impl Body {
    fn size(&self) -> usize {
        match self {
            Self::Bytes { bytes, .. } => bytes.len(),
            Self::Cut { .. } | Self::Seal | Self::Forget => 0,
        }
    }
}
