//! Segment files: their names, their size, their first bytes.

use std::io;
use std::path::{Path, PathBuf};

/// First bytes of every segment; the digit is the format's number.
pub(super) const MAGIC: [u8; 8] = *b"BTSPOOL1";

/// Payload after which a segment is full.
pub(super) const FULL: u64 = 1024 * 1024;

/// Digits of a name: the largest position has as many, so names sort like positions.
const DIGITS: usize = 20;

pub(super) fn path(directory: &Path, start: u64) -> PathBuf {
    directory.join(format!("{start:0DIGITS$}"))
}

/// Starts of the segments that are there, in their order. Files with other names are not ours.
pub(super) fn list(directory: &Path) -> io::Result<Vec<u64>> {
    let mut starts = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        starts.extend(name.to_str().and_then(parse));
    }
    starts.sort_unstable();
    Ok(starts)
}

fn parse(name: &str) -> Option<u64> {
    let is_name = name.len() == DIGITS && name.bytes().all(|byte| byte.is_ascii_digit());
    is_name.then(|| name.parse().ok())?
}
