//! The thread that moves changes from memory to their records, and then cuts the journal behind them. It works on what
//! is durable only, newest value of each key, beside the commits.

use std::sync::Arc;

use super::commit_progress::ThreadWake;
use super::committer::StoreShared;
use super::entry;
use super::overlay::OverlayValue;
use super::tail::StartDecision;
use crate::store::sled::database::write_failure;
use crate::store::sled::panic_guard::catch_sled_panic;
use crate::store::{CommitSeq, MetaKey, RecordKey, StoreFailure};

/// Records written without a look at whether the store has failed. No sled batch is used: a batch would stop all other
/// work on the database while it is written, and replay makes the steps of a cycle atomic already.
const BATCH: usize = 64;

#[derive(Debug)]
pub(crate) struct RecordApplier {
    pub(crate) shared: Arc<StoreShared>,
    /// Everything up to here is in the records.
    pub(crate) applied: CommitSeq,
    /// The journal is cut up to here: less far than `applied` while somebody reads it.
    pub(crate) cut: CommitSeq,
}

impl RecordApplier {
    pub(crate) fn run(mut self) {
        loop {
            let wake = self
                .shared
                .progress
                .wait_for_apply(self.shared.config.apply_after);
            let (durable, stop) = match wake {
                ThreadWake::Work(durable) => (durable, false),
                ThreadWake::Stop(durable) => (durable, true),
                ThreadWake::Failed => return,
            };
            if let Err(fatal) = self.apply_up_to(durable) {
                return self.shared.fail(&fatal);
            }
            if stop {
                return;
            }
        }
    }

    /// Applies everything up to `durable`. A crash at any point is repaired by the next start: until the last step the
    /// journal still holds all of it.
    pub(crate) fn apply_up_to(&mut self, durable: CommitSeq) -> Result<(), StoreFailure> {
        if durable <= self.applied {
            // A reader may have let go of the journal since.
            return catch_sled_panic(|| self.truncate_journal())
                .map_err(|error| write_failure(&error));
        }
        let due = self.shared.overlay.due(durable);
        for batch in due.changes.chunks(BATCH) {
            if self.shared.progress.failed() {
                return Ok(());
            }
            catch_sled_panic(|| self.write(batch)).map_err(|error| write_failure(&error))?;
        }
        self.shared.disk.flush_and_sync()?;
        // A value that was passed over for a newer one must be in the journal before the older is cut from it.
        if !self.shared.progress.wait_for(due.superseded_by) {
            return Ok(());
        }
        catch_sled_panic(|| self.store_applied_mark(durable))
            .map_err(|error| write_failure(&error))?;
        self.shared.overlay.drop_applied(durable);
        self.shared.notify_room();
        Ok(())
    }

    /// After a loss was accepted: everything that is left becomes records, and numbers go on behind all that were ever
    /// given. The identity is written before the jump, so that a crash in between is refused once more.
    pub(crate) fn apply_and_advance_to(
        &mut self,
        head: CommitSeq,
        start: &StartDecision,
    ) -> Result<(), StoreFailure> {
        self.apply_up_to(head)?;
        let key = RecordKey::Meta(MetaKey::Incarnation).encode();
        let identity = start.incarnation.as_bytes().to_vec().into();
        let jumped = catch_sled_panic(|| {
            let records = &self.shared.disk.records;
            records.put(&key, start.base, &identity)?;
            self.store_applied_mark(start.base)
        });
        jumped.map_err(|error| write_failure(&error))
    }

    fn write(&self, batch: &[(bytes::Bytes, OverlayValue)]) -> sled::Result<()> {
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
    fn store_applied_mark(&mut self, upto: CommitSeq) -> sled::Result<()> {
        let key = RecordKey::Meta(MetaKey::Applied).encode();
        let body = upto.0.to_be_bytes().to_vec().into();
        self.shared.disk.records.put(&key, upto, &body)?;
        self.applied = upto;
        self.truncate_journal()
    }

    fn truncate_journal(&mut self) -> sled::Result<()> {
        let free = self.shared.pins.truncation_limit(self.applied);
        if free > self.cut {
            entry::remove(&self.shared.disk.journal, CommitSeq(self.cut.0 + 1), free)?;
            self.cut = free;
        }
        Ok(())
    }
}
