//! Where an attempt's frames are kept, and what there is to write. A disk that refuses ends the attempt, but not what it has to say:
//! that is said from memory.

use super::{StopReason, SupervisedAttempt, SupervisedStage};
use crate::agents::DispatchRefusal;
use crate::clock::Clock;
use crate::outbox::{FrameOutbox, OUTPUT_LIMIT, OutboxFilePrefix, OutboxJob};
use crate::storage::attempt_dir::{AttemptId, AttemptMeta};

#[derive(Debug)]
pub(crate) enum OutboxLocation {
    /// Nowhere but here: what may be lost with the daemon.
    Memory,
    /// Its directory is to be made.
    New {
        id: AttemptId,
        meta: Box<AttemptMeta>,
    },
    /// Its directory is another daemon's.
    Existing {
        id: AttemptId,
        prefix: OutboxFilePrefix,
    },
    Disk(AttemptId),
}

impl OutboxLocation {
    /// Whose directory is to be removed in the end.
    pub(crate) fn dir_id(&self) -> Option<AttemptId> {
        match self {
            Self::Memory | Self::New { .. } => None,
            Self::Existing { id, .. } | Self::Disk(id) => Some(*id),
        }
    }
}

impl SupervisedAttempt {
    pub(crate) fn has_disk_job(&self) -> bool {
        match &self.outbox_location {
            OutboxLocation::Memory => false,
            OutboxLocation::New { .. } | OutboxLocation::Existing { .. } => true,
            OutboxLocation::Disk(_) => {
                let log = self.outbox.log();
                log.has_pending() || log.needs_rewrite(self.live_bytes())
            }
        }
    }

    /// The next thing for the disk to do. Once it is taken it must be handed over.
    pub(crate) fn next_disk_job(&mut self) -> Option<OutboxJob> {
        match std::mem::replace(&mut self.outbox_location, OutboxLocation::Memory) {
            OutboxLocation::Memory => None,
            OutboxLocation::New { id, meta } => {
                self.outbox_location = OutboxLocation::Disk(id);
                Some(OutboxJob::Begin { id, meta })
            }
            OutboxLocation::Existing { id, prefix: found } => {
                self.outbox_location = OutboxLocation::Disk(id);
                Some(OutboxJob::Resume { id, prefix: found })
            }
            OutboxLocation::Disk(id) => {
                self.outbox_location = OutboxLocation::Disk(id);
                if self.outbox.log().has_pending() {
                    let entries = self.outbox.log_mut().take_pending();
                    return Some(OutboxJob::Append { id, entries });
                }
                let shrink = self.outbox.log().needs_rewrite(self.live_bytes());
                shrink.then(|| OutboxJob::Replace {
                    id,
                    entries: self.outbox.rewrite_entries(),
                })
            }
        }
    }

    /// Bytes of its file that are still needed.
    fn live_bytes(&self) -> usize {
        self.outbox.output_bytes() + self.outbox.control_bytes()
    }

    /// The disk refused before and may take it now.
    pub(crate) fn needs_repair(&self) -> bool {
        self.outbox.log().has_failed() && matches!(self.outbox_location, OutboxLocation::Disk(_))
    }

    pub(crate) fn repair_job(&mut self) -> Option<OutboxJob> {
        match self.outbox_location {
            OutboxLocation::Disk(id) if self.outbox.log().has_failed() => {
                Some(OutboxJob::Replace {
                    id,
                    entries: self.outbox.rewrite_entries(),
                })
            }
            OutboxLocation::Memory
            | OutboxLocation::New { .. }
            | OutboxLocation::Existing { .. }
            | OutboxLocation::Disk(_) => None,
        }
    }

    /// The disk refused. Returns the directory that is of no use any more: that of an attempt that never got so far as to be taken.
    pub(crate) fn on_disk_failed(&mut self, why: StopReason, clock: &Clock) -> Option<AttemptId> {
        if self.outbox.log().has_stored_entries() {
            self.outbox.log_mut().on_failed();
            self.stop_unstorable(why, clock);
            return None;
        }
        // Nothing has left yet, so its refusal is the first that is said.
        self.outbox = FrameOutbox::in_memory(OUTPUT_LIMIT);
        self.stop_unstorable(why, clock);
        std::mem::replace(&mut self.outbox_location, OutboxLocation::Memory).dir_id()
    }

    fn stop_unstorable(&mut self, why: StopReason, clock: &Clock) {
        match &self.stage {
            SupervisedStage::Accepted { .. } => {
                self.return_unstarted(&DispatchRefusal::disk_full(), clock)
            }
            SupervisedStage::Running(_) => {
                self.order_stop(why, clock.now().after(self.cleanup_term));
            }
            // It has said everything, and says it from memory.
            SupervisedStage::Finished { .. } => {}
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
