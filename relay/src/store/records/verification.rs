//! Reads and counts everything that is stored, without changing anything. Works beside a
//! running relay.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::store::config::MAX_VALUE;
use crate::store::journal::entry::{FoundEntry, JournalEntries};
use crate::store::reader::disk_error;
use crate::store::sled::tree_walk::TreeWalk;
use crate::store::{
    CommitSeq, KeyRange, MetaKey, RecordKey, RecordKind, Store, StoreReadError, UnreadableReason,
};

/// Unreadable records that are listed; more are only counted.
const MAX_LISTED_UNREADABLE: usize = 100;
/// Values between two progress reports.
const PROGRESS_INTERVAL: u64 = 1024;

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreVerification {
    /// Readable records of each kind.
    pub records: BTreeMap<RecordKind, u64>,
    /// Bytes of their bodies.
    pub bytes: u64,
    pub unreadable: u64,
    /// The first unreadable records, with their keys if known, and the reason.
    pub listed: Vec<(Option<RecordKey>, String)>,
    /// Complete and broken journal entries.
    pub journal_entries: u64,
    pub broken_journal_entries: u64,
    /// Values longer than sled can store safely; always 0.
    pub too_long: u64,
}

impl Store {
    /// Counts what is on disk. Changes that are still only in the journal count as its entries.
    /// Reads everything.
    pub fn verify(&self) -> Result<StoreVerification, StoreReadError> {
        self.verify_watched(&mut |_| true)
    }

    /// Like `verify`, with progress reports. Ends early, with the result so far, when `proceed`
    /// returns false.
    pub fn verify_watched(
        &self,
        proceed: &mut dyn FnMut(&StoreVerification) -> bool,
    ) -> Result<StoreVerification, StoreReadError> {
        let mut verified = StoreVerification::default();
        if self.verify_records(&mut verified, proceed)? {
            self.verify_journal(&mut verified)?;
        }
        Ok(verified)
    }

    /// Returns false when `proceed` did.
    fn verify_records(
        &self,
        verified: &mut StoreVerification,
        proceed: &mut dyn FnMut(&StoreVerification) -> bool,
    ) -> Result<bool, StoreReadError> {
        let records = &self.shared.disk.records;
        let bounds = (
            Bound::Included(Vec::new()),
            Bound::Excluded(KeyRange::everything().end),
        );
        let mut walk = TreeWalk::new(&records.tree, bounds, false);
        let mut last = None;
        let mut met_values = 0_u64;
        while let Some(item) = walk.next().map_err(disk_error)? {
            met_values += 1;
            if met_values.is_multiple_of(PROGRESS_INTERVAL) && !proceed(verified) {
                return Ok(false);
            }
            let Ok((raw_key, value)) = item else {
                verified.list(None, UnreadableReason::DamagedPage.to_string());
                continue;
            };
            verified.too_long += u64::from(value.len() > MAX_VALUE);
            let scanned = records
                .read_scanned(last.as_deref(), &raw_key, &value)
                .map_err(disk_error)?;
            let Some((key, mut found)) = scanned else {
                continue;
            };
            if found.is_err() {
                // It may be in the middle of being replaced.
                found = self.find(&key)?;
            }
            match (RecordKey::decode(&key), found) {
                (Some(known), Ok(Some(body))) => verified.count(&known, body.len()),
                (Some(_), Ok(None)) => {}
                (None, Ok(_)) => verified.list(None, "its key has an unknown kind".to_owned()),
                (known, Err(why)) => verified.list(known, why.to_string()),
            }
            last = Some(key);
        }
        Ok(true)
    }

    fn verify_journal(&self, verified: &mut StoreVerification) -> Result<(), StoreReadError> {
        let (tree, durable) = (&self.shared.disk.journal, self.durable());
        let mut entries = JournalEntries::all(tree, self.shared.config.schema);
        let mut broken = Vec::new();
        while let Some(scanned) = next(&mut entries)? {
            match scanned.entry {
                Some(_) => verified.journal_entries += 1,
                None => broken.push(scanned.first),
            }
        }
        // Entries outside this range are just being truncated or written.
        let settled = self.applied()?..durable;
        let broken = broken
            .iter()
            .filter(|first| settled.contains(&CommitSeq(first.0.saturating_sub(1))));
        verified.broken_journal_entries = broken.count() as u64 + entries.damaged_pages;
        verified.too_long += entries.too_long;
        Ok(())
    }

    fn applied(&self) -> Result<CommitSeq, StoreReadError> {
        let body = self.get(&RecordKey::Meta(MetaKey::Applied))?;
        let bytes = body.and_then(|body| body.first_chunk().copied());
        Ok(CommitSeq(bytes.map_or(0, u64::from_be_bytes)))
    }
}

fn next(entries: &mut JournalEntries<'_>) -> Result<Option<FoundEntry>, StoreReadError> {
    entries
        .next()
        .map_err(|error| StoreReadError::Disk(error.to_string()))
}

impl StoreVerification {
    fn count(&mut self, key: &RecordKey, bytes: usize) {
        *self.records.entry(key.kind()).or_default() += 1;
        self.bytes += bytes as u64;
    }

    fn list(&mut self, key: Option<RecordKey>, why: String) {
        self.unreadable += 1;
        if self.listed.len() < MAX_LISTED_UNREADABLE {
            self.listed.push((key, why));
        }
    }
}
