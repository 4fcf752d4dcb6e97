//! All stored output, for an export or a verification: beside a running log, or of a directory
//! without one, which is not changed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;

use super::attempt::index::OutputIndex;
use super::error::{OutputError, OutputReadError};
use super::piece::{OutputEnd, OutputPiece};
use super::segment::file::{
    SEGMENT_HEADER, SegmentIdentity, SegmentInfo, SegmentTable, segment_path,
};
use super::segment::recovery::{ALL_SYNCED, load_contents, segment_numbers, survey_segment};
use super::segment_reader::OutputSegmentReader;

#[derive(Clone, Debug)]
pub struct StoredOutput {
    index: Arc<OutputIndex>,
    reader: Arc<OutputSegmentReader>,
}

impl StoredOutput {
    pub(super) fn of_running_log(
        index: Arc<OutputIndex>,
        reader: Arc<OutputSegmentReader>,
    ) -> Self {
        Self { index, reader }
    }

    /// The output in a directory where no log runs; empty if it does not exist. Changes
    /// nothing. Blocks on disk.
    pub fn open_offline(dir: &Path) -> Result<Self, OutputError> {
        let (index, segments) = (
            Arc::new(OutputIndex::new()),
            Arc::new(SegmentTable::new(dir.to_owned())),
        );
        let numbers = match segment_numbers(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other.map_err(OutputError::io("list", dir))?,
        };
        for (at, number) in numbers.iter().enumerate() {
            let (first, last) = (numbers[0], at + 1 == numbers.len());
            absorb_segment(dir, *number, last, first > 1, &index, &segments)
                .map_err(OutputError::io("read", &segment_path(dir, *number)))?;
        }
        let reader = Arc::new(OutputSegmentReader::new(Arc::clone(&index), segments));
        Ok(Self { index, reader })
    }

    /// Every attempt with stored output.
    pub fn attempts(&self) -> Vec<Uuid> {
        self.index.ids(|output| !output.has_no_output())
    }

    pub fn end(&self, attempt: Uuid) -> Option<OutputEnd> {
        self.index.end(attempt)
    }

    /// Durable pieces from `from` on, as `OutputLog::read` returns them.
    pub fn read(
        &self,
        attempt: Uuid,
        from: u64,
        max_bytes: usize,
    ) -> Result<Vec<OutputPiece>, OutputReadError> {
        self.reader.read(attempt, from, max_bytes)
    }
}

/// Segments with damaged headers: those that a start has renamed to `.bad`, and those that it
/// would rename.
pub fn damaged_segments(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut damaged = Vec::new();
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(damaged),
        other => other?,
    };
    for entry in entries {
        let path = entry?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        let bad = match extension {
            Some("bad") => true,
            Some("seg") => has_damaged_header(&path)?,
            Some(_) | None => false,
        };
        if bad {
            damaged.push(path);
        }
    }
    damaged.sort();
    Ok(damaged)
}

/// Whether the header is damaged. A file no longer than its header was created but not yet
/// written.
fn has_damaged_header(path: &Path) -> io::Result<bool> {
    let len = match std::fs::metadata(path) {
        // Retention removed it in between.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?.len(),
    };
    let mut header = Vec::new();
    let file = io::Read::take(std::fs::File::open(path)?, u64::from(SEGMENT_HEADER));
    io::Read::read_to_end(&mut io::BufReader::new(file), &mut header)?;
    Ok(len > u64::from(SEGMENT_HEADER) && SegmentIdentity::decode(&header).is_none())
}

/// Does what a start would do with the segment, without its repairs.
fn absorb_segment(
    dir: &Path,
    number: u32,
    last: bool,
    dropped_before: bool,
    index: &OutputIndex,
    segments: &SegmentTable,
) -> io::Result<()> {
    let path = segment_path(dir, number);
    let len = std::fs::metadata(&path)?.len();
    let saved = load_contents(dir, number).filter(|saved| !last && saved.len == len);
    let (salt, contents) = match saved {
        Some(saved) => (saved.salt, saved.contents),
        None => {
            let raw = std::fs::read(&path)?;
            let Some(identity) = SegmentIdentity::decode(&raw) else {
                return Ok(());
            };
            let synced = if last {
                identity.synced(&raw)
            } else {
                ALL_SYNCED
            };
            (
                identity.salt,
                survey_segment(&raw, identity, synced).contents,
            )
        }
    };
    let info = SegmentInfo {
        salt,
        len,
        closed_at_ms: Some(0),
    };
    segments.set(number, info);
    index.absorb_segment(contents, number, dropped_before);
    Ok(())
}
