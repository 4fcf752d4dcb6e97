//! Index of the next deadlines: at most one entry per task (or daemon), updated lazily.
//!
//! Renewals postpone deadlines thousands of times a second. So an entry only ever moves to an
//! earlier time. When it is due too early, the owner checks the real timers and arms it again.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::TaskId;
use crate::time::MonotonicTime;

#[derive(Clone, Debug)]
pub struct DeadlineIndex<K = TaskId> {
    order: BTreeSet<(MonotonicTime, K)>,
    by_key: BTreeMap<K, MonotonicTime>,
}

impl<K> Default for DeadlineIndex<K> {
    fn default() -> Self {
        let (order, by_key) = (BTreeSet::new(), BTreeMap::new());
        Self { order, by_key }
    }
}

impl<K: Copy + Ord> DeadlineIndex<K> {
    /// Ensures that the entry is due no later than `at`.
    pub fn arm(&mut self, key: K, at: MonotonicTime) {
        match self.by_key.get(&key) {
            Some(set) if *set <= at => return,
            Some(set) => {
                self.order.remove(&(*set, key));
            }
            None => {}
        }
        self.by_key.insert(key, at);
        self.order.insert((at, key));
    }

    pub fn disarm(&mut self, key: K) {
        if let Some(at) = self.by_key.remove(&key) {
            self.order.remove(&(at, key));
        }
    }

    pub fn has(&self, key: K) -> bool {
        self.by_key.contains_key(&key)
    }

    pub fn next_due_at(&self) -> Option<MonotonicTime> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Removes and returns a due entry. The caller arms it again from the real timers.
    pub fn take_due(&mut self, now: MonotonicTime) -> Option<K> {
        let (at, key) = *self.order.first()?;
        if at > now {
            return None;
        }
        self.disarm(key);
        Some(key)
    }

    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn task(n: u128) -> TaskId {
        TaskId(Uuid::from_u128(n))
    }

    #[test]
    fn an_entry_moves_only_earlier_and_is_taken_in_order() {
        let mut index = DeadlineIndex::default();
        index.arm(task(1), MonotonicTime(100));
        index.arm(task(2), MonotonicTime(50));
        index.arm(task(1), MonotonicTime(400)); // lazily ignored
        index.arm(task(2), MonotonicTime(20));
        assert_eq!(
            (
                index.len(),
                index.next_due_at(),
                index.take_due(MonotonicTime(19))
            ),
            (2, Some(MonotonicTime(20)), None)
        );
        assert_eq!(index.take_due(MonotonicTime(100)), Some(task(2)));
        assert_eq!(index.take_due(MonotonicTime(100)), Some(task(1)));
        assert_eq!(
            (index.take_due(MonotonicTime(1000)), index.is_empty()),
            (None, true)
        );
        index.arm(task(1), MonotonicTime(400));
        index.disarm(task(1));
        index.disarm(task(1));
        assert_eq!(index.next_due_at(), None);
    }
}
