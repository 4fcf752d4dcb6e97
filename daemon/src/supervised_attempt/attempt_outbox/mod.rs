//! An attempt's frames, where they are stored, and what of them has to be written next.
//!
//! When the disk refuses a write, the attempt fails, but its frames are still sent from memory.

use std::time::Duration;

use baton_proto::v1::attempt_frame::Body;

use super::running_attempt::OutboxBacklog;
use crate::clock::{BootTime, Clock};
use crate::frames::ControlFrame;
use crate::outbox::{FrameOutbox, OUTPUT_LIMIT, OutboxFilePrefix, OutboxJob};
use crate::storage::attempt_dir::{AttemptId, AttemptMeta};

/// A gap is reported once for every frame that was in flight, so reports in this interval after a
/// replay are about the same gap.
const REPLAY_INTERVAL_MIN: Duration = Duration::from_millis(500);

/// Where an attempt's frames are stored.
#[derive(Debug)]
pub(crate) enum OutboxLocation {
    /// In memory only: frames that may be lost with the daemon.
    Memory,
    /// The attempt's directory has to be created.
    New {
        id: AttemptId,
        meta: Box<AttemptMeta>,
    },
    /// An earlier daemon created the directory.
    Existing {
        id: AttemptId,
        prefix: OutboxFilePrefix,
    },
    Disk(AttemptId),
}

impl OutboxLocation {
    /// The directory to remove in the end.
    fn dir_id(&self) -> Option<AttemptId> {
        match self {
            Self::Memory | Self::New { .. } => None,
            Self::Existing { id, .. } | Self::Disk(id) => Some(*id),
        }
    }
}

#[derive(Debug)]
pub(super) struct AttemptOutbox {
    queue: FrameOutbox,
    location: OutboxLocation,
    /// When frames were last replayed because the relay reported a gap.
    replayed_at: Option<BootTime>,
}

impl AttemptOutbox {
    pub(super) fn new(location: OutboxLocation) -> Self {
        Self::restore(FrameOutbox::new(OUTPUT_LIMIT), location)
    }

    pub(super) fn in_memory() -> Self {
        Self::restore(FrameOutbox::in_memory(OUTPUT_LIMIT), OutboxLocation::Memory)
    }

    pub(super) fn restore(queue: FrameOutbox, location: OutboxLocation) -> Self {
        Self {
            queue,
            location,
            replayed_at: None,
        }
    }

    pub(super) fn queue(&self) -> &FrameOutbox {
        &self.queue
    }

    pub(super) fn queue_mut(&mut self) -> &mut FrameOutbox {
        &mut self.queue
    }

    pub(super) fn push(&mut self, body: Body, clock: &Clock) {
        self.push_control(ControlFrame::from(body), clock);
    }

    /// Returns the number of the frame.
    pub(super) fn push_control(&mut self, control: ControlFrame, clock: &Clock) -> u64 {
        let durability = control.required_durability();
        self.queue.push_control(control, clock.wall(), durability)
    }

    pub(super) fn dir_id(&self) -> Option<AttemptId> {
        self.location.dir_id()
    }

    /// Whether the disk has the attempt, so that it may be started.
    pub(super) fn is_stored(&self) -> bool {
        self.queue.log().has_stored_entries()
    }

    pub(super) fn backlog(&self) -> OutboxBacklog {
        OutboxBacklog {
            unacked_output: self.queue.output_bytes(),
            unacked_control: self.queue.control_bytes(),
            unwritten: self.queue.log().unwritten_bytes(),
        }
    }

    /// Whether a gap that was reported now needs a replay, or was already answered by one.
    pub(super) fn begin_replay(&mut self, now: BootTime) -> bool {
        let last = self.replayed_at;
        let is_due = last.is_none_or(|at| now >= at.after(REPLAY_INTERVAL_MIN));
        if is_due {
            self.replayed_at = Some(now);
        }
        is_due
    }

    pub(super) fn has_disk_job(&self) -> bool {
        match &self.location {
            OutboxLocation::Memory => false,
            OutboxLocation::New { .. } | OutboxLocation::Existing { .. } => true,
            OutboxLocation::Disk(_) => {
                let log = self.queue.log();
                log.has_pending() || log.needs_rewrite(self.live_bytes())
            }
        }
    }

    /// The next job for the disk. A job that was taken must be submitted.
    pub(super) fn next_disk_job(&mut self) -> Option<OutboxJob> {
        match std::mem::replace(&mut self.location, OutboxLocation::Memory) {
            OutboxLocation::Memory => None,
            OutboxLocation::New { id, meta } => {
                self.location = OutboxLocation::Disk(id);
                Some(OutboxJob::Begin { id, meta })
            }
            OutboxLocation::Existing { id, prefix } => {
                self.location = OutboxLocation::Disk(id);
                Some(OutboxJob::Resume { id, prefix })
            }
            OutboxLocation::Disk(id) => {
                self.location = OutboxLocation::Disk(id);
                if self.queue.log().has_pending() {
                    let entries = self.queue.log_mut().take_pending();
                    return Some(OutboxJob::Append { id, entries });
                }
                let shrink = self.queue.log().needs_rewrite(self.live_bytes());
                shrink.then(|| OutboxJob::Replace {
                    id,
                    entries: self.queue.rewrite_entries(),
                })
            }
        }
    }

    /// Bytes of the attempt's file that are still needed.
    fn live_bytes(&self) -> usize {
        self.queue.output_bytes() + self.queue.control_bytes()
    }

    /// The disk refused a write before and may accept it now.
    pub(super) fn needs_repair(&self) -> bool {
        self.queue.log().has_failed() && matches!(self.location, OutboxLocation::Disk(_))
    }

    pub(super) fn repair_job(&mut self) -> Option<OutboxJob> {
        match self.location {
            OutboxLocation::Disk(id) if self.queue.log().has_failed() => Some(OutboxJob::Replace {
                id,
                entries: self.queue.rewrite_entries(),
            }),
            OutboxLocation::Memory
            | OutboxLocation::New { .. }
            | OutboxLocation::Existing { .. }
            | OutboxLocation::Disk(_) => None,
        }
    }

    /// The disk refused a write: frames are sent from memory from here on. Returns the directory
    /// that is no longer of use, when the attempt's acceptance was never stored: nothing has left
    /// then, so the refusal is the first frame of the attempt.
    pub(super) fn on_write_failed(&mut self) -> Option<AttemptId> {
        if self.is_stored() {
            self.queue.log_mut().on_failed();
            return None;
        }
        self.queue = FrameOutbox::in_memory(OUTPUT_LIMIT);
        std::mem::replace(&mut self.location, OutboxLocation::Memory).dir_id()
    }
}

#[cfg(test)]
pub(super) mod tests;
