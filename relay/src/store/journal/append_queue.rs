//! The queue of appends that wait for the committer, in order.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::overlay::RawChange;
use crate::store::config::{MAX_APPENDS_PER_ENTRY, MAX_ENTRY};
use crate::store::{CommitSeq, StoreStopped};

/// Appends that may wait before `has_room` returns false: a few groups, so that the committer
/// always has work.
const SOFT_LIMIT: usize = 4 * MAX_APPENDS_PER_ENTRY;

#[derive(Debug)]
pub(crate) struct QueuedAppend {
    pub(crate) seq: CommitSeq,
    pub(crate) changes: Vec<RawChange>,
    pub(crate) bytes: usize,
}

/// Bounded: above `SOFT_LIMIT` `has_room` returns false, at twice that an append waits. Nothing
/// is dropped.
#[derive(Debug, Default)]
pub(crate) struct AppendQueue {
    state: Mutex<QueueState>,
    filled: Condvar,
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: VecDeque<QueuedAppend>,
    stopped: bool,
}

impl AppendQueue {
    pub(crate) fn has_room(&self) -> bool {
        self.lock().waiting.len() < SOFT_LIMIT
    }

    /// Adds an append to the queue. Call `wait_below_limit` first.
    pub(crate) fn push(&self, append: QueuedAppend) -> Result<(), StoreStopped> {
        let mut state = self.lock();
        if state.stopped {
            return Err(StoreStopped);
        }
        state.waiting.push_back(append);
        self.filled.notify_one();
        Ok(())
    }

    /// Blocks until an append may be pushed. `overfull` is checked again after each group and
    /// each apply cycle.
    pub(crate) fn wait_below_limit(&self, overfull: impl Fn() -> bool) -> Result<(), StoreStopped> {
        let full = |state: &mut QueueState| {
            !state.stopped && (state.waiting.len() >= 2 * SOFT_LIMIT || overfull())
        };
        let waited = self.emptied.wait_while(self.lock(), full);
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.stopped {
            Err(StoreStopped)
        } else {
            Ok(())
        }
    }

    /// Wakes a blocked writer, because appends were taken or applied.
    pub(crate) fn notify_space(&self) {
        drop(self.lock());
        self.emptied.notify_one();
    }

    /// Everything that waits, up to the limits of one entry. `None` when the queue is stopped
    /// and empty.
    pub(crate) fn take_group(&self) -> Option<Vec<QueuedAppend>> {
        let idle = |state: &mut QueueState| state.waiting.is_empty() && !state.stopped;
        let waited = self.filled.wait_while(self.lock(), idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let (mut group, mut bytes) = (Vec::new(), 0);
        while let Some(next) = state.waiting.pop_front_if(|next| {
            group.is_empty()
                || (bytes + next.bytes <= MAX_ENTRY && group.len() < MAX_APPENDS_PER_ENTRY)
        }) {
            bytes += next.bytes;
            group.push(next);
        }
        self.emptied.notify_one();
        (!group.is_empty()).then_some(group)
    }

    /// Accepts no more appends; the waiting ones are still taken.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.filled.notify_one();
        self.emptied.notify_one();
    }

    // Each change to the state is complete before a panic can occur, so a poisoned lock is
    // safe.
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
