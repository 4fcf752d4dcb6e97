//! The thread that makes appends durable: it groups the waiting appends, writes one journal
//! entry, flushes, syncs, and only then advances the durable number. Also contains what the
//! store's threads share.

use std::fs::File;
use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::append_queue::{AppendQueue, QueuedAppend};
use super::commit_progress::CommitProgress;
use super::entry::EntryEncoder;
use super::overlay::Overlay;
use super::pin::JournalPins;
use crate::store::config::StoreConfig;
use crate::store::sled::database::{SledDatabase, write_failure};
use crate::store::sled::panic_guard::catch_sled_panic;
use crate::store::sled::store_paths;
use crate::store::sled::store_paths::StorePaths;
use crate::store::{CommitSeq, StoreFailure};

/// Shared by the writer and the store's three threads.
#[derive(Debug)]
pub(crate) struct StoreShared {
    pub(crate) config: StoreConfig,
    pub(crate) disk: SledDatabase,
    pub(crate) overlay: Arc<Overlay>,
    pub(crate) queue: AppendQueue,
    pub(crate) progress: CommitProgress,
    /// The readers of the journal; pinned entries are not truncated.
    pub(crate) pins: JournalPins,
    /// Wakes the writer that waits for room.
    pub(crate) room: Notify,
    /// Locks the directory against other relays as long as anything here is in use.
    pub(crate) _directory_lock: File,
}

impl StoreShared {
    pub(crate) fn has_room(&self) -> bool {
        self.queue.has_room() && self.overlay.bytes() < self.config.overlay_bytes
    }

    pub(crate) fn is_overfull(&self) -> bool {
        self.overlay.bytes() >= 2 * self.config.overlay_bytes
    }

    pub(crate) fn notify_room(&self) {
        self.queue.notify_space();
        self.room.notify_one();
    }

    /// Stops acknowledging and calls the hook, which normally does not return.
    pub(crate) fn fail(&self, fatal: &StoreFailure) {
        if self.progress.fail() {
            if fatal.damaged {
                store_paths::write_damage_marker(
                    &StorePaths::in_dir(&self.config.dir),
                    &fatal.message,
                );
            }
            self.config.on_fatal.call(fatal);
        }
        self.queue.stop();
        self.room.notify_one();
    }
}

#[derive(Debug)]
pub(crate) struct JournalCommitter {
    pub(crate) shared: Arc<StoreShared>,
    /// Owned here, so that the channel closes when this thread ends.
    pub(crate) durable: watch::Sender<CommitSeq>,
    pub(crate) relay_epoch: u64,
}

impl JournalCommitter {
    pub(crate) fn run(self) {
        while let Some(group) = self.shared.queue.take_group() {
            let last = group.last().expect("a group is never empty").seq;
            if let Err(fatal) = self.commit(&group, last) {
                return self.shared.fail(&fatal);
            }
            if !self.publish(last) {
                return;
            }
        }
    }

    pub(crate) fn commit(
        &self,
        group: &[QueuedAppend],
        last: CommitSeq,
    ) -> Result<(), StoreFailure> {
        let first = group[0].seq;
        let bytes: usize = group.iter().map(|append| append.bytes).sum();
        let mut entry = EntryEncoder::new(self.relay_epoch, first, last, bytes);
        for change in group.iter().flat_map(|append| &append.changes) {
            entry.push(change);
        }
        catch_sled_panic(|| {
            entry.write(&self.shared.disk.journal, self.shared.config.schema, first)
        })
        .map_err(|error| write_failure(&error))?;
        self.shared.disk.flush_and_sync()?;
        self.shared.pins.count_commit(bytes as u64);
        Ok(())
    }

    pub(crate) fn publish(&self, last: CommitSeq) -> bool {
        let apply_now = self.shared.overlay.bytes() >= self.shared.config.apply_bytes;
        let acknowledge = || {
            self.durable.send_replace(last);
        };
        let published = self.shared.progress.publish(last, apply_now, acknowledge);
        self.shared.notify_room();
        published
    }
}
