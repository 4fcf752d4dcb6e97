//! How large the store is: what its records amount to, and what its files take. The two differ, because sled writes a
//! log and cleans it up later; retention needs both.

use std::fs;
use std::ops::Bound;
use std::path::Path;

use super::store_paths::StorePaths;
use super::tree_walk::TreeWalk;
use crate::store::reader::disk_error;
use crate::store::records::tree::entry_bytes;
use crate::store::{KeyRange, Store, StoreReadError};

/// Records between two looks at whether the count should go on.
const RECORDS_PER_CHECK: u64 = 1_024;

/// The sum of all records at one time. It stays right: the store knows by how much its records have grown since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordByteCount {
    bytes: i64,
    grown: i64,
}

impl Store {
    /// Walks all records, which takes as long as reading them does. `go_on` is asked now and then; `None` if it said no.
    pub fn count_record_bytes(
        &self,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Option<RecordByteCount>, StoreReadError> {
        let records = &self.shared.disk.records;
        let grown = records.growth_bytes();
        let all = (
            Bound::Included(Vec::new()),
            Bound::Excluded(KeyRange::everything().end),
        );
        let mut walk = TreeWalk::new(&records.tree, all, false);
        let (mut bytes, mut met) = (0, 0_u64);
        while let Some(item) = walk.next().map_err(disk_error)? {
            let Ok((key, value)) = item else { continue };
            bytes += entry_bytes(key.len(), value.len());
            met += 1;
            if met % RECORDS_PER_CHECK == 0 && !go_on() {
                return Ok(None);
            }
        }
        Ok(Some(RecordByteCount { bytes, grown }))
    }

    /// Bytes of keys and values now.
    pub fn record_bytes(&self, since: RecordByteCount) -> u64 {
        let grown = self.shared.disk.records.growth_bytes() - since.grown;
        u64::try_from(since.bytes + grown).unwrap_or(0)
    }

    pub fn file_bytes(&self) -> u64 {
        file_bytes(&self.shared.config.dir)
    }
}

/// What the files of the database in a store's directory take on the disk; nothing if there is none.
pub fn file_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(StorePaths::in_dir(dir).sled) else {
        return 0;
    };
    // sled replaces its snapshots while we look.
    let sizes = entries.flatten().filter_map(|entry| entry.metadata().ok());
    sizes.map(|file| file.len()).sum()
}
