//! Which relay may give orders. Pure. Within one incarnation of the relay's data a lower epoch is a relay
//! that was replaced; an incarnation that another one followed is data that was restored over.

use std::collections::VecDeque;

/// Incarnations that are remembered as over. A restore is rare.
const REMEMBERED: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct RelayEpochs {
    incarnation: String,
    epoch: u64,
    over: VecDeque<String>,
}

impl RelayEpochs {
    /// Takes note of a frame's origin. False: it comes from a relay of the past.
    pub(crate) fn admit(&mut self, incarnation: &str, epoch: u64) -> bool {
        if self.over.iter().any(|over| over == incarnation) {
            return false;
        }
        if self.incarnation != incarnation {
            let before = std::mem::replace(&mut self.incarnation, incarnation.to_owned());
            if !before.is_empty() {
                self.over.push_back(before);
                if self.over.len() > REMEMBERED {
                    self.over.pop_front();
                }
            }
            self.epoch = epoch;
            return true;
        }
        let current = epoch >= self.epoch;
        self.epoch = self.epoch.max(epoch);
        current
    }

    pub(crate) fn incarnation(&self) -> &str {
        &self.incarnation
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_relays_and_restored_over_data_are_refused() {
        let mut epochs = RelayEpochs::default();
        assert!(epochs.admit("a", 3));
        assert!(epochs.admit("a", 3) && epochs.admit("a", 4));
        assert!(!epochs.admit("a", 3));
        assert!(epochs.admit("b", 1));
        assert!(!epochs.admit("a", 9));
        assert_eq!((epochs.incarnation(), epochs.epoch()), ("b", 1));
    }

    #[test]
    fn of_many_incarnations_the_oldest_is_forgotten_first() {
        let mut epochs = RelayEpochs::default();
        let last = REMEMBERED + 1;
        for number in 0..=last {
            assert!(epochs.admit(&number.to_string(), 1));
        }
        for number in 1..last {
            assert!(!epochs.admit(&number.to_string(), 9), "{number}");
        }
        assert!(epochs.admit("0", 1));
    }
}
