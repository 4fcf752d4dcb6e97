//! The outbox's side of its file: what is still to be written, what the disk has, and so what may leave. Pure; `writer` does the
//! writing and reports back.

use std::collections::VecDeque;

use super::entry::{Body, Entry, Leaves, Logged, Progress, RECORD_COST, Record, Step};

/// A file below this size is not worth rewriting.
const REWRITE_ABOVE: u64 = 1024 * 1024;

/// What the disk has of one attempt: all entries up to these serials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durable {
    pub written: u64,
    pub synced: u64,
    pub file_bytes: u64,
}

/// Whether the disk is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeping {
    Disk,
    /// Never.
    Memory,
    /// It refused: what is said is said from memory until all of it could be written anew.
    Failed,
}

#[derive(Debug)]
pub struct Log<C, L, T> {
    keeping: Keeping,
    pending: Vec<Logged<C, L, T>>,
    last_serial: u64,
    durable: Durable,
    /// The disk has something of it that another daemon would find.
    is_begun: bool,
    /// Progress as the newest entry has it.
    logged: Progress,
    /// Positions that entries on their way to the disk store.
    marks: VecDeque<(u64, u64)>,
    stored_consumed: u64,
    /// Sizes of the entries that are not written yet.
    sizes: VecDeque<(u64, usize)>,
    unwritten: usize,
    /// The last serial of a new file that is on its way.
    replacing: Option<u64>,
    /// Size of the file when it was last new.
    fresh_bytes: u64,
}

impl<C: Body, L: Clone, T: Clone> Log<C, L, T> {
    pub(super) fn on_disk() -> Self {
        Self::with(Keeping::Disk)
    }

    pub(super) fn in_memory() -> Self {
        Self::with(Keeping::Memory)
    }

    fn with(keeping: Keeping) -> Self {
        Self {
            keeping,
            pending: Vec::new(),
            last_serial: 0,
            durable: Durable::default(),
            is_begun: keeping == Keeping::Memory,
            logged: Progress::default(),
            marks: VecDeque::new(),
            stored_consumed: 0,
            sizes: VecDeque::new(),
            unwritten: 0,
            replacing: None,
            fresh_bytes: 0,
        }
    }

    /// Numbers an entry and keeps it for the disk. `at`: the progress that it makes, if it makes any.
    pub(super) fn append(
        &mut self,
        entry: &Entry<C, L, T>,
        leaves: Leaves,
        at: Option<&Progress>,
    ) -> u64 {
        self.last_serial += 1;
        let serial = self.last_serial;
        if self.keeping == Keeping::Disk {
            let at = at.cloned().unwrap_or_else(|| self.logged.clone());
            let snapshot = (self.logged.snapshot != at.snapshot).then(|| at.snapshot.clone());
            let size = size_of(entry) + snapshot.as_ref().map_or(0, bytes::Bytes::len);
            self.sizes.push_back((serial, size));
            self.unwritten += size;
            self.mark(serial, &at);
            self.pending.push(Logged {
                serial,
                leaves,
                progress: Step {
                    consumed: at.consumed + u64::from(mutant!(ProgressAhead)),
                    snapshot,
                },
                entry: entry.clone(),
            });
        }
        serial
    }

    /// A new file takes the place of the old one and of everything that waits.
    pub(super) fn replace_all(
        &mut self,
        entries: impl Iterator<Item = (Entry<C, L, T>, Leaves)>,
        at: &Progress,
    ) -> Vec<Logged<C, L, T>> {
        self.keeping = Keeping::Disk;
        self.pending.clear();
        let mut snapshot = Some(at.snapshot.clone());
        let mut file = Vec::new();
        for (entry, leaves) in entries {
            self.last_serial += 1;
            file.push(Logged {
                serial: self.last_serial,
                leaves,
                progress: Step {
                    consumed: at.consumed,
                    snapshot: snapshot.take(),
                },
                entry,
            });
        }
        self.mark(self.last_serial, at);
        self.replacing = Some(self.last_serial);
        file
    }

    fn mark(&mut self, serial: u64, at: &Progress) {
        if self.logged.consumed < at.consumed || self.marks.is_empty() {
            self.marks.push_back((serial, at.consumed));
        }
        if self.logged != *at {
            self.logged = at.clone();
        }
    }

    pub(super) fn replayed(&mut self, serial: u64) {
        self.last_serial = self.last_serial.max(serial);
    }

    /// That was all that the disk had.
    pub(super) fn replayed_all(&mut self, progress: &Progress) {
        self.is_begun = true;
        self.logged = progress.clone();
        self.stored_consumed = progress.consumed;
    }

    pub(super) fn lacks(&self, progress: &Progress) -> bool {
        self.keeping == Keeping::Disk && self.logged != *progress
    }

    /// Whether a record may be sent.
    pub(super) fn lets_go(&self, serial: u64, leaves: Leaves) -> bool {
        match (self.keeping, leaves) {
            (Keeping::Memory | Keeping::Failed, _) => true,
            (Keeping::Disk, _) if mutant!(SentBeforeStored) => true,
            (Keeping::Disk, Leaves::Synced) if mutant!(SentBeforeSynced) => {
                serial <= self.durable.written
            }
            (Keeping::Disk, Leaves::Written) => serial <= self.durable.written,
            (Keeping::Disk, Leaves::Synced) => serial <= self.durable.synced,
        }
    }

    /// Everything that is to be written, once.
    pub fn take(&mut self) -> Vec<Logged<C, L, T>> {
        std::mem::take(&mut self.pending)
    }

    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub fn on_durable(&mut self, durable: Durable) {
        let Durable {
            written, synced, ..
        } = self.durable;
        self.durable = Durable {
            written: written.max(durable.written),
            synced: synced.max(durable.synced),
            file_bytes: durable.file_bytes,
        };
        self.is_begun |= durable.written > 0;
        if self.replacing.is_some_and(|last| last <= durable.written) {
            self.on_replaced();
        }
        while let Some((_, size)) = self
            .sizes
            .pop_front_if(|(serial, _)| *serial <= durable.written)
        {
            self.unwritten -= size;
        }
        while let Some((_, at)) = self
            .marks
            .pop_front_if(|(serial, _)| *serial <= durable.written)
        {
            self.stored_consumed = self.stored_consumed.max(at);
        }
    }

    /// The new file stands, or could not be made while the old one is as good as before: either way it is not tried again soon.
    pub fn on_replaced(&mut self) {
        self.replacing = None;
        self.fresh_bytes = self.durable.file_bytes;
    }

    /// The disk refused. Everything leaves from memory until an image of it could be written.
    pub fn on_failed(&mut self) {
        if self.keeping == Keeping::Disk {
            self.keeping = Keeping::Failed;
            self.pending.clear();
            self.sizes.clear();
            self.marks.clear();
            (self.unwritten, self.replacing) = (0, None);
        }
    }

    pub fn has_failed(&self) -> bool {
        self.keeping == Keeping::Failed
    }

    /// Whether another daemon would find it. Before that, nothing of it may have left.
    pub fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// The file is mostly dead: `live` bytes are all that is kept of it.
    pub fn wants_new_file(&self, live: usize) -> bool {
        let bytes = self.durable.file_bytes;
        self.keeping == Keeping::Disk
            && self.replacing.is_none()
            && self.pending.is_empty()
            && bytes >= REWRITE_ABOVE.max(2 * self.fresh_bytes)
            && 2 * live as u64 <= bytes
    }

    /// Bytes that wait for the disk. A slow disk holds the child back by this.
    pub fn unwritten(&self) -> usize {
        self.unwritten
    }

    pub fn last_serial(&self) -> u64 {
        self.last_serial
    }

    /// Entries up to this one survive the daemon, as far as anything does: what is kept in memory only never will.
    pub fn written_through(&self) -> u64 {
        match self.keeping {
            Keeping::Disk => self.durable.written,
            Keeping::Memory | Keeping::Failed => self.last_serial,
        }
    }

    /// The transcript before this position is no longer needed, whatever happens to this daemon.
    pub fn stored_consumed(&self) -> u64 {
        self.stored_consumed
    }
}

fn size_of<C: Body, L, T>(entry: &Entry<C, L, T>) -> usize {
    let bytes = match entry {
        Entry::Frame(Record::Output { bytes, .. }) => bytes.len(),
        Entry::Frame(Record::Control { body, .. }) => body.size(),
        Entry::Frame(Record::Cut { .. })
        | Entry::Acked(_)
        | Entry::Base(_)
        | Entry::Forgotten { .. }
        | Entry::TakenOver
        | Entry::Settled { .. }
        | Entry::Advanced => 0,
    };
    bytes + RECORD_COST
}
