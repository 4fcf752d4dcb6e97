//! Decides which relay may give orders. Within one incarnation of the relay's data a lower
//! epoch belongs to a relay that was replaced; an incarnation that was followed by another one
//! is data that was replaced by a restore. The decision is pure; a small file stores its state,
//! so that a restarted daemon still refuses replaced relays.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::storage::daemon_storage::StorageError;

/// In the data directory.
pub(crate) const RELAY_EPOCHS_FILE: &str = "relay-epochs";
/// The most incarnations that are remembered as ended. A restore is rare.
const ENDED_INCARNATIONS_MAX: usize = 64;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct RelayEpochs {
    incarnation: String,
    epoch: u64,
    over: VecDeque<String>,
    #[serde(skip)]
    is_unsaved: bool,
}

impl RelayEpochs {
    /// Records the origin of a frame. False: it comes from a replaced relay.
    pub(crate) fn admit(&mut self, incarnation: &str, epoch: u64) -> bool {
        if self.over.iter().any(|over| over == incarnation) {
            return false;
        }
        if self.incarnation != incarnation {
            let before = std::mem::replace(&mut self.incarnation, incarnation.to_owned());
            if !before.is_empty() {
                self.over.push_back(before);
                if self.over.len() > ENDED_INCARNATIONS_MAX {
                    self.over.pop_front();
                }
            }
            (self.epoch, self.is_unsaved) = (epoch, true);
            return true;
        }
        let current = epoch >= self.epoch;
        self.is_unsaved |= epoch > self.epoch;
        self.epoch = self.epoch.max(epoch);
        current
    }

    pub(crate) fn incarnation(&self) -> &str {
        &self.incarnation
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The disk did not store the state before, and may now.
    pub(crate) fn mark_unsaved(&mut self) {
        self.is_unsaved = !self.incarnation.is_empty();
    }

    pub(crate) fn has_unsaved(&self) -> bool {
        self.is_unsaved
    }

    /// The contents of the file, once after each change.
    pub(crate) fn take_unsaved(&mut self) -> Option<String> {
        std::mem::take(&mut self.is_unsaved)
            .then(|| toml::to_string(self).ok())
            .flatten()
    }
}

/// The state that an earlier run of this daemon stored.
pub(crate) fn read_relay_epochs(data_dir: &Path) -> Result<RelayEpochs, StorageError> {
    let path = data_dir.join(RELAY_EPOCHS_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => toml::from_str(&text).map_err(|error| StorageError::Epochs {
            path,
            message: error.message().to_owned(),
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(RelayEpochs::default()),
        Err(source) => Err(StorageError::Directory { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::atomic_file;

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
    fn a_restarted_daemon_still_refuses_replaced_relays() {
        let dir = tempfile::tempdir().unwrap();
        let mut epochs = read_relay_epochs(dir.path()).unwrap();
        assert_eq!(epochs.take_unsaved(), None);
        assert!(epochs.admit("a", 3) && epochs.admit("b\n\"", 7));
        atomic_file::write(
            dir.path(),
            RELAY_EPOCHS_FILE,
            &epochs.take_unsaved().unwrap(),
        )
        .unwrap();
        assert!(epochs.admit("b\n\"", 7) && !epochs.has_unsaved());
        epochs.mark_unsaved();
        assert!(epochs.take_unsaved().is_some());
        let mut next = read_relay_epochs(dir.path()).unwrap();
        assert!(!next.admit("a", 4) && !next.admit("b\n\"", 6));
        assert_eq!(next.take_unsaved(), None, "nothing changed");
        assert!(next.admit("b\n\"", 8) && next.has_unsaved());
        std::fs::write(dir.path().join(RELAY_EPOCHS_FILE), "epoch = [").unwrap();
        let error = read_relay_epochs(dir.path()).unwrap_err().to_string();
        assert!(error.contains("relay-epochs is damaged"), "{error}");
    }

    #[test]
    fn the_oldest_incarnation_is_dropped_first() {
        let mut epochs = RelayEpochs::default();
        let last = ENDED_INCARNATIONS_MAX + 1;
        for number in 0..=last {
            assert!(epochs.admit(&number.to_string(), 1));
        }
        for number in 1..last {
            assert!(!epochs.admit(&number.to_string(), 9), "{number}");
        }
        assert!(epochs.admit("0", 1));
    }
}
