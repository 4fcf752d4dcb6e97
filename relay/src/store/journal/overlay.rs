//! Changes that are not yet in their records: the newest value of each key, in memory, in key order. Readers look here
//! first, so a change is visible from its append on. Must not touch the disk.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;

use crate::store::CommitSeq;

/// Bookkeeping bytes counted per change, so that many small ones are bounded too.
pub(crate) const PER_CHANGE: usize = 96;

/// Appends looked at under one lock: a cycle has thousands, and the writer must not wait for all of them.
const APPENDS_PER_SLICE: usize = 128;

/// One change as it travels from append to journal to record: encoded key, and the body or nothing for a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawChange {
    pub(crate) key: Bytes,
    pub(crate) body: Option<Bytes>,
}

impl RawChange {
    pub(crate) fn cost(&self) -> usize {
        self.key.len() + self.body.as_ref().map_or(0, Bytes::len) + PER_CHANGE
    }
}

#[derive(Debug, Default)]
pub(crate) struct Overlay {
    state: RwLock<OverlayState>,
}

#[derive(Debug, Default)]
struct OverlayState {
    newest: BTreeMap<Bytes, OverlayValue>,
    /// What each append touched, oldest first: what the apply step works through.
    appended: VecDeque<AppendedKeys>,
    /// Bytes of all appends not yet applied; bounds memory here and the journal on disk alike.
    bytes: usize,
    /// The newest append.
    last: CommitSeq,
}

#[derive(Debug)]
struct AppendedKeys {
    seq: CommitSeq,
    keys: Vec<Bytes>,
    bytes: usize,
}

/// The newest change of a key.
#[derive(Clone, Debug)]
pub(crate) struct OverlayValue {
    pub(crate) seq: CommitSeq,
    pub(crate) body: Option<Bytes>,
}

/// What one apply cycle writes.
#[derive(Debug, Default)]
pub(crate) struct DueChanges {
    pub(crate) changes: Vec<(Bytes, OverlayValue)>,
    /// Newest change that superseded a due one: the journal may be cut only when it is durable as well.
    pub(crate) superseded_by: CommitSeq,
}

impl Overlay {
    pub(crate) fn add(&self, seq: CommitSeq, changes: &[RawChange]) {
        let mut state = self.write();
        for change in changes {
            let slot = OverlayValue {
                seq,
                body: change.body.clone(),
            };
            state.newest.insert(change.key.clone(), slot);
        }
        let keys = changes.iter().map(|change| change.key.clone()).collect();
        let bytes = changes.iter().map(RawChange::cost).sum();
        state.bytes += bytes;
        state.last = seq;
        state.appended.push_back(AppendedKeys { seq, keys, bytes });
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<OverlayValue> {
        self.read().newest.get(key).cloned()
    }

    pub(crate) fn last(&self) -> CommitSeq {
        self.read().last
    }

    pub(crate) fn bytes(&self) -> usize {
        self.read().bytes
    }

    /// Up to `limit` newest changes within the bounds, in key order, or backwards.
    pub(crate) fn page(
        &self,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        limit: usize,
    ) -> Vec<(Bytes, OverlayValue)> {
        let state = self.read();
        let range = state.newest.range::<[u8], _>(bounds);
        let own = |(key, slot): (&Bytes, &OverlayValue)| (key.clone(), slot.clone());
        if reverse {
            range.rev().take(limit).map(own).collect()
        } else {
            range.take(limit).map(own).collect()
        }
    }

    /// The newest values of all keys touched by appends up to `durable`. Newer ones stay out: their journal entry could
    /// still be lost, and half of an append must never be in the records.
    pub(crate) fn due(&self, durable: CommitSeq) -> DueChanges {
        let (mut due, mut seen, mut looked_at) = (DueChanges::default(), HashSet::new(), 0);
        // Only the caller takes away at the front, so that places stay the same between two slices.
        while self.collect_due_slice(durable, looked_at, &mut due, &mut seen) {
            looked_at += APPENDS_PER_SLICE;
        }
        due
    }

    /// False when there is nothing further.
    fn collect_due_slice(
        &self,
        durable: CommitSeq,
        from: usize,
        due: &mut DueChanges,
        seen: &mut HashSet<Bytes>,
    ) -> bool {
        let state = self.read();
        let slice = state.appended.iter().skip(from).take(APPENDS_PER_SLICE);
        let mut touched = 0;
        for append in slice.take_while(|append| append.seq <= durable) {
            touched += 1;
            for key in append
                .keys
                .iter()
                .filter(|key| seen.insert(Bytes::clone(key)))
            {
                match state.newest.get(key) {
                    Some(slot) if slot.seq <= durable => {
                        due.changes.push((key.clone(), slot.clone()));
                    }
                    Some(newer) => due.superseded_by = due.superseded_by.max(newer.seq),
                    None => {}
                }
            }
        }
        touched == APPENDS_PER_SLICE
    }

    /// Forgets what is now in the records: changes up to `applied`, where nothing newer came since.
    pub(crate) fn drop_applied(&self, applied: CommitSeq) {
        while self.drop_applied_slice(applied) {}
    }

    /// False when there is nothing further.
    fn drop_applied_slice(&self, applied: CommitSeq) -> bool {
        let mut state = self.write();
        for _ in 0..APPENDS_PER_SLICE {
            let front = state.appended.pop_front_if(|append| append.seq <= applied);
            let Some(append) = front else { return false };
            for key in &append.keys {
                if state
                    .newest
                    .get(key)
                    .is_some_and(|slot| slot.seq <= applied)
                {
                    state.newest.remove(key);
                }
            }
            state.bytes -= append.bytes;
        }
        true
    }

    // Every change to the state is complete before the guard is dropped or a panic can happen.
    fn read(&self) -> RwLockReadGuard<'_, OverlayState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, OverlayState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}
