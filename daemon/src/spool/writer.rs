//! Appends to a transcript and removes consumed segments. A failed append changes nothing and
//! can be retried with the same bytes any number of times.

use std::collections::VecDeque;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::record_header;
use super::record_header::{HEADER_SIZE, LARGEST_CHUNK};
use super::{ChildPipe, segment};

#[derive(Debug)]
pub struct SpoolWriter {
    directory: PathBuf,
    /// Starts of the segments on disk, oldest first. The last one is being written.
    segments: VecDeque<u64>,
    open: Option<SpoolSegmentWriter>,
    end: u64,
}

/// The segment that is being written.
#[derive(Debug)]
struct SpoolSegmentWriter {
    file: File,
    /// Bytes of the file that contain complete records.
    length: u64,
    payload: u64,
}

impl SpoolWriter {
    /// Creates a transcript in a directory that has none. A missing directory is created.
    pub fn create(directory: impl Into<PathBuf>) -> io::Result<Self> {
        let directory = directory.into();
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        if !segment::list_segments(&directory)?.is_empty() {
            return Err(io::Error::other(
                "the directory already contains a transcript",
            ));
        }
        Ok(Self {
            directory,
            segments: VecDeque::new(),
            open: None,
            end: 0,
        })
    }

    /// Position after the last byte.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Appends one chunk of 1 to [`LARGEST_CHUNK`] bytes and returns the new end.
    pub fn append(&mut self, kind: ChildPipe, wall_ms: u64, bytes: &[u8]) -> io::Result<u64> {
        if bytes.is_empty() || bytes.len() > LARGEST_CHUNK {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let head = record_header::encode_header(kind, wall_ms, bytes);
        let open = self.writable_segment()?;
        // The header is written last: a record with a header is complete, even if the writer is
        // killed in between.
        open.file
            .write_all_at(bytes, open.length + HEADER_SIZE as u64)?;
        open.file.write_all_at(&head, open.length)?;
        open.length += (HEADER_SIZE + bytes.len()) as u64;
        open.payload += bytes.len() as u64;
        self.end += bytes.len() as u64;
        Ok(self.end)
    }

    /// Removes the segments that end at or before `position`, except the one that is being written.
    pub fn discard(&mut self, position: u64) {
        while self.segments.get(1).is_some_and(|next| *next <= position) {
            if let Some(start) = self.segments.pop_front() {
                // A segment that cannot be removed only costs space. Its directory is removed
                // at the end.
                let _ = std::fs::remove_file(segment::segment_path(&self.directory, start));
            }
        }
    }

    /// Syncs all segments and the directory to disk.
    pub fn sync(&self) -> io::Result<()> {
        for start in &self.segments {
            File::open(segment::segment_path(&self.directory, *start))?.sync_data()?;
        }
        File::open(&self.directory)?.sync_all()
    }

    fn writable_segment(&mut self) -> io::Result<&mut SpoolSegmentWriter> {
        let full = |open: &SpoolSegmentWriter| open.payload >= segment::SEGMENT_BYTES;
        if self.open.as_ref().is_none_or(full) {
            let open = create_segment(&self.directory, self.end)?;
            self.segments.push_back(self.end);
            self.open = Some(open);
        }
        self.open
            .as_mut()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Overwrites a file that an earlier failed call may have left.
fn create_segment(directory: &Path, start: u64) -> io::Result<SpoolSegmentWriter> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(segment::segment_path(directory, start))?;
    file.write_all_at(&segment::MAGIC, 0)?;
    Ok(SpoolSegmentWriter {
        file,
        length: segment::MAGIC.len() as u64,
        payload: 0,
    })
}
