//! Counts the records that could not be read since the start, each once. Operators need the
//! number, because lists leave such records out.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::store::{RecordKey, ScannedRecords};
use crate::telemetry::Telemetry;

/// Keys that are tracked individually. Above this the exact number does not matter.
const TRACKED_KEYS_MAX: usize = 100_000;

/// The unreadable records met so far. Clones share one count.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnreadableRecords {
    tracked: Arc<Mutex<UnreadableKeys>>,
    telemetry: Telemetry,
}

#[derive(Debug, Default)]
struct UnreadableKeys {
    keys: HashSet<RecordKey>,
    /// Damaged pages have no key, so this is the largest number that a single scan met.
    pages: u64,
}

impl UnreadableRecords {
    pub(crate) fn new(telemetry: Telemetry) -> Self {
        Self {
            tracked: Arc::default(),
            telemetry,
        }
    }

    /// Counts a record that exists but cannot be read.
    pub(crate) fn add_record(&self, key: &RecordKey) {
        let mut known = self.lock();
        if known.keys.len() < TRACKED_KEYS_MAX && known.keys.insert(key.clone()) {
            self.telemetry.count_unreadable(1);
        }
    }

    /// Counts the records that a scan skipped. Returns the number without a key, so that a
    /// caller with several scans can add them up.
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

    // Each change is complete before a panic can occur, so a poisoned lock is safe to use.
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
    fn each_record_counts_once_and_pages_by_the_largest_scan() {
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
