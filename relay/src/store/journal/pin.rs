//! Keeps the journal from being cut while somebody reads it. A pin holds nothing else back: commits, memory and the
//! writing of records go on, only the entries behind the pin stay on the disk until it is let go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::committer::StoreShared;
use crate::store::CommitSeq;

#[derive(Debug)]
pub(crate) struct JournalPins {
    state: Mutex<PinState>,
    /// Bytes of changes that one reader may hold back on the disk. A reader that falls behind further loses its pin:
    /// the disk belongs to the relay's work.
    max_retained_bytes: u64,
}

#[derive(Debug, Default)]
struct PinState {
    pinned: BTreeMap<u64, PinnedEntries>,
    next: u64,
}

#[derive(Debug)]
struct PinnedEntries {
    /// Everything behind this number stays.
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

    /// How far the journal may be cut, if `upto` is in the records.
    pub(crate) fn truncation_limit(&self, upto: CommitSeq) -> CommitSeq {
        let state = self.lock();
        let lowest = state.pinned.values().map(|held| held.from_seq).min();
        lowest.map_or(upto, |lowest| lowest.min(upto))
    }

    /// Counts a commit against everyone who holds it back.
    pub(crate) fn count_commit(&self, bytes: u64) {
        let mut state = self.lock();
        for held in state.pinned.values_mut() {
            held.bytes = held.bytes.saturating_add(bytes);
        }
        state
            .pinned
            .retain(|_, held| held.bytes <= self.max_retained_bytes);
    }

    // Every change to the state is complete before a panic can happen.
    fn lock(&self) -> MutexGuard<'_, PinState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds the journal back from `from` on, until it is dropped or has held back too much.
#[derive(Debug)]
pub(crate) struct JournalPin {
    shared: Arc<StoreShared>,
    id: u64,
    pub(crate) from: CommitSeq,
}

impl JournalPin {
    /// `durable` is asked under the lock: a cut that began before does not go further than what was durable then.
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

    /// False once it had to let go.
    pub(crate) fn is_active(&self) -> bool {
        self.shared.pins.lock().pinned.contains_key(&self.id)
    }
}

impl Drop for JournalPin {
    fn drop(&mut self) {
        self.shared.pins.lock().pinned.remove(&self.id);
    }
}
