//! Appends on their way to the committer, in order.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::overlay::RawChange;
use crate::store::config::{MAX_APPENDS_PER_ENTRY, MAX_ENTRY};
use crate::store::{CommitSeq, StoreStopped};

/// Appends that may wait before `has_room` says no: a few groups, so that the committer never starves.
const SOFT_LIMIT: usize = 4 * MAX_APPENDS_PER_ENTRY;

#[derive(Debug)]
pub(crate) struct QueuedAppend {
    pub(crate) seq: CommitSeq,
    pub(crate) changes: Vec<RawChange>,
    pub(crate) bytes: usize,
}

/// Bounded: above `ROOM` the writer is told to wait, at twice that it waits. Nothing is ever dropped.
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

    /// Waits while the queue is at its hard limit, or while `overfull` says so.
    pub(crate) fn push(&self, append: QueuedAppend) -> Result<(), StoreStopped> {
        let mut state = self.lock();
        if state.stopped {
            return Err(StoreStopped);
        }
        state.waiting.push_back(append);
        self.filled.notify_one();
        Ok(())
    }

    /// Blocks until an append may be pushed. `overfull` is asked again after each group and each apply cycle.
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

    /// Something was taken or applied: a blocked writer looks again.
    pub(crate) fn notify_space(&self) {
        drop(self.lock());
        self.emptied.notify_one();
    }

    /// Everything that waits, up to the limits of one entry. `None` when the queue was stopped and is empty.
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

    /// No more appends; what waits is still taken.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.filled.notify_one();
        self.emptied.notify_one();
    }

    // Every change to the state is complete before a panic can happen.
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
