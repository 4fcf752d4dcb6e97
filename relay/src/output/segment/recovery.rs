//! Recovery: reads what the segment files contain, from the saved contents of closed segments
//! or by a scan, and prepares the last segment for writing.
//!
//! Bytes that were never acknowledged are truncated. Acknowledged bytes that cannot be read are
//! counted and become a cut for readers, so no loss goes unreported.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::extent::SegmentContents;
use super::file::{
    ActiveSegment, SEGMENT_HEADER, SegmentIdentity, SegmentInfo, SegmentTable, index_path,
    segment_path, sync_dir,
};
use super::frame::{ScannedFrame, SegmentFrameScan, checksum, u32_at};
use crate::output::attempt::attempt_output::SealPhase;
use crate::output::attempt::index::OutputIndex;
use crate::output::error::OutputError;
use crate::output::{OutputConfig, OutputRecovery};

const INDEX_MAGIC: &[u8; 8] = b"BTNIDX01";

/// The content of an index file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedIndex {
    pub(crate) salt: u32,
    pub(crate) len: u64,
    pub(crate) closed_at_ms: u64,
    pub(crate) contents: SegmentContents,
}

/// Saves a segment's contents. Best effort and not synced: a missing or torn copy is detected
/// and rebuilt.
pub(crate) fn save_contents(dir: &Path, number: u32, info: SegmentInfo, contents: SegmentContents) {
    let saved = SavedIndex {
        salt: info.salt,
        len: info.len,
        closed_at_ms: info.closed_at_ms.unwrap_or_default(),
        contents,
    };
    let written = postcard::to_stdvec(&saved)
        .map_err(io::Error::other)
        .and_then(|body| {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(index_path(dir, number))?;
            let sum = checksum(0, &[&body]).to_le_bytes();
            io::Write::write_all(&mut file, &[&INDEX_MAGIC[..], &sum, &body].concat())
        });
    if let Err(error) = written {
        tracing::warn!(number, %error, "saving the index of an output segment failed; the next start rebuilds it");
    }
}

pub(crate) fn load_contents(dir: &Path, number: u32) -> Option<SavedIndex> {
    let raw = std::fs::read(index_path(dir, number)).ok()?;
    let (head, body) = raw.split_at_checked(INDEX_MAGIC.len() + 4)?;
    let intact =
        head.starts_with(INDEX_MAGIC) && u32_at(head, INDEX_MAGIC.len()) == checksum(0, &[body]);
    intact.then(|| postcard::from_bytes(body).ok()).flatten()
}

/// The synced length of a closed segment: everything.
pub(crate) const ALL_SYNCED: u32 = u32::MAX;

/// The result of scanning a segment.
pub(crate) struct SegmentSurvey {
    pub(crate) contents: SegmentContents,
    /// Everything from here on was never acknowledged.
    end: u32,
    corrupt: u64,
}

struct SegmentRecovery<'a> {
    config: &'a OutputConfig,
    now_wall_ms: u64,
    index: &'a OutputIndex,
    segments: &'a SegmentTable,
    found: OutputRecovery,
}

/// Fills the index and the segment table from the directory, and returns the segment to
/// continue writing.
pub(crate) fn recover(
    config: &OutputConfig,
    now_wall_ms: u64,
    index: &OutputIndex,
    segments: &SegmentTable,
) -> Result<(ActiveSegment, OutputRecovery), OutputError> {
    let dir = &config.dir;
    create_dir(dir).map_err(OutputError::io("create", dir))?;
    let numbers = segment_numbers(dir).map_err(OutputError::io("list", dir))?;
    let mut recovering = SegmentRecovery {
        config,
        now_wall_ms,
        index,
        segments,
        found: OutputRecovery::default(),
    };
    let mut active = None;
    for (at, number) in numbers.iter().enumerate() {
        let path = segment_path(dir, *number);
        let dropped_before = numbers[0] > 1;
        if at + 1 == numbers.len() {
            active = recovering
                .recover_last(*number, dropped_before)
                .map_err(OutputError::io("recover", &path))?;
        } else {
            recovering
                .recover_closed(*number, dropped_before)
                .map_err(OutputError::io("recover", &path))?;
        }
    }
    let active = match active {
        Some(active) => active,
        None => {
            let next = numbers.last().map_or(1, |last| last + 1);
            ActiveSegment::create(dir, next, now_wall_ms)
                .map_err(OutputError::io("create a segment in", dir))?
        }
    };
    segments.set(active.identity.number, active.info());
    Ok((active, recovering.finish()))
}

fn create_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    sync_dir(dir)?;
    dir.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .map_or(Ok(()), sync_dir)
}

pub(crate) fn segment_numbers(dir: &Path) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        let number: Option<u32> = name
            .to_str()
            .and_then(|name| name.strip_suffix(".seg"))
            .and_then(|name| name.parse().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

impl SegmentRecovery<'_> {
    /// Recovers a closed segment from its saved contents if they match, else by a scan, whose
    /// result is saved.
    fn recover_closed(&mut self, number: u32, dropped_before: bool) -> io::Result<()> {
        let dir = &self.config.dir;
        let len = std::fs::metadata(segment_path(dir, number))?.len();
        let saved = load_contents(dir, number).filter(|saved| saved.len == len);
        let saved = match saved {
            Some(saved) => saved,
            None => match self.rebuild(number)? {
                Some(rebuilt) => rebuilt,
                None => return Ok(()),
            },
        };
        self.register_segment(number, &saved);
        self.index
            .absorb_segment(saved.contents, number, dropped_before);
        Ok(())
    }

    fn register_segment(&mut self, number: u32, saved: &SavedIndex) {
        self.found.segments += 1;
        self.found.bytes += saved.len;
        self.segments.set(
            number,
            SegmentInfo {
                salt: saved.salt,
                len: saved.len,
                closed_at_ms: Some(saved.closed_at_ms),
            },
        );
    }

    fn rebuild(&mut self, number: u32) -> io::Result<Option<SavedIndex>> {
        let raw = std::fs::read(segment_path(&self.config.dir, number))?;
        let Some(identity) = SegmentIdentity::decode(&raw) else {
            self.set_damaged_aside(number, &raw)?;
            return Ok(None);
        };
        // Only the last segment can contain unacknowledged bytes.
        let surveyed = survey_segment(&raw, identity, ALL_SYNCED);
        self.found.corrupt_frames += surveyed.corrupt;
        self.found.indexes_rebuilt += 1;
        let info = SegmentInfo {
            salt: identity.salt,
            len: raw.len() as u64,
            closed_at_ms: Some(self.now_wall_ms),
        };
        save_contents(&self.config.dir, number, info, surveyed.contents.clone());
        Ok(Some(SavedIndex {
            salt: info.salt,
            len: info.len,
            closed_at_ms: self.now_wall_ms,
            contents: surveyed.contents,
        }))
    }

    /// Without its header a segment cannot be checked, so none of its output is shown. The file
    /// is kept for an operator.
    fn set_damaged_aside(&mut self, number: u32, raw: &[u8]) -> io::Result<()> {
        let path = segment_path(&self.config.dir, number);
        if raw.len() <= SEGMENT_HEADER as usize {
            // Created but not yet written when the relay stopped.
            self.found.torn_bytes += raw.len() as u64;
            return std::fs::remove_file(path);
        }
        self.found.corrupt_frames += 1;
        tracing::error!(
            number,
            "output segment has a damaged header; renamed to .bad"
        );
        std::fs::rename(&path, path.with_extension("bad"))
    }

    /// Recovers the last segment: always scanned, truncated after the last valid frame, synced,
    /// and continued.
    fn recover_last(
        &mut self,
        number: u32,
        dropped_before: bool,
    ) -> io::Result<Option<ActiveSegment>> {
        let path = segment_path(&self.config.dir, number);
        let raw = std::fs::read(&path)?;
        let Some(identity) = SegmentIdentity::decode(&raw) else {
            self.set_damaged_aside(number, &raw)?;
            return Ok(None);
        };
        let surveyed = survey_segment(&raw, identity, identity.synced(&raw));
        let file = truncate_and_sync(&path, raw.len(), surveyed.end)?;
        self.found.torn_bytes += (raw.len() as u64).saturating_sub(u64::from(surveyed.end));
        self.found.corrupt_frames += surveyed.corrupt;
        self.found.segments += 1;
        self.found.bytes += u64::from(surveyed.end);
        self.index
            .absorb_segment(surveyed.contents.clone(), number, dropped_before);
        Ok(Some(ActiveSegment {
            identity,
            file,
            len: surveyed.end,
            contents: surveyed.contents,
        }))
    }

    fn finish(mut self) -> OutputRecovery {
        self.found.attempts = self.index.count();
        self.found.open = self.index.ids(|output| output.phase == SealPhase::Open);
        self.found
    }
}

/// After a kill the tail may be only in the page cache. It counts as durable from here on, so
/// it is synced.
fn truncate_and_sync(path: &Path, len: usize, end: u32) -> io::Result<File> {
    let file = OpenOptions::new().write(true).open(path)?;
    if len as u64 > u64::from(end) {
        file.set_len(u64::from(end))?;
    }
    file.sync_all()?;
    Ok(file)
}

/// Reads all frames. Damage below the synced length is lost data. The first damage above it is
/// where a group was torn; everything after it was never acknowledged, even if it is intact.
pub(crate) fn survey_segment(raw: &[u8], identity: SegmentIdentity, synced: u32) -> SegmentSurvey {
    let frames = || SegmentFrameScan::new(raw, identity.salt, SEGMENT_HEADER as usize);
    let synced_lengths = frames().filter_map(|scanned| match scanned {
        ScannedFrame::Frame(found) => Some(found.synced),
        ScannedFrame::Damaged { .. } => None,
    });
    let synced = synced_lengths.max().unwrap_or(SEGMENT_HEADER).max(synced) as usize;
    let (mut contents, mut corrupt, mut end) = (SegmentContents::default(), 0, raw.len());
    for scanned in frames() {
        let (pos, truncates) = match scanned {
            ScannedFrame::Frame(found) if found.is_payload_intact(raw, identity.salt) => {
                contents.note_frame(identity.number, found.pos as u32, &found.header);
                continue;
            }
            ScannedFrame::Frame(found) => (found.pos, found.pos >= synced),
            // Damage at the end of the file is always truncated. Otherwise the next write would
            // complete a header whose payload is missing.
            ScannedFrame::Damaged { pos, end } => (pos, pos >= synced || end == raw.len()),
        };
        corrupt += u64::from(pos < synced);
        if truncates {
            end = pos;
            break;
        }
        if let ScannedFrame::Frame(found) = scanned {
            contents.note_corrupt(identity.number, pos as u32, &found.header);
        }
    }
    // Intact up to the last frame but shorter than the synced length: the file lost its end.
    corrupt += u64::from(end == raw.len() && end < synced && synced != ALL_SYNCED as usize);
    SegmentSurvey {
        contents,
        end: end as u32,
        corrupt,
    }
}
