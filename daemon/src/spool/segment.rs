//! Segment files: their names, size and first bytes.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

/// First bytes of every segment; the digit is the format version.
pub(super) const MAGIC: [u8; 8] = *b"BTSPOOL1";

/// Payload after which a segment is full.
pub(super) const SEGMENT_BYTES: u64 = 1024 * 1024;

/// Digits of a name, as many as the largest position has, so that names sort like positions.
const DIGITS: usize = 20;

pub(super) fn segment_path(directory: &Path, start: u64) -> PathBuf {
    directory.join(format!("{start:0DIGITS$}"))
}

/// Start positions of the existing segments in ascending order. Files with other names are
/// ignored.
pub(super) fn list_segments(directory: &Path) -> io::Result<Vec<u64>> {
    let mut starts = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        starts.extend(segment_start(&entry?.file_name()));
    }
    starts.sort_unstable();
    Ok(starts)
}

/// Whether a file of this name is a segment.
pub(crate) fn is_segment(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.len() == DIGITS && name.iter().all(u8::is_ascii_digit)
}

fn segment_start(name: &OsStr) -> Option<u64> {
    name.to_str().filter(|_| is_segment(name))?.parse().ok()
}
