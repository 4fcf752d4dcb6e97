//! The disk under one outbox: what is on its way to it, what is written, and what is synced. A daemon that is killed loses the first,
//! a machine without power any of what is not synced.

use baton_core::time::Wall;
use baton_daemon_core::outbox::{Durable, Leaves, Logged};

use crate::held::{Sayings, Word};
use crate::rng::Rng;

pub(crate) type Entry = Logged<Word, bool, Wall>;

/// As if entries were long: so that files of some dozens are worth rewriting.
const ENTRY_BYTES: u64 = 40_000;

#[derive(Debug, Default)]
pub(crate) struct Disk {
    on_way: Vec<Entry>,
    file: Vec<Entry>,
    synced: usize,
    wants_sync: bool,
}

impl Disk {
    pub(crate) fn take(&mut self, entries: Vec<Entry>) {
        self.on_way.extend(entries);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.on_way.is_empty() && !self.wants_sync
    }

    /// Whether anybody who looks finds something of it.
    pub(crate) fn is_begun(&self) -> bool {
        !self.file.is_empty()
    }

    pub(crate) fn write(&mut self) {
        let urgent = |entry: &Entry| entry.leaves == Leaves::Synced;
        self.wants_sync |= self.on_way.iter().any(urgent);
        self.file.append(&mut self.on_way);
    }

    /// Syncs, if something went in that must survive the machine.
    pub(crate) fn finish_sync(&mut self) {
        if self.wants_sync {
            self.sync();
        }
    }

    fn sync(&mut self) {
        self.synced = self.file.len();
        self.wants_sync = false;
    }

    /// A new file takes the place of this one, whole and synced.
    pub(crate) fn replace(&mut self, file: Vec<Entry>) {
        self.on_way.clear();
        self.file = file;
        self.sync();
    }

    pub(crate) fn durable(&self) -> Durable {
        let serial = |count: usize| {
            let last = count.checked_sub(1).map(|last| self.file[last].serial);
            last.unwrap_or_default()
        };
        Durable {
            written: serial(self.file.len()),
            synced: serial(self.synced),
            file_bytes: self.file.len() as u64 * ENTRY_BYTES,
        }
    }

    /// The daemon is gone: what it had not handed over is, too.
    pub(crate) fn lose_daemon(&mut self) {
        self.on_way.clear();
    }

    /// The power is gone, and with it any of what was not synced.
    pub(crate) fn lose_power(&mut self, rng: &mut Rng) {
        self.on_way.clear();
        let kept = self.synced + rng.index(self.file.len() - self.synced + 1);
        self.file.truncate(kept);
    }

    /// What the next daemon makes of it. It syncs before it says anything.
    pub(crate) fn restored(&mut self, limit: usize) -> Sayings {
        let mut outbox = Sayings::restore(limit, self.file.iter().cloned());
        self.sync();
        outbox.log_mut().on_durable(self.durable());
        outbox
    }

    /// Judges with it: whoever took over now, after a kill or a loss of power, would know of what leaves.
    pub(crate) fn knows(&self, control_seq: u64, leaves: Leaves) -> bool {
        let sure = match leaves {
            Leaves::Written => self.file.len(),
            Leaves::Synced => self.synced,
        };
        let found = Sayings::restore(usize::MAX, self.file[..sure].iter().cloned());
        control_seq <= found.last_control_seq()
    }
}
