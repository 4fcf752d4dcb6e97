//! What to look at next: at most one entry per task (or daemon), moved lazily.
//!
//! Renewals push deadlines back thousands of times a second. An entry therefore only ever moves to an earlier
//! moment; when it comes due too early, the owner looks at the real timers and arms it again.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::TaskId;
use crate::time::Moment;

#[derive(Clone, Debug)]
pub struct Deadlines<K = TaskId> {
    order: BTreeSet<(Moment, K)>,
    of: BTreeMap<K, Moment>,
}

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        let (order, of) = (BTreeSet::new(), BTreeMap::new());
        Self { order, of }
    }
}

impl<K: Copy + Ord> Deadlines<K> {
    /// Makes sure that it is looked at no later than `at`.
    pub fn arm(&mut self, key: K, at: Moment) {
        match self.of.get(&key) {
            Some(set) if *set <= at => return,
            Some(set) => {
                self.order.remove(&(*set, key));
            }
            None => {}
        }
        self.of.insert(key, at);
        self.order.insert((at, key));
    }

    pub fn disarm(&mut self, key: K) {
        if let Some(at) = self.of.remove(&key) {
            self.order.remove(&(at, key));
        }
    }

    pub fn has(&self, key: K) -> bool {
        self.of.contains_key(&key)
    }

    pub fn next(&self) -> Option<Moment> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Takes one whose entry is due; the caller arms it again with what its timers say.
    pub fn take_due(&mut self, now: Moment) -> Option<K> {
        let (at, key) = *self.order.first()?;
        if at > now {
            return None;
        }
        self.disarm(key);
        Some(key)
    }

    pub fn len(&self) -> usize {
        self.of.len()
    }

    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
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
    fn an_entry_moves_earlier_but_not_later_and_comes_out_in_order() {
        let mut index = Deadlines::default();
        index.arm(task(1), Moment(100));
        index.arm(task(2), Moment(50));
        index.arm(task(1), Moment(400)); // lazily ignored
        index.arm(task(2), Moment(20));
        assert_eq!(
            (index.len(), index.next(), index.take_due(Moment(19))),
            (2, Some(Moment(20)), None)
        );
        assert_eq!(index.take_due(Moment(100)), Some(task(2)));
        assert_eq!(index.take_due(Moment(100)), Some(task(1)));
        assert_eq!(
            (index.take_due(Moment(1000)), index.is_empty()),
            (None, true)
        );
        index.arm(task(1), Moment(400));
        index.disarm(task(1));
        index.disarm(task(1));
        assert_eq!(index.next(), None);
    }
}
