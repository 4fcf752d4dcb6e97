//! Pins that keep journal entries from being truncated while they are read. A pin delays
//! nothing else: commits, the overlay and the applier continue. Only the entries after the pin
//! stay on disk until it is released.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::committer::StoreShared;
use crate::store::CommitSeq;

#[derive(Debug)]
pub(crate) struct JournalPins {
    state: Mutex<PinState>,
    /// Bytes of changes that one reader may retain on disk. A reader that falls further behind
    /// loses its pin, because the disk space is needed for the relay's work.
    max_retained_bytes: u64,
}

#[derive(Debug, Default)]
struct PinState {
    pinned: BTreeMap<u64, PinnedEntries>,
    next: u64,
}

#[derive(Debug)]
struct PinnedEntries {
    /// Entries after this number are retained.
    from_seq: CommitSeq,
    bytes: u64,
}

impl JournalPins {
    pub(crate) fn new(max_retained_bytes: u64) -> Self {
        Self {
            state: Mutex::default(),
            max_retained_bytes,
        }
    }

    /// How far the journal may be truncated, if `upto` is in the records.
    pub(crate) fn truncation_limit(&self, upto: CommitSeq) -> CommitSeq {
        let state = self.lock();
        let lowest = state.pinned.values().map(|pin| pin.from_seq).min();
        lowest.map_or(upto, |lowest| lowest.min(upto))
    }

    /// Counts a commit against every pin that retains it.
    pub(crate) fn count_commit(&self, bytes: u64) {
        let mut state = self.lock();
        for pin in state.pinned.values_mut() {
            pin.bytes = pin.bytes.saturating_add(bytes);
        }
        state
            .pinned
            .retain(|_, pin| pin.bytes <= self.max_retained_bytes);
    }

    // Each change to the state is complete before a panic can occur, so a poisoned lock is
    // safe.
    fn lock(&self) -> MutexGuard<'_, PinState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Retains the journal after `from`, until it is dropped or has retained too much.
#[derive(Debug)]
pub(crate) struct JournalPin {
    shared: Arc<StoreShared>,
    id: u64,
    pub(crate) from: CommitSeq,
}

impl JournalPin {
    /// Creates a pin. `durable` is read under the lock, because a truncation that began earlier
    /// goes no further than what was durable then.
    pub(crate) fn take(shared: &Arc<StoreShared>, durable: impl FnOnce() -> CommitSeq) -> Self {
        let mut state = shared.pins.lock();
        let (id, from) = (state.next, durable());
        state.next += 1;
        state.pinned.insert(
            id,
            PinnedEntries {
                from_seq: from,
                bytes: 0,
            },
        );
        drop(state);
        Self {
            shared: Arc::clone(shared),
            id,
            from,
        }
    }

    /// False once the pin was lost because it retained too much.
    pub(crate) fn is_active(&self) -> bool {
        self.shared.pins.lock().pinned.contains_key(&self.id)
    }
}

impl Drop for JournalPin {
    fn drop(&mut self) {
        self.shared.pins.lock().pinned.remove(&self.id);
    }
}
