//! The thread that applies changes from the overlay to their records and then truncates the
//! journal. It applies only durable changes, the newest of each key, in parallel with the
//! commits.

use std::sync::Arc;

use super::commit_progress::ThreadWake;
use super::committer::StoreShared;
use super::entry;
use super::overlay::OverlayValue;
use super::tail::StartDecision;
use crate::store::sled::database::write_failure;
use crate::store::sled::panic_guard::catch_sled_panic;
use crate::store::{CommitSeq, MetaKey, RecordKey, StoreFailure};

/// Records written between two checks whether the store has failed. No sled batch is used: it
/// would block all other work on the database while it is written, and replay already makes a
/// cycle atomic.
const BATCH: usize = 64;

#[derive(Debug)]
pub(crate) struct RecordApplier {
    pub(crate) shared: Arc<StoreShared>,
    /// Everything up to here is in the records.
    pub(crate) applied: CommitSeq,
    /// The journal is truncated up to here; less than `applied` while a reader pins entries.
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

    /// Applies everything up to `durable`. A crash at any point is repaired by the next start,
    /// because the journal contains all of it until the last step.
    pub(crate) fn apply_up_to(&mut self, durable: CommitSeq) -> Result<(), StoreFailure> {
        if durable <= self.applied {
            // A reader may have released its pin meanwhile.
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
        // The newer value that superseded a due one must be durable before the older one is
        // truncated.
        if !self.shared.progress.wait_for(due.superseded_by) {
            return Ok(());
        }
        catch_sled_panic(|| self.store_applied_mark(durable))
            .map_err(|error| write_failure(&error))?;
        self.shared.overlay.drop_applied(durable);
        self.shared.notify_room();
        Ok(())
    }

    /// Used after an accepted loss: applies everything that is left, and continues the numbers
    /// above all that were ever used. The incarnation is written before the jump, so that a
    /// crash in between is refused again at the next start.
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

    // Needs no sync of its own: sled's log keeps the order, and a lost mark is only applied
    // again.
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
