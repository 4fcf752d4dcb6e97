//! The outbox's view of its file: which entries still have to be written, which are durable,
//! and therefore which records may be sent. Pure; the writer in `daemon/src/outbox` does the
//! I/O and reports back.

use std::collections::VecDeque;

use super::entry::{
    ControlBody, LoggedEntry, OutboxEntry, ProgressChange, QueuedRecord, RECORD_OVERHEAD,
    RequiredDurability, TranscriptProgress,
};

/// A file below this size is not worth rewriting.
const MIN_REWRITE_BYTES: u64 = 1024 * 1024;

/// What the disk has of one attempt: all entries up to these serials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurablePosition {
    pub written: u64,
    pub synced: u64,
    pub file_bytes: u64,
}

/// Whether records wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogStorage {
    Disk,
    /// The outbox has no file.
    Memory,
    /// A write failed. Records are sent from memory until the whole outbox has been written to
    /// a new file.
    Failed,
}

#[derive(Debug)]
pub struct OutboxLog<C, L, T> {
    storage: LogStorage,
    pending: Vec<LoggedEntry<C, L, T>>,
    last_serial: u64,
    durable: DurablePosition,
    /// The disk has entries that a later daemon would find.
    has_stored_entries: bool,
    /// Progress as of the newest entry.
    logged_progress: TranscriptProgress,
    /// Transcript positions of entries that are not written yet.
    progress_marks: VecDeque<(u64, u64)>,
    stored_consumed: u64,
    /// Sizes of the entries that are not written yet.
    unwritten_sizes: VecDeque<(u64, usize)>,
    unwritten_bytes: usize,
    /// The last serial of a new file that is being written.
    replacing_through: Option<u64>,
    /// Size of the file after its last rewrite.
    rewritten_file_bytes: u64,
}

impl<C: ControlBody, L: Clone, T: Clone> OutboxLog<C, L, T> {
    pub(super) fn on_disk() -> Self {
        Self::with_storage(LogStorage::Disk)
    }

    pub(super) fn in_memory() -> Self {
        Self::with_storage(LogStorage::Memory)
    }

    fn with_storage(storage: LogStorage) -> Self {
        Self {
            storage,
            pending: Vec::new(),
            last_serial: 0,
            durable: DurablePosition::default(),
            has_stored_entries: storage == LogStorage::Memory,
            logged_progress: TranscriptProgress::default(),
            progress_marks: VecDeque::new(),
            stored_consumed: 0,
            unwritten_sizes: VecDeque::new(),
            unwritten_bytes: 0,
            replacing_through: None,
            rewritten_file_bytes: 0,
        }
    }

    /// Numbers an entry and queues it for the disk. `at` is the progress that it stores, if it
    /// changes any.
    pub(super) fn append(
        &mut self,
        entry: &OutboxEntry<C, L, T>,
        durability: RequiredDurability,
        at: Option<&TranscriptProgress>,
    ) -> u64 {
        self.last_serial += 1;
        let serial = self.last_serial;
        if self.storage == LogStorage::Disk {
            let at = at.cloned().unwrap_or_else(|| self.logged_progress.clone());
            let snapshot =
                (self.logged_progress.snapshot != at.snapshot).then(|| at.snapshot.clone());
            let size = entry_size(entry) + snapshot.as_ref().map_or(0, bytes::Bytes::len);
            self.unwritten_sizes.push_back((serial, size));
            self.unwritten_bytes += size;
            self.mark_progress(serial, &at);
            self.pending.push(LoggedEntry {
                serial,
                required_durability: durability,
                progress: ProgressChange {
                    consumed: at.consumed + u64::from(mutant!(ProgressAhead)),
                    snapshot,
                },
                entry: entry.clone(),
            });
        }
        serial
    }

    /// Builds a new file that replaces the old one and every queued entry.
    pub(super) fn replace_all(
        &mut self,
        entries: impl Iterator<Item = (OutboxEntry<C, L, T>, RequiredDurability)>,
        at: &TranscriptProgress,
    ) -> Vec<LoggedEntry<C, L, T>> {
        self.storage = LogStorage::Disk;
        self.pending.clear();
        let mut snapshot = Some(at.snapshot.clone());
        let mut file = Vec::new();
        for (entry, durability) in entries {
            self.last_serial += 1;
            file.push(LoggedEntry {
                serial: self.last_serial,
                required_durability: durability,
                progress: ProgressChange {
                    consumed: at.consumed,
                    snapshot: snapshot.take(),
                },
                entry,
            });
        }
        self.mark_progress(self.last_serial, at);
        self.replacing_through = Some(self.last_serial);
        file
    }

    fn mark_progress(&mut self, serial: u64, at: &TranscriptProgress) {
        if self.logged_progress.consumed < at.consumed || self.progress_marks.is_empty() {
            self.progress_marks.push_back((serial, at.consumed));
        }
        if self.logged_progress != *at {
            self.logged_progress = at.clone();
        }
    }

    pub(super) fn on_replayed(&mut self, serial: u64) {
        self.last_serial = self.last_serial.max(serial);
    }

    /// Ends the replay: the disk had no further entry.
    pub(super) fn finish_replay(&mut self, progress: &TranscriptProgress) {
        self.has_stored_entries = true;
        self.logged_progress = progress.clone();
        self.stored_consumed = progress.consumed;
    }

    pub(super) fn is_progress_unlogged(&self, progress: &TranscriptProgress) -> bool {
        self.storage == LogStorage::Disk && self.logged_progress != *progress
    }

    /// Whether a record is durable enough to be sent.
    pub(super) fn may_send(&self, serial: u64, durability: RequiredDurability) -> bool {
        match (self.storage, durability) {
            (LogStorage::Memory | LogStorage::Failed, _) => true,
            (LogStorage::Disk, _) if mutant!(SentBeforeStored) => true,
            (LogStorage::Disk, RequiredDurability::Synced) if mutant!(SentBeforeSynced) => {
                serial <= self.durable.written
            }
            (LogStorage::Disk, RequiredDurability::Written) => serial <= self.durable.written,
            (LogStorage::Disk, RequiredDurability::Synced) => serial <= self.durable.synced,
        }
    }

    /// Takes all entries that have to be written; each is returned once.
    pub fn take_pending(&mut self) -> Vec<LoggedEntry<C, L, T>> {
        std::mem::take(&mut self.pending)
    }

    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub fn on_durable(&mut self, durable: DurablePosition) {
        let DurablePosition {
            written, synced, ..
        } = self.durable;
        self.durable = DurablePosition {
            written: written.max(durable.written),
            synced: synced.max(durable.synced),
            file_bytes: durable.file_bytes,
        };
        self.has_stored_entries |= durable.written > 0;
        if self
            .replacing_through
            .is_some_and(|last| last <= durable.written)
        {
            self.on_replaced();
        }
        while let Some((_, size)) = self
            .unwritten_sizes
            .pop_front_if(|(serial, _)| *serial <= durable.written)
        {
            self.unwritten_bytes -= size;
        }
        while let Some((_, at)) = self
            .progress_marks
            .pop_front_if(|(serial, _)| *serial <= durable.written)
        {
            self.stored_consumed = self.stored_consumed.max(at);
        }
    }

    /// The new file was written, or writing it failed and the old file is still valid. Either
    /// way it is not retried soon.
    pub fn on_replaced(&mut self) {
        self.replacing_through = None;
        self.rewritten_file_bytes = self.durable.file_bytes;
    }

    /// A write failed. Records are sent from memory until a new file has been written.
    pub fn on_failed(&mut self) {
        if self.storage == LogStorage::Disk {
            self.storage = LogStorage::Failed;
            self.pending.clear();
            self.unwritten_sizes.clear();
            self.progress_marks.clear();
            (self.unwritten_bytes, self.replacing_through) = (0, None);
        }
    }

    pub fn has_failed(&self) -> bool {
        self.storage == LogStorage::Failed
    }

    /// Whether a later daemon would find this outbox. Until then no record may have been sent.
    pub fn has_stored_entries(&self) -> bool {
        self.has_stored_entries
    }

    /// Most of the file is obsolete: only `live` bytes of it are still needed.
    pub fn needs_rewrite(&self, live: usize) -> bool {
        let bytes = self.durable.file_bytes;
        self.storage == LogStorage::Disk
            && self.replacing_through.is_none()
            && self.pending.is_empty()
            && bytes >= MIN_REWRITE_BYTES.max(2 * self.rewritten_file_bytes)
            && 2 * live as u64 <= bytes
    }

    /// Bytes that wait for the disk. The child's output is throttled by this when the disk is
    /// slow.
    pub fn unwritten_bytes(&self) -> usize {
        self.unwritten_bytes
    }

    pub fn last_serial(&self) -> u64 {
        self.last_serial
    }

    /// Entries up to this one survive the daemon. Entries that are kept in memory only count as
    /// written, because they will never be stored.
    pub fn written_through(&self) -> u64 {
        match self.storage {
            LogStorage::Disk => self.durable.written,
            LogStorage::Memory | LogStorage::Failed => self.last_serial,
        }
    }

    /// The transcript before this position is not needed any more, even if this daemon crashes.
    pub fn stored_consumed(&self) -> u64 {
        self.stored_consumed
    }
}

fn entry_size<C: ControlBody, L, T>(entry: &OutboxEntry<C, L, T>) -> usize {
    let bytes = match entry {
        OutboxEntry::Frame(QueuedRecord::Output { bytes, .. }) => bytes.len(),
        OutboxEntry::Frame(QueuedRecord::Control { body, .. }) => body.size(),
        OutboxEntry::Frame(QueuedRecord::Cut { .. })
        | OutboxEntry::Acked(_)
        | OutboxEntry::Reset(_)
        | OutboxEntry::ControlFramesDropped { .. }
        | OutboxEntry::TakenOver
        | OutboxEntry::Renumbered { .. }
        | OutboxEntry::ProgressOnly => 0,
    };
    bytes + RECORD_OVERHEAD
}
