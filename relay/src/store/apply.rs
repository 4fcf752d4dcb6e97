//! The thread that moves changes from memory to their records, and then cuts the journal behind them. It works on what
//! is durable only, newest value of each key, beside the commits.

use std::sync::Arc;

use super::careful::careful;
use super::committer::Shared;
use super::disk::write_failed;
use super::overlay::Slot;
use super::progress::Wake;
use super::recover::Start;
use super::{CommitSeq, Fatal, Key, MetaKey, journal};

/// Records written without a look at whether the store has failed. No sled batch is used: a batch would stop all other
/// work on the database while it is written, and replay makes the steps of a cycle atomic already.
const BATCH: usize = 64;

#[derive(Debug)]
pub(super) struct Applier {
    pub(super) shared: Arc<Shared>,
    /// Everything up to here is in the records.
    pub(super) applied: CommitSeq,
    /// The journal is cut up to here: less far than `applied` while somebody reads it.
    pub(super) cut: CommitSeq,
}

impl Applier {
    pub(super) fn run(mut self) {
        loop {
            let wake = self
                .shared
                .progress
                .next_cycle(self.shared.config.apply_after);
            let (durable, stop) = match wake {
                Wake::Work(durable) => (durable, false),
                Wake::Stop(durable) => (durable, true),
                Wake::Failed => return,
            };
            if let Err(fatal) = self.cycle(durable) {
                return self.shared.fail(&fatal);
            }
            if stop {
                return;
            }
        }
    }

    /// Applies everything up to `durable`. A crash at any point is repaired by the next start: until the last step the
    /// journal still holds all of it.
    pub(super) fn cycle(&mut self, durable: CommitSeq) -> Result<(), Fatal> {
        if durable <= self.applied {
            // A reader may have let go of the journal since.
            return careful(|| self.cut_journal()).map_err(|error| write_failed(&error));
        }
        let due = self.shared.overlay.due(durable);
        for batch in due.changes.chunks(BATCH) {
            if self.shared.progress.failed() {
                return Ok(());
            }
            careful(|| self.write(batch)).map_err(|error| write_failed(&error))?;
        }
        self.shared.disk.make_durable()?;
        // A value that was passed over for a newer one must be in the journal before the older is cut from it.
        if !self.shared.progress.wait_for(due.superseded_by) {
            return Ok(());
        }
        careful(|| self.note_applied(durable)).map_err(|error| write_failed(&error))?;
        self.shared.overlay.forget(durable);
        self.shared.made_room();
        Ok(())
    }

    /// After a loss was accepted: everything that is left becomes records, and numbers go on behind all that were ever
    /// given. The identity is written before the jump, so that a crash in between is refused once more.
    pub(super) fn jump(&mut self, head: CommitSeq, start: &Start) -> Result<(), Fatal> {
        self.cycle(head)?;
        let key = Key::Meta(MetaKey::Incarnation).encode();
        let identity = start.incarnation.as_bytes().to_vec().into();
        let jumped = careful(|| {
            let records = &self.shared.disk.records;
            records.put(&key, start.base, &identity)?;
            self.note_applied(start.base)
        });
        jumped.map_err(|error| write_failed(&error))
    }

    fn write(&self, batch: &[(bytes::Bytes, Slot)]) -> sled::Result<()> {
        let records = &self.shared.disk.records;
        for (key, slot) in batch {
            match &slot.body {
                Some(body) => records.put(key, slot.seq, body)?,
                None => records.delete(key)?,
            }
        }
        Ok(())
    }

    // Needs no sync of its own: sled's log keeps the order, and what is lost of it is made again.
    fn note_applied(&mut self, upto: CommitSeq) -> sled::Result<()> {
        let key = Key::Meta(MetaKey::Applied).encode();
        let body = upto.0.to_be_bytes().to_vec().into();
        self.shared.disk.records.put(&key, upto, &body)?;
        self.applied = upto;
        self.cut_journal()
    }

    fn cut_journal(&mut self) -> sled::Result<()> {
        let free = self.shared.pins.free(self.applied);
        if free > self.cut {
            journal::remove(&self.shared.disk.journal, CommitSeq(self.cut.0 + 1), free)?;
            self.cut = free;
        }
        Ok(())
    }
}
