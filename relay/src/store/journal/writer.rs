//! The writing half of the store. There is only one; its owner decides the order of all
//! changes.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::append_queue::QueuedAppend;
use super::committer::StoreShared;
use super::overlay::RawChange;
use crate::store::config::MAX_ENTRY;
use crate::store::{CommitSeq, JournalAppendError, StoreChange, StoreStopped};

/// Accepts changes in order. Dropping it does the same as [`Journal::close`] and ignores the
/// result.
#[derive(Debug)]
pub struct Journal {
    shared: Arc<StoreShared>,
    last: CommitSeq,
    threads: Option<StoreThreads>,
}

#[derive(Debug)]
pub(crate) struct StoreThreads {
    pub(crate) committer: JoinHandle<()>,
    pub(crate) applier: JoinHandle<()>,
    pub(crate) marker: JoinHandle<()>,
}

impl Journal {
    pub(crate) fn new(shared: Arc<StoreShared>, last: CommitSeq, threads: StoreThreads) -> Self {
        Self {
            shared,
            last,
            threads: Some(threads),
        }
    }

    /// Accepts the changes as one atomic step: visible to reads at once, durable when the store
    /// publishes the number. Does not access the disk. Check [`Journal::has_room`] first: far
    /// above the limit this call blocks the thread until the disk has caught up.
    pub fn append(&mut self, changes: Vec<StoreChange>) -> Result<CommitSeq, JournalAppendError> {
        let changes: Vec<RawChange> = changes.into_iter().map(StoreChange::into_raw).collect();
        let bytes = changes.iter().map(RawChange::cost).sum();
        if bytes > MAX_ENTRY {
            return Err(JournalAppendError::TooLarge { bytes });
        }
        self.shared
            .queue
            .wait_below_limit(|| self.shared.is_overfull())?;
        let seq = CommitSeq(self.last.0 + 1);
        // Add to the overlay first: the committer may make the append durable, and the applier
        // may apply and drop it, at any moment after the push.
        self.shared.overlay.add(seq, &changes);
        self.shared.queue.push(QueuedAppend {
            seq,
            changes,
            bytes,
        })?;
        self.last = seq;
        Ok(seq)
    }

    /// The number of the last append.
    pub fn last(&self) -> CommitSeq {
        self.last
    }

    /// Whether appends stay within the limits of memory and queue.
    pub fn has_room(&self) -> bool {
        self.shared.has_room()
    }

    /// Waits until there is room.
    pub async fn wait_for_room(&mut self) -> Result<(), StoreStopped> {
        loop {
            if self.shared.progress.failed() {
                return Err(StoreStopped);
            }
            if self.shared.has_room() {
                return Ok(());
            }
            // Completes at once if room was made since the check above.
            self.shared.room.notified().await;
        }
    }

    /// Makes everything durable, applies it to the records and stops. Blocks.
    pub fn close(mut self) -> Result<(), StoreStopped> {
        self.stop()
    }

    fn stop(&mut self) -> Result<(), StoreStopped> {
        let Some(threads) = self.threads.take() else {
            return Ok(());
        };
        self.shared.queue.stop();
        let drained = threads.committer.join();
        self.shared.progress.stop_applier();
        let applied = threads.applier.join();
        self.shared.progress.stop_watermark_writer();
        let marked = threads.marker.join();
        let joined = drained.and(applied).and(marked);
        if joined.is_err() || self.shared.progress.failed() {
            Err(StoreStopped)
        } else {
            Ok(())
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // The hook has reported the failure already, and the result cannot be returned here.
        let _stopped = self.stop();
    }
}
