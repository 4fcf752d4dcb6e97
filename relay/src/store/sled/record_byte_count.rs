//! The size of the store: the bytes of its records and of its files. The two differ, because
//! sled writes a log and cleans it later; retention needs both.

use std::fs;
use std::ops::Bound;
use std::path::Path;

use super::store_paths::StorePaths;
use super::tree_walk::TreeWalk;
use crate::store::reader::disk_error;
use crate::store::records::tree::entry_bytes;
use crate::store::{KeyRange, Store, StoreReadError};

/// Records between two checks whether to continue.
const RECORDS_PER_CHECK: u64 = 1_024;

/// The size of all records at one time. It stays current, because the store counts the growth
/// since then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordByteCount {
    bytes: i64,
    grown: i64,
}

impl Store {
    /// Counts all records, which takes as long as reading them. Stops and returns `None` when
    /// `proceed` returns false.
    pub fn count_record_bytes(
        &self,
        mut proceed: impl FnMut() -> bool,
    ) -> Result<Option<RecordByteCount>, StoreReadError> {
        let records = &self.shared.disk.records;
        let grown = records.growth_bytes();
        let all = (
            Bound::Included(Vec::new()),
            Bound::Excluded(KeyRange::everything().end),
        );
        let mut walk = TreeWalk::new(&records.tree, all, false);
        let (mut bytes, mut records_read) = (0, 0_u64);
        while let Some(item) = walk.next().map_err(disk_error)? {
            let Ok((key, value)) = item else { continue };
            bytes += entry_bytes(key.len(), value.len());
            records_read += 1;
            if records_read % RECORDS_PER_CHECK == 0 && !proceed() {
                return Ok(None);
            }
        }
        Ok(Some(RecordByteCount { bytes, grown }))
    }

    /// The present size of keys and values.
    pub fn record_bytes(&self, since: RecordByteCount) -> u64 {
        let grown = self.shared.disk.records.growth_bytes() - since.grown;
        u64::try_from(since.bytes + grown).unwrap_or(0)
    }

    pub fn file_bytes(&self) -> u64 {
        file_bytes(&self.shared.config.dir)
    }
}

/// Bytes on disk of the database files in a store's directory; 0 if there are none.
pub fn file_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(StorePaths::in_dir(dir).sled) else {
        return 0;
    };
    // sled may replace its snapshots meanwhile.
    let sizes = entries.flatten().filter_map(|entry| entry.metadata().ok());
    sizes.map(|file| file.len()).sum()
}
