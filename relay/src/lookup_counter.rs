//! How often clients' calls made the relay look something up: a record in the store, or what the core holds. What is refused
//! for its shape must not move these numbers, and tests hold it to that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct LookupCounter(Arc<LookupCounts>);

#[derive(Debug, Default)]
struct LookupCounts {
    records: AtomicU64,
    requests: AtomicU64,
}

impl LookupCounter {
    /// A record, or a page of them, is read.
    pub(crate) fn count_record(&self) {
        self.0.records.fetch_add(1, Ordering::Relaxed);
    }

    /// The core is asked: it finds the task, and judges the proof.
    pub(crate) fn count_request(&self) {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// By what was looked at.
    pub(crate) fn totals(&self) -> [(&'static str, u64); 2] {
        let LookupCounts { records, requests } = &*self.0;
        [("record", records), ("request", requests)]
            .map(|(what, count)| (what, count.load(Ordering::Relaxed)))
    }
}
