//! Records that could not be read since the start, each counted once: for operators, who cannot see what a list leaves out.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::store::{Key, Scan};
use crate::telemetry::Telemetry;

/// Keys that are told apart; beyond this nobody needs the exact number.
const REMEMBERED: usize = 100_000;

/// Clones share one count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unreadables {
    known: Arc<Mutex<Known>>,
    telemetry: Telemetry,
}

#[derive(Debug, Default)]
struct Known {
    keys: HashSet<Key>,
    /// Damaged pages have no name: the most that one look met.
    pages: u64,
}

impl Unreadables {
    pub(crate) fn new(telemetry: Telemetry) -> Self {
        Self {
            known: Arc::default(),
            telemetry,
        }
    }

    /// A record that is there and means nothing.
    pub(crate) fn record(&self, key: &Key) {
        let mut known = self.lock();
        if known.keys.len() < REMEMBERED && known.keys.insert(key.clone()) {
            self.telemetry.unreadable(1);
        }
    }

    /// What one look passed over. Gives the number of those without a name, for a look of several scans.
    pub(crate) fn scan(&self, scan: &Scan) -> u64 {
        let named = scan.passed_over.iter().filter_map(|(key, _)| key.as_ref());
        let named = named.inspect(|key| self.record(key)).count() as u64;
        let pages = scan.unreadable - named;
        self.pages(pages);
        pages
    }

    pub(crate) fn pages(&self, pages: u64) {
        let mut known = self.lock();
        if pages > known.pages {
            self.telemetry.unreadable(pages - known.pages);
            known.pages = pages;
        }
    }

    pub(crate) fn count(&self) -> u64 {
        let known = self.lock();
        known.keys.len() as u64 + known.pages
    }

    // Every change is complete before a panic can happen.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::store::{KeyText, Unreadable};

    #[test]
    fn each_record_counts_once_and_pages_by_the_most_that_were_met() {
        let key = |number| Key::Done {
            tenant: KeyText::new("acme").unwrap(),
            task: Uuid::from_u128(number),
        };
        let unreadables = Unreadables::default();
        let scan = |keys: &[Option<u128>]| Scan {
            unreadable: keys.len() as u64,
            passed_over: keys
                .iter()
                .map(|number| (number.map(key), Unreadable::Checksum))
                .collect(),
            ..Scan::default()
        };
        unreadables.scan(&scan(&[Some(1), None, Some(2), None]));
        unreadables.scan(&scan(&[Some(2), Some(3), None]));
        unreadables.record(&key(1));
        assert_eq!(unreadables.count(), 3 + 2);
        let counted = unreadables.telemetry.snapshot();
        assert_eq!(counted.values().sum::<u64>(), 5);
    }
}
