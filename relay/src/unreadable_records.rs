//! Records that could not be read since the start, each counted once: for operators, who cannot see what a list leaves out.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::store::{RecordKey, ScannedRecords};
use crate::telemetry::Telemetry;

/// Keys that are told apart; beyond this nobody needs the exact number.
const TRACKED_KEYS_MAX: usize = 100_000;

/// Clones share one count.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnreadableRecords {
    tracked: Arc<Mutex<UnreadableKeys>>,
    telemetry: Telemetry,
}

#[derive(Debug, Default)]
struct UnreadableKeys {
    keys: HashSet<RecordKey>,
    /// Damaged pages have no name: the most that one look met.
    pages: u64,
}

impl UnreadableRecords {
    pub(crate) fn new(telemetry: Telemetry) -> Self {
        Self {
            tracked: Arc::default(),
            telemetry,
        }
    }

    /// A record that is there and means nothing.
    pub(crate) fn add_record(&self, key: &RecordKey) {
        let mut known = self.lock();
        if known.keys.len() < TRACKED_KEYS_MAX && known.keys.insert(key.clone()) {
            self.telemetry.count_unreadable(1);
        }
    }

    /// What one look passed over. Gives the number of those without a name, for a look of several scans.
    pub(crate) fn add_scan(&self, scan: &ScannedRecords) -> u64 {
        let named = scan
            .skipped_records
            .iter()
            .filter_map(|(key, _)| key.as_ref());
        let named = named.inspect(|key| self.add_record(key)).count() as u64;
        let pages = scan.unreadable - named;
        self.add_pages(pages);
        pages
    }

    pub(crate) fn add_pages(&self, pages: u64) {
        let mut known = self.lock();
        if pages > known.pages {
            self.telemetry.count_unreadable(pages - known.pages);
            known.pages = pages;
        }
    }

    pub(crate) fn count(&self) -> u64 {
        let known = self.lock();
        known.keys.len() as u64 + known.pages
    }

    // Every change is complete before a panic can happen.
    fn lock(&self) -> MutexGuard<'_, UnreadableKeys> {
        self.tracked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::store::{KeyText, UnreadableReason};

    #[test]
    fn each_record_counts_once_and_pages_by_the_most_that_were_met() {
        let key = |number| RecordKey::Done {
            tenant: KeyText::new("acme").unwrap(),
            task: Uuid::from_u128(number),
        };
        let unreadables = UnreadableRecords::default();
        let scan = |keys: &[Option<u128>]| ScannedRecords {
            unreadable: keys.len() as u64,
            skipped_records: keys
                .iter()
                .map(|number| (number.map(key), UnreadableReason::Checksum))
                .collect(),
            ..ScannedRecords::default()
        };
        unreadables.add_scan(&scan(&[Some(1), None, Some(2), None]));
        unreadables.add_scan(&scan(&[Some(2), Some(3), None]));
        unreadables.add_record(&key(1));
        assert_eq!(unreadables.count(), 3 + 2);
        let counted = unreadables.telemetry.snapshot();
        assert_eq!(counted.values().sum::<u64>(), 5);
    }
}
