//! The writing half of the store. There is one, and its owner decides the order of all changes.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::append_queue::QueuedAppend;
use super::committer::StoreShared;
use super::overlay::RawChange;
use crate::store::config::MAX_ENTRY;
use crate::store::{CommitSeq, JournalAppendError, StoreChange, StoreStopped};

/// Takes changes in order. Dropping it is a [`Journal::close`] whose outcome nobody hears.
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

    /// Takes the changes as one atomic step: visible to reads at once, durable when the store says so. Does not touch the
    /// disk. Ask [`Journal::has_room`] before: far beyond its limit this waits for the disk, on the calling thread.
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
        // Memory first: once the committer has it, it may be durable, applied and forgotten at any moment.
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

    /// Whether appends keep within the limits of memory and queue.
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
            // Holds a permit if room was made since the look above.
            self.shared.room.notified().await;
        }
    }

    /// Makes everything durable, writes it to its records and stops. Blocks.
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
        // The failure was reported by the hook already, and there is nobody left to tell.
        let _stopped = self.stop();
    }
}
