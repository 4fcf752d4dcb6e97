//! Segment files: their names, the file header, the segment being written, and the shared read
//! handles.
//!
//! A segment starts with 64 bytes: identity and salt, then a small slot with the number of
//! synced bytes. The slot is written after each sync without waiting for it. It may lag behind,
//! but it is never ahead.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::extent::SegmentContents;
use super::frame::{checksum, u32_at, u64_at};

pub(crate) const SEGMENT_HEADER: u32 = 64;
const MAGIC: &[u8; 8] = b"BTNSEG01";
const SYNCED_SLOT_OFFSET: u64 = 32;
/// Read handles kept open; other segments are opened again when needed.
const OPEN_FILES: usize = 32;
/// The most slices that Linux accepts in one vectored write.
const IOV_MAX: usize = 1024;

pub(crate) fn segment_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{number:08}.seg"))
}

pub(crate) fn index_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{number:08}.idx"))
}

/// Makes file names in the directory durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentIdentity {
    pub(crate) number: u32,
    pub(crate) salt: u32,
    pub(crate) created_at_ms: u64,
}

impl SegmentIdentity {
    fn encode(&self) -> [u8; SEGMENT_HEADER as usize] {
        let mut raw = [0; SEGMENT_HEADER as usize];
        raw[0..8].copy_from_slice(MAGIC);
        raw[8..12].copy_from_slice(&self.number.to_le_bytes());
        raw[12..16].copy_from_slice(&self.salt.to_le_bytes());
        raw[16..24].copy_from_slice(&self.created_at_ms.to_le_bytes());
        let sum = checksum(0, &[&raw[0..24]]);
        raw[24..28].copy_from_slice(&sum.to_le_bytes());
        raw
    }

    pub(crate) fn decode(raw: &[u8]) -> Option<Self> {
        let raw = raw.get(..SEGMENT_HEADER as usize)?;
        let intact = &raw[0..8] == MAGIC && checksum(0, &[&raw[0..24]]) == u32_at(raw, 24);
        intact.then(|| Self {
            number: u32_at(raw, 8),
            salt: u32_at(raw, 12),
            created_at_ms: u64_at(raw, 16),
        })
    }

    /// The lower bound of synced bytes, from the slot.
    pub(crate) fn synced(&self, raw: &[u8]) -> u32 {
        let at = usize::try_from(SYNCED_SLOT_OFFSET).expect("small");
        let intact = checksum(self.salt, &[&raw[at..at + 4]]) == u32_at(raw, at + 4);
        if intact {
            u32_at(raw, at)
        } else {
            SEGMENT_HEADER
        }
    }
}

/// The segment that grows. Owned by the writer.
#[derive(Debug)]
pub(crate) struct ActiveSegment {
    pub(crate) identity: SegmentIdentity,
    pub(crate) file: File,
    pub(crate) len: u32,
    pub(crate) contents: SegmentContents,
}

impl ActiveSegment {
    pub(crate) fn create(dir: &Path, number: u32, now_wall_ms: u64) -> io::Result<Self> {
        let identity = SegmentIdentity {
            number,
            salt: rand::random(),
            created_at_ms: now_wall_ms,
        };
        let path = segment_path(dir, number);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        let created = file
            .write_all_at(&identity.encode(), 0)
            .and_then(|()| sync_dir(dir));
        if created.is_err() {
            // A leftover file would block the next attempt to create it. If the removal fails
            // too, that attempt returns the error.
            drop(std::fs::remove_file(&path));
        }
        created.map(|()| Self {
            identity,
            file,
            len: SEGMENT_HEADER,
            contents: SegmentContents::default(),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == SEGMENT_HEADER
    }

    pub(crate) fn info(&self) -> SegmentInfo {
        SegmentInfo {
            salt: self.identity.salt,
            len: u64::from(self.len),
            closed_at_ms: None,
        }
    }

    /// Writes after the known end. After an error the file may be longer than `len`; see
    /// `truncate_to_len`.
    pub(crate) fn write(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<u64> {
        let mut at = u64::from(self.len);
        while !slices.is_empty() {
            let some = slices.len().min(IOV_MAX);
            let written = match rustix::io::pwritev(&self.file, &slices[..some], at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            at += written as u64;
            IoSlice::advance_slices(&mut slices, written);
        }
        Ok(at)
    }

    pub(crate) fn write_synced_slot(&self) -> io::Result<()> {
        let mut slot = [0; 8];
        slot[..4].copy_from_slice(&self.len.to_le_bytes());
        let sum = checksum(self.identity.salt, &[&slot[..4]]);
        slot[4..].copy_from_slice(&sum.to_le_bytes());
        self.file.write_all_at(&slot, SYNCED_SLOT_OFFSET)
    }

    /// Removes what a failed group left after the known end.
    pub(crate) fn truncate_to_len(&self) -> io::Result<()> {
        self.file.set_len(u64::from(self.len))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentInfo {
    pub(crate) salt: u32,
    pub(crate) len: u64,
    /// `None` while the segment is being written.
    pub(crate) closed_at_ms: Option<u64>,
}

/// All segments, for readers and retention.
#[derive(Debug)]
pub(crate) struct SegmentTable {
    pub(crate) dir: PathBuf,
    state: Mutex<SegmentTableState>,
}

#[derive(Debug, Default)]
struct SegmentTableState {
    segments: BTreeMap<u32, SegmentInfo>,
    open: VecDeque<(u32, Arc<File>)>,
}

impl SegmentTable {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            state: Mutex::default(),
        }
    }

    /// A panic cannot leave the state half changed, so a poisoned lock is safe to use.
    fn lock_state(&self) -> MutexGuard<'_, SegmentTableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, number: u32, info: SegmentInfo) {
        self.lock_state().segments.insert(number, info);
    }

    pub(crate) fn set_len(&self, number: u32, len: u32) {
        if let Some(info) = self.lock_state().segments.get_mut(&number) {
            info.len = u64::from(len);
        }
    }

    pub(crate) fn oldest_closed(&self) -> Option<(u32, SegmentInfo)> {
        let inner = self.lock_state();
        let (number, info) = inner.segments.first_key_value()?;
        info.closed_at_ms.map(|_| (*number, *info))
    }

    pub(crate) fn count_and_bytes(&self) -> (usize, u64) {
        let inner = self.lock_state();
        (
            inner.segments.len(),
            inner.segments.values().map(|info| info.len).sum(),
        )
    }

    pub(crate) fn remove(&self, number: u32) {
        let mut inner = self.lock_state();
        inner.segments.remove(&number);
        inner.open.retain(|(open, _)| *open != number);
    }

    /// A read handle and the salt; `NotFound` if retention removed the segment. The file is
    /// opened outside the lock.
    pub(crate) fn reading(&self, number: u32) -> io::Result<(Arc<File>, u32)> {
        let salt = {
            let mut inner = self.lock_state();
            let salt = inner
                .segments
                .get(&number)
                .ok_or(io::ErrorKind::NotFound)?
                .salt;
            if let Some(at) = inner.open.iter().position(|(open, _)| *open == number) {
                let hit = inner.open.remove(at).expect("position is inside");
                inner.open.push_back(hit.clone());
                return Ok((hit.1, salt));
            }
            salt
        };
        let file = Arc::new(File::open(segment_path(&self.dir, number))?);
        let mut inner = self.lock_state();
        if inner.open.len() >= OPEN_FILES {
            inner.open.pop_front();
        }
        // A handle of a dropped segment would keep its disk space in use.
        if inner.segments.contains_key(&number) {
            inner.open.push_back((number, Arc::clone(&file)));
        }
        Ok((file, salt))
    }
}
