//! Reads a transcript in chunks from any position, also while it is being written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::record_header::{HEADER_SIZE, RecordHeader};
use super::segment::{self, MAGIC};
use super::{SpoolChunk, SpoolError};
use crate::storage::atomic_file;

/// How far to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadLimit {
    /// The writer reported that it wrote up to here. A record before this that cannot be read
    /// is damaged.
    Position(u64),
    /// The writer died without reporting its end: read as far as records are complete.
    LastWholeRecord,
}

#[derive(Debug)]
pub struct SpoolReader {
    directory: PathBuf,
    position: u64,
    open: Option<SpoolSegmentReader>,
}

/// The segment that contains the position.
#[derive(Debug)]
struct SpoolSegmentReader {
    file: File,
    /// Offset of the next record in the file, and the position of its first byte.
    offset: u64,
    next_position: u64,
}

impl SpoolReader {
    /// Starts at `position`, which may lie inside a chunk. Nothing is read yet, and the
    /// transcript need not exist.
    pub fn open(directory: impl Into<PathBuf>, position: u64) -> Self {
        Self {
            directory: directory.into(),
            position,
            open: None,
        }
    }

    /// Position of the next byte.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next chunk, or `None` when there is none before `upto`. The call may be repeated
    /// after an error.
    pub fn next(&mut self, upto: ReadLimit) -> Result<Option<SpoolChunk>, SpoolError> {
        if matches!(upto, ReadLimit::Position(end) if end <= self.position) {
            return Ok(None);
        }
        loop {
            if self.open.is_none() {
                self.open = self.find_segment()?;
            }
            let Some(open) = &mut self.open else {
                return self.end_of_records(upto);
            };
            let read = open.read_record();
            match read.map_err(|source| unreadable(&self.directory, source))? {
                Some((head, bytes)) => {
                    let start = open.skip_record(head);
                    if open.next_position > self.position {
                        return Ok(Some(self.take_chunk(head, bytes, start)));
                    }
                }
                // The end of a segment, or of its complete records.
                None => match self.open_next_segment()? {
                    Some(next) => self.open = Some(next),
                    None => return self.end_of_records(upto),
                },
            }
        }
    }

    /// The part of the record after the current position.
    fn take_chunk(&mut self, head: RecordHeader, bytes: Bytes, start: u64) -> SpoolChunk {
        let skip = usize::try_from(self.position - start).unwrap_or(0);
        let chunk = SpoolChunk {
            position: self.position,
            kind: head.kind,
            wall_ms: head.wall_ms,
            bytes: bytes.slice(skip..),
        };
        self.position = chunk.end();
        chunk
    }

    /// No complete record follows. That is the end if the writer died, and damage if it
    /// reported more data.
    fn end_of_records(&self, upto: ReadLimit) -> Result<Option<SpoolChunk>, SpoolError> {
        match upto {
            ReadLimit::LastWholeRecord => Ok(None),
            ReadLimit::Position(_) => Err(self.damaged(self.position)),
        }
    }

    fn damaged(&self, position: u64) -> SpoolError {
        SpoolError::Damaged {
            directory: self.directory.clone(),
            position,
        }
    }

    /// Opens the segment that contains the position; `None` when there is none yet.
    fn find_segment(&self) -> Result<Option<SpoolSegmentReader>, SpoolError> {
        let starts = match segment::list_segments(&self.directory) {
            Ok(starts) => starts,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(unreadable(&self.directory, source)),
        };
        let containing = starts.iter().rev().find(|start| **start <= self.position);
        match containing {
            Some(start) => self.open_segment(*start),
            None if starts.is_empty() => Ok(None),
            None => Err(SpoolError::Gone {
                directory: self.directory.clone(),
                position: self.position,
            }),
        }
    }

    /// The segment that begins where this one ends, if there is one.
    fn open_next_segment(&self) -> Result<Option<SpoolSegmentReader>, SpoolError> {
        match &self.open {
            // A segment without a record ends where it begins and would follow itself.
            Some(open) if open.offset > MAGIC.len() as u64 => self.open_segment(open.next_position),
            Some(_) | None => Ok(None),
        }
    }

    /// `None` when there is no such file, or when its first bytes are not written yet.
    fn open_segment(&self, start: u64) -> Result<Option<SpoolSegmentReader>, SpoolError> {
        let path = segment::segment_path(&self.directory, start);
        let unreadable = |source| SpoolError::Unreadable {
            path: path.clone(),
            source,
        };
        let file = match atomic_file::open_regular(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(unreadable(source)),
        };
        let mut magic = [0; MAGIC.len()];
        if !read_fully(&file, &mut magic, 0).map_err(unreadable)? {
            return Ok(None);
        }
        if magic != MAGIC {
            return Err(self.damaged(start));
        }
        Ok(Some(SpoolSegmentReader {
            file,
            offset: MAGIC.len() as u64,
            next_position: start,
        }))
    }
}

impl SpoolSegmentReader {
    /// The record at the offset, if it is complete.
    fn read_record(&self) -> io::Result<Option<(RecordHeader, Bytes)>> {
        let mut raw = [0; HEADER_SIZE];
        if !read_fully(&self.file, &mut raw, self.offset)? {
            return Ok(None);
        }
        let Some(head) = RecordHeader::decode(&raw) else {
            return Ok(None);
        };
        let mut bytes = vec![0; head.length];
        let is_complete = read_fully(&self.file, &mut bytes, self.offset + HEADER_SIZE as u64)?;
        Ok((is_complete && head.matches_checksum(&raw, &bytes)).then(|| (head, bytes.into())))
    }

    /// Moves past the record at the offset and returns its position.
    fn skip_record(&mut self, head: RecordHeader) -> u64 {
        let start = self.next_position;
        self.next_position += head.length as u64;
        self.offset += (HEADER_SIZE + head.length) as u64;
        start
    }
}

/// False at the end of the file.
fn read_fully(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<bool> {
    match file.read_exact_at(bytes, offset) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Position of the first byte that is still stored.
pub fn oldest_position(directory: &Path) -> io::Result<Option<u64>> {
    Ok(segment::list_segments(directory)?.first().copied())
}

fn unreadable(directory: &Path, source: io::Error) -> SpoolError {
    SpoolError::Unreadable {
        path: directory.to_owned(),
        source,
    }
}
