//! The disk of one outbox: entries in flight, written and synced. A killed daemon loses the
//! first kind, a machine without power any entries that are not synced.

use baton_core::time::WallTime;
use baton_daemon_core::outbox::{DurablePosition, LoggedEntry, RequiredDurability};

use crate::daemon::sim_attempt::{NumberedFrame, SimOutbox};
use crate::random::SeededRng;

pub(crate) type SimOutboxEntry = LoggedEntry<NumberedFrame, bool, WallTime>;

/// A large size per entry, so that files of some dozens of entries are rewritten.
const ENTRY_BYTES: u64 = 40_000;

#[derive(Debug, Default)]
pub(crate) struct OutboxDisk {
    in_flight: Vec<SimOutboxEntry>,
    written: Vec<SimOutboxEntry>,
    synced: usize,
    wants_sync: bool,
}

impl OutboxDisk {
    pub(crate) fn enqueue(&mut self, entries: Vec<SimOutboxEntry>) {
        self.in_flight.extend(entries);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && !self.wants_sync
    }

    /// Whether a successor would find any entry.
    pub(crate) fn has_entries(&self) -> bool {
        !self.written.is_empty()
    }

    pub(crate) fn write(&mut self) {
        let urgent =
            |entry: &SimOutboxEntry| entry.required_durability == RequiredDurability::Synced;
        self.wants_sync |= self.in_flight.iter().any(urgent);
        self.written.append(&mut self.in_flight);
    }

    /// Syncs if an entry was written that must survive the machine.
    pub(crate) fn finish_sync(&mut self) {
        if self.wants_sync {
            self.sync();
        }
    }

    fn sync(&mut self) {
        self.synced = self.written.len();
        self.wants_sync = false;
    }

    /// Replaces the file with a complete and synced one.
    pub(crate) fn replace(&mut self, file: Vec<SimOutboxEntry>) {
        self.in_flight.clear();
        self.written = file;
        self.sync();
    }

    pub(crate) fn durable(&self) -> DurablePosition {
        let serial = |count: usize| {
            let last = count.checked_sub(1).map(|last| self.written[last].serial);
            last.unwrap_or_default()
        };
        DurablePosition {
            written: serial(self.written.len()),
            synced: serial(self.synced),
            file_bytes: self.written.len() as u64 * ENTRY_BYTES,
        }
    }

    /// The daemon has ended, and entries in flight are lost.
    pub(crate) fn drop_in_flight(&mut self) {
        self.in_flight.clear();
    }

    /// A power loss, which may lose any entries that were not synced.
    pub(crate) fn lose_unsynced(&mut self, rng: &mut SeededRng) {
        self.in_flight.clear();
        let kept = self.synced + rng.random_index(self.written.len() - self.synced + 1);
        self.written.truncate(kept);
    }

    /// Restores the outbox for the next daemon, which syncs before it sends anything.
    pub(crate) fn restore_outbox(&mut self, limit: usize) -> SimOutbox {
        let mut outbox = SimOutbox::restore(limit, self.written.iter().cloned());
        self.sync();
        outbox.log_mut().on_durable(self.durable());
        outbox
    }

    /// For checks: whether a daemon that took over now, after a kill or a power loss, would
    /// have this frame.
    pub(crate) fn has_durable_frame(&self, control_seq: u64, leaves: RequiredDurability) -> bool {
        let sure = match leaves {
            RequiredDurability::Written => self.written.len(),
            RequiredDurability::Synced => self.synced,
        };
        let found = SimOutbox::restore(usize::MAX, self.written[..sure].iter().cloned());
        control_seq <= found.last_control_seq()
    }
}
