//! How large the store is: what its records amount to, and what its files take. The two differ, because sled writes a
//! log and cleans it up later; retention needs both.

use std::fs;
use std::io;
use std::ops::Bound;

use super::preflight::Places;
use super::reader::disk_error;
use super::records::weight;
use super::walk::Walk;
use super::{KeyRange, ReadError, Store};

/// Records between two looks at whether the count should go on.
const STEP: u64 = 1_024;

/// The sum of all records at one time. It stays right: the store knows by how much its records have grown since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    bytes: i64,
    grown: i64,
}

impl Store {
    /// Walks all records, which takes as long as reading them does. `go_on` is asked now and then; `None` if it said no.
    pub fn weigh(&self, mut go_on: impl FnMut() -> bool) -> Result<Option<Weight>, ReadError> {
        let records = &self.shared.disk.records;
        let grown = records.grown();
        let all = (
            Bound::Included(Vec::new()),
            Bound::Excluded(KeyRange::everything().end),
        );
        let mut walk = Walk::new(&records.tree, all, false);
        let (mut bytes, mut met) = (0, 0_u64);
        while let Some(item) = walk.next().map_err(disk_error)? {
            let Ok((key, value)) = item else { continue };
            bytes += weight(key.len(), value.len());
            met += 1;
            if met % STEP == 0 && !go_on() {
                return Ok(None);
            }
        }
        Ok(Some(Weight { bytes, grown }))
    }

    /// Bytes of keys and values now.
    pub fn record_bytes(&self, since: Weight) -> u64 {
        let grown = self.shared.disk.records.grown() - since.grown;
        u64::try_from(since.bytes + grown).unwrap_or(0)
    }

    /// What the database's files take on the disk.
    pub fn file_bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for entry in fs::read_dir(Places::under(&self.shared.config.dir).sled)? {
            // sled replaces its snapshots while we look.
            bytes += entry?.metadata().map_or(0, |file| file.len());
        }
        Ok(bytes)
    }
}
