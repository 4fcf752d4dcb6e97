//! Keeps the journal from being cut while somebody reads it. A pin holds nothing else back: commits, memory and the
//! writing of records go on, only the entries behind the pin stay on the disk until it is let go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::CommitSeq;
use super::committer::Shared;

#[derive(Debug)]
pub(super) struct Pins {
    state: Mutex<State>,
    /// Bytes of changes that one reader may hold back on the disk. A reader that falls behind further loses its pin:
    /// the disk belongs to the relay's work.
    most_bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    held: BTreeMap<u64, Held>,
    next: u64,
}

#[derive(Debug)]
struct Held {
    /// Everything behind this number stays.
    from: CommitSeq,
    bytes: u64,
}

impl Pins {
    pub(super) fn new(most_bytes: u64) -> Self {
        Self {
            state: Mutex::default(),
            most_bytes,
        }
    }

    /// How far the journal may be cut, if `upto` is in the records.
    pub(super) fn free(&self, upto: CommitSeq) -> CommitSeq {
        let state = self.lock();
        let lowest = state.held.values().map(|held| held.from).min();
        lowest.map_or(upto, |lowest| lowest.min(upto))
    }

    /// Counts a commit against everyone who holds it back.
    pub(super) fn committed(&self, bytes: u64) {
        let mut state = self.lock();
        for held in state.held.values_mut() {
            held.bytes = held.bytes.saturating_add(bytes);
        }
        state.held.retain(|_, held| held.bytes <= self.most_bytes);
    }

    // Every change to the state is complete before a panic can happen.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds the journal back from `from` on, until it is dropped or has held back too much.
#[derive(Debug)]
pub(super) struct Pin {
    shared: Arc<Shared>,
    id: u64,
    pub(super) from: CommitSeq,
}

impl Pin {
    /// `durable` is asked under the lock: a cut that began before does not go further than what was durable then.
    pub(super) fn take(shared: &Arc<Shared>, durable: impl FnOnce() -> CommitSeq) -> Self {
        let mut state = shared.pins.lock();
        let (id, from) = (state.next, durable());
        state.next += 1;
        state.held.insert(id, Held { from, bytes: 0 });
        drop(state);
        Self {
            shared: Arc::clone(shared),
            id,
            from,
        }
    }

    /// False once it had to let go.
    pub(super) fn holds(&self) -> bool {
        self.shared.pins.lock().held.contains_key(&self.id)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.shared.pins.lock().held.remove(&self.id);
    }
}
