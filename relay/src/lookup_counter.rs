//! Counters of lookups caused by client calls: records read from the store and requests sent to
//! the core. A call that is rejected for its shape must not change them; tests check this.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Lookup counters. Clones share the same counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct LookupCounter(Arc<LookupCounts>);

#[derive(Debug, Default)]
struct LookupCounts {
    records: AtomicU64,
    requests: AtomicU64,
}

impl LookupCounter {
    /// Counts one read of a record or of a page of records.
    pub(crate) fn count_record(&self) {
        self.0.records.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one request to the core, which looks up the task and checks the caller's proof.
    pub(crate) fn count_request(&self) {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// The totals, by kind of lookup.
    pub(crate) fn totals(&self) -> [(&'static str, u64); 2] {
        let LookupCounts { records, requests } = &*self.0;
        [("record", records), ("request", requests)]
            .map(|(what, count)| (what, count.load(Ordering::Relaxed)))
    }
}
