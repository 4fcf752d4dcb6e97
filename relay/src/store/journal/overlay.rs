//! Changes that are not yet in their records: the newest value of each key, in memory, in key
//! order. Reads look here first, so a change is visible from its append on. Must not access the
//! disk.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;

use crate::store::CommitSeq;

/// Bookkeeping bytes counted per change, so that many small changes are limited too.
pub(crate) const PER_CHANGE: usize = 96;

/// Appends processed under one lock. A cycle has thousands, and the writer must not wait for
/// all of them.
const APPENDS_PER_SLICE: usize = 128;

/// A change on its way from append to journal to record: the encoded key, and the body or
/// `None` for a deletion.
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
    /// The keys of each append, oldest first, for the apply step.
    appended: VecDeque<AppendedKeys>,
    /// Bytes of all appends not yet applied; limits both the memory here and the journal on
    /// disk.
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
    /// The newest change that superseded a due one. The journal may be truncated only when it
    /// is durable too.
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

    /// Up to `limit` changes within the bounds, in key order or reversed.
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

    /// The newest values of all keys changed by appends up to `durable`. Newer values are left
    /// out: their journal entry could still be lost, and the records must never contain half of
    /// an append.
    pub(crate) fn due(&self, durable: CommitSeq) -> DueChanges {
        let (mut due, mut seen, mut examined) = (DueChanges::default(), HashSet::new(), 0);
        // Only the caller removes appends at the front, so indexes stay valid between two
        // slices.
        while self.collect_due_slice(durable, examined, &mut due, &mut seen) {
            examined += APPENDS_PER_SLICE;
        }
        due
    }

    /// Returns false when there is nothing more.
    fn collect_due_slice(
        &self,
        durable: CommitSeq,
        from: usize,
        due: &mut DueChanges,
        seen: &mut HashSet<Bytes>,
    ) -> bool {
        let state = self.read();
        let slice = state.appended.iter().skip(from).take(APPENDS_PER_SLICE);
        let mut appends = 0;
        for append in slice.take_while(|append| append.seq <= durable) {
            appends += 1;
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
        appends == APPENDS_PER_SLICE
    }

    /// Drops the changes up to `applied`, which are now in the records, unless a newer one
    /// exists.
    pub(crate) fn drop_applied(&self, applied: CommitSeq) {
        while self.drop_applied_slice(applied) {}
    }

    /// Returns false when there is nothing more.
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

    // Each change to the state is complete before a panic can occur, so a poisoned lock is
    // safe.
    fn read(&self) -> RwLockReadGuard<'_, OverlayState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, OverlayState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}
