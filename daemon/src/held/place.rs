//! Where an attempt's frames are kept, and what there is to write. A disk that refuses ends the attempt, but not what it has to say:
//! that is said from memory.

use super::{Held, Stage, StopWhy};
use crate::agents::Refusal;
use crate::attempt_dir::{AttemptId, AttemptMeta};
use crate::clock::Clock;
use crate::outbox::{Found, Job, OUTPUT_LIMIT, Outbox};

#[derive(Debug)]
pub(crate) enum Place {
    /// Nowhere but here: what may be lost with the daemon.
    Memory,
    /// Its directory is to be made.
    New {
        id: AttemptId,
        meta: Box<AttemptMeta>,
    },
    /// Its directory is another daemon's.
    Found {
        id: AttemptId,
        found: Found,
    },
    Disk(AttemptId),
}

impl Place {
    /// Whose directory is to be removed in the end.
    pub(crate) fn on_disk(&self) -> Option<AttemptId> {
        match self {
            Self::Memory | Self::New { .. } => None,
            Self::Found { id, .. } | Self::Disk(id) => Some(*id),
        }
    }
}

impl Held {
    pub(crate) fn has_job(&self) -> bool {
        match &self.place {
            Place::Memory => false,
            Place::New { .. } | Place::Found { .. } => true,
            Place::Disk(_) => {
                let log = self.outbox.log();
                log.has_pending() || log.wants_new_file(self.live())
            }
        }
    }

    /// The next thing for the disk to do. Once it is taken it must be handed over.
    pub(crate) fn next_job(&mut self) -> Option<Job> {
        match std::mem::replace(&mut self.place, Place::Memory) {
            Place::Memory => None,
            Place::New { id, meta } => {
                self.place = Place::Disk(id);
                Some(Job::Begin { id, meta })
            }
            Place::Found { id, found } => {
                self.place = Place::Disk(id);
                Some(Job::Resume { id, found })
            }
            Place::Disk(id) => {
                self.place = Place::Disk(id);
                if self.outbox.log().has_pending() {
                    let entries = self.outbox.log_mut().take();
                    return Some(Job::Append { id, entries });
                }
                let shrink = self.outbox.log().wants_new_file(self.live());
                shrink.then(|| Job::Replace {
                    id,
                    entries: self.outbox.image(),
                })
            }
        }
    }

    /// Bytes of its file that are still needed.
    fn live(&self) -> usize {
        self.outbox.held() + self.outbox.untold()
    }

    /// The disk refused before and may take it now.
    pub(crate) fn needs_repair(&self) -> bool {
        self.outbox.log().has_failed() && matches!(self.place, Place::Disk(_))
    }

    pub(crate) fn repair_job(&mut self) -> Option<Job> {
        match self.place {
            Place::Disk(id) if self.outbox.log().has_failed() => Some(Job::Replace {
                id,
                entries: self.outbox.image(),
            }),
            Place::Memory | Place::New { .. } | Place::Found { .. } | Place::Disk(_) => None,
        }
    }

    /// The disk refused. Returns the directory that is of no use any more: that of an attempt that never got so far as to be taken.
    pub(crate) fn on_disk_failed(&mut self, why: StopWhy, clock: &Clock) -> Option<AttemptId> {
        if self.outbox.log().is_begun() {
            self.outbox.log_mut().on_failed();
            self.fail_unstored(why, clock);
            return None;
        }
        // Nothing has left yet, so its refusal is the first that is said.
        self.outbox = Outbox::in_memory(OUTPUT_LIMIT);
        self.fail_unstored(why, clock);
        std::mem::replace(&mut self.place, Place::Memory).on_disk()
    }

    fn fail_unstored(&mut self, why: StopWhy, clock: &Clock) {
        match &self.stage {
            Stage::Accepted { .. } => self.give_back(&Refusal::disk_full(), clock),
            Stage::Running(_) => {
                self.order_stop(why, clock.now().after(self.cleanup_term));
            }
            // It has said everything, and says it from memory.
            Stage::Finished { .. } => {}
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
