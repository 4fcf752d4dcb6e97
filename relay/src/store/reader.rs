//! The reading half of the store: first the overlay, then the records. Cheap to clone, usable
//! from any thread.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

use super::journal::committer::StoreShared;
use super::records::tree::RecordLookup;
use super::records::value::chunk_key;
use super::sled::tree_walk::TreeWalk;
use super::{
    CommitSeq, KeyRange, KeyText, OpenedStore, RecordKey, ScanPage, ScannedRecords, StoreConfig,
    StoreOpenError, StoreReadError, StoreStopped, UnreadableReason,
};

/// Overlay entries read in one step of a scan.
const OVERLAY_PAGE: usize = 256;
/// Unreadable records listed for one page of a scan; more are only counted.
const MAX_LISTED_UNREADABLE: usize = 1_000;

#[derive(Clone, Debug)]
pub struct Store {
    pub(super) shared: Arc<StoreShared>,
    durable: watch::Receiver<CommitSeq>,
}

/// The part of a range that one step reads; both ends are encoded keys.
#[derive(Clone, Debug)]
struct ScanWindow {
    low: Bound<Bytes>,
    high: Bound<Bytes>,
}

impl Store {
    /// Opens a store. Blocks for as long as recovery takes; call it before serving.
    pub fn open(config: StoreConfig) -> Result<OpenedStore, StoreOpenError> {
        super::startup::open_store(config)
    }

    pub(super) fn new(shared: Arc<StoreShared>, durable: watch::Receiver<CommitSeq>) -> Self {
        Self { shared, durable }
    }

    /// The newest value, durable or not. May read the disk.
    pub fn get(&self, key: &RecordKey) -> Result<Option<Bytes>, StoreReadError> {
        let unreadable = |why| StoreReadError::Unreadable {
            key: key.clone(),
            why,
        };
        self.find(&key.encode())?.map_err(unreadable)
    }

    /// The newest append. Reads that begin now see everything up to it.
    pub fn appended(&self) -> CommitSeq {
        self.shared.overlay.last()
    }

    /// Everything up to this number is durable.
    pub fn durable(&self) -> CommitSeq {
        *self.durable.borrow()
    }

    /// A channel with [`Store::durable`]. It closes when the store stops.
    pub fn subscribe(&self) -> watch::Receiver<CommitSeq> {
        self.durable.clone()
    }

    /// Waits until `seq` is durable.
    pub async fn wait_durable(&self, seq: CommitSeq) -> Result<(), StoreStopped> {
        let mut durable = self.durable.clone();
        durable
            .wait_for(|durable| *durable >= seq)
            .await
            .map(|_| ())
            .map_err(|_| StoreStopped)
    }

    /// One page of a range with the newest values. Unreadable records are counted and skipped.
    /// May read the disk.
    pub fn scan(
        &self,
        range: &KeyRange,
        page: &ScanPage,
    ) -> Result<ScannedRecords, StoreReadError> {
        let mut scan = ScannedRecords::default();
        let mut rest = Some(ScanWindow::of(range, page));
        while let Some(window) = rest {
            let step = self
                .shared
                .overlay
                .page(window.bounds(), page.reverse, OVERLAY_PAGE);
            let cursor = (step.len() == OVERLAY_PAGE).then(|| step[OVERLAY_PAGE - 1].0.clone());
            let (current, remaining) = window.split(cursor, page.reverse);
            let mut merge = ScanMerge {
                store: self,
                scan: &mut scan,
                limit: page.limit,
            };
            if !merge.run(&current, step, page.reverse)? {
                break;
            }
            rest = remaining;
        }
        Ok(scan)
    }

    /// Every tenant that has a record, in order, without reading its records.
    pub fn tenants(&self) -> Result<Vec<KeyText>, StoreReadError> {
        let mut tenants: Vec<KeyText> = Vec::new();
        loop {
            let last = tenants.last().map_or("", KeyText::as_str);
            let range = KeyRange::after_tenant(last);
            let scan = self.scan(&range, &ScanPage::first(1))?;
            let Some((key, _)) = scan.entries.first() else {
                return Ok(tenants);
            };
            let tenant = KeyText::new(key.tenant());
            tenants.push(tenant.expect("relay-wide keys sort before this range"));
        }
    }

    /// Reads a record, up to three times. A record that is being replaced looks torn for a
    /// moment; after that it is in the overlay or complete on disk.
    pub(super) fn find(&self, key: &[u8]) -> Result<RecordLookup, StoreReadError> {
        let mut found = self.newest(key)?;
        for _ in 0..2 {
            if found.is_ok() {
                break;
            }
            found = self.newest(key)?;
        }
        Ok(found)
    }

    fn newest(&self, key: &[u8]) -> Result<RecordLookup, StoreReadError> {
        match self.shared.overlay.get(key) {
            Some(slot) => Ok(Ok(slot.body)),
            None => self.shared.disk.records.get(key).map_err(disk_error),
        }
    }
}

/// Merges the overlay and the records of one window in key order.
struct ScanMerge<'a> {
    store: &'a Store,
    scan: &'a mut ScannedRecords,
    limit: usize,
}

impl ScanMerge<'_> {
    /// Returns false when the page is full.
    fn run(
        &mut self,
        window: &ScanWindow,
        memory: Vec<(Bytes, super::journal::overlay::OverlayValue)>,
        reverse: bool,
    ) -> Result<bool, StoreReadError> {
        let records = &self.store.shared.disk.records;
        let mut memory = memory.into_iter().peekable();
        let mut disk = TreeWalk::new(&records.tree, window.chunk_bounds(), reverse);
        let mut last: Option<Bytes> = None;
        while let Some(item) = disk.next().map_err(disk_error)? {
            let Ok((raw_key, value)) = item else {
                self.skip_unreadable(None, UnreadableReason::DamagedPage);
                continue;
            };
            let scanned = records
                .read_scanned(last.as_deref(), &raw_key, &value)
                .map_err(disk_error)?;
            let Some((key, found)) = scanned else {
                continue;
            };
            let before = |other: &Bytes| if reverse { *other > key } else { *other < key };
            while let Some((key, slot)) = memory.next_if(|(other, _)| before(other)) {
                if !self.add(&key, Ok(slot.body)) {
                    return Ok(false);
                }
            }
            let found = match memory.next_if(|(other, _)| *other == key) {
                Some((_, slot)) => Ok(slot.body),
                None if found.is_err() => self.store.find(&key)?,
                None => found,
            };
            if !self.add(&key, found) {
                return Ok(false);
            }
            last = Some(key);
        }
        Ok(memory.all(|(key, slot)| self.add(&key, Ok(slot.body))))
    }

    /// Adds one record; false if the page was full already.
    fn add(&mut self, key: &[u8], found: RecordLookup) -> bool {
        let entry = match found {
            Ok(None) => return true,
            Ok(Some(body)) => RecordKey::decode(key)
                .map(|key| (key, body))
                .ok_or(UnreadableReason::Short),
            Err(why) => Err(why),
        };
        if self.scan.entries.len() >= self.limit {
            self.scan.has_more = true;
            return false;
        }
        match entry {
            Ok(entry) => self.scan.entries.push(entry),
            Err(why) => self.skip_unreadable(RecordKey::decode(key), why),
        }
        true
    }

    fn skip_unreadable(&mut self, key: Option<RecordKey>, why: UnreadableReason) {
        tracing::error!(?key, %why, "skipping an unreadable record");
        self.scan.unreadable += 1;
        if self.scan.skipped_records.len() < MAX_LISTED_UNREADABLE {
            self.scan.skipped_records.push((key, why));
        }
    }
}

impl ScanWindow {
    fn of(range: &KeyRange, page: &ScanPage) -> Self {
        let mut window = Self {
            low: Bound::Included(range.start.clone().into()),
            high: Bound::Excluded(range.end.clone().into()),
        };
        let after = page.after.as_ref().map(|key| Bytes::from(key.encode()));
        // A start key outside the range leaves the range unchanged on one side and empty on the
        // other.
        match after {
            Some(key) if page.reverse => {
                window.high = Bound::Excluded(key.min(range.end.clone().into()));
            }
            Some(key) if *key >= *range.start => window.low = Bound::Excluded(key),
            Some(_) | None => {}
        }
        window
    }

    fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        if self.is_empty() {
            return (Bound::Included(&[]), Bound::Excluded(&[]));
        }
        (
            self.low.as_ref().map(|key| &**key),
            self.high.as_ref().map(|key| &**key),
        )
    }

    fn is_empty(&self) -> bool {
        let key = |bound: &Bound<Bytes>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => key.clone(),
            Bound::Unbounded => Bytes::new(),
        };
        key(&self.low) >= key(&self.high)
    }

    /// Splits the window after `cursor`. Without a cursor the first part is everything.
    fn split(self, cursor: Option<Bytes>, reverse: bool) -> (Self, Option<Self>) {
        match cursor {
            None => (self, None),
            Some(key) if reverse => (
                Self {
                    low: Bound::Included(key.clone()),
                    high: self.high,
                },
                Some(Self {
                    low: self.low,
                    high: Bound::Excluded(key),
                }),
            ),
            Some(key) => (
                Self {
                    low: self.low,
                    high: Bound::Included(key.clone()),
                },
                Some(Self {
                    low: Bound::Excluded(key),
                    high: self.high,
                }),
            ),
        }
    }

    /// The same window for chunk keys. The chunks of a record follow its key directly.
    fn chunk_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let low = match &self.low {
            Bound::Included(key) => Bound::Included(key.to_vec()),
            Bound::Excluded(key) => Bound::Excluded(chunk_key(key, u16::MAX)),
            Bound::Unbounded => Bound::Unbounded,
        };
        let high = match &self.high {
            Bound::Included(key) => Bound::Included(chunk_key(key, u16::MAX)),
            Bound::Excluded(key) => Bound::Excluded(key.to_vec()),
            Bound::Unbounded => Bound::Unbounded,
        };
        (low, high)
    }
}

pub(super) fn disk_error(error: sled::Error) -> StoreReadError {
    StoreReadError::Disk(error.to_string())
}
