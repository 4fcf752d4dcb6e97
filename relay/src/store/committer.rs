//! The one thread that makes appends durable: it groups what waits, writes one journal entry, flushes, syncs, and only
//! then moves the durable number. Also holds what all the store's threads share.

use std::fs::File;
use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::careful::catch_sled_panic;
use super::config::StoreConfig;
use super::disk::{SledDatabase, write_failure};
use super::journal::EntryEncoder;
use super::overlay::Overlay;
use super::pins::JournalPins;
use super::preflight::{self, StorePaths};
use super::progress::CommitProgress;
use super::queue::{AppendQueue, QueuedAppend};
use super::{CommitSeq, StoreFailure};

/// Shared by the writer and the store's three threads.
#[derive(Debug)]
pub(super) struct StoreShared {
    pub(super) config: StoreConfig,
    pub(super) disk: SledDatabase,
    pub(super) overlay: Arc<Overlay>,
    pub(super) queue: AppendQueue,
    pub(super) progress: CommitProgress,
    /// Who reads the journal, which is not cut meanwhile.
    pub(super) pins: JournalPins,
    /// Wakes the one writer that waits for room.
    pub(super) room: Notify,
    /// Keeps other relays out of the directory for as long as anything here is in use.
    pub(super) _directory_lock: File,
}

impl StoreShared {
    pub(super) fn has_room(&self) -> bool {
        self.queue.has_room() && self.overlay.bytes() < self.config.overlay_bytes
    }

    pub(super) fn is_overfull(&self) -> bool {
        self.overlay.bytes() >= 2 * self.config.overlay_bytes
    }

    pub(super) fn notify_room(&self) {
        self.queue.notify_space();
        self.room.notify_one();
    }

    /// Nothing is acknowledged from here on. The hook normally does not return.
    pub(super) fn fail(&self, fatal: &StoreFailure) {
        if self.progress.fail() {
            if fatal.damaged {
                preflight::write_damage_marker(
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
pub(super) struct JournalCommitter {
    pub(super) shared: Arc<StoreShared>,
    /// Owned here, so that its receivers learn when this thread has ended.
    pub(super) durable: watch::Sender<CommitSeq>,
    pub(super) relay_epoch: u64,
}

impl JournalCommitter {
    pub(super) fn run(self) {
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

    pub(super) fn commit(
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

    pub(super) fn publish(&self, last: CommitSeq) -> bool {
        let apply_now = self.shared.overlay.bytes() >= self.shared.config.apply_bytes;
        let acknowledge = || {
            self.durable.send_replace(last);
        };
        let published = self.shared.progress.publish(last, apply_now, acknowledge);
        self.shared.notify_room();
        published
    }
}
