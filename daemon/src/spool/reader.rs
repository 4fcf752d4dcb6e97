//! Reads a transcript from any position on, chunk by chunk, while it is being written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::record::{HEAD, Head};
use super::segment::{self, MAGIC};
use super::{Chunk, SpoolError};
use crate::whole_file;

/// How far to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upto {
    /// The writer has said that it wrote this far. What cannot be read before it is damaged.
    Position(u64),
    /// The writer is dead and has said nothing: as far as records are whole.
    LastWhole,
}

#[derive(Debug)]
pub struct Reader {
    directory: PathBuf,
    position: u64,
    open: Option<Open>,
}

/// The segment that holds the position.
#[derive(Debug)]
struct Open {
    file: File,
    /// Where the next record begins in the file, and the position of its first byte.
    offset: u64,
    at: u64,
}

impl Reader {
    /// Starts at `position`, which may lie inside a chunk. Nothing is read yet: the transcript need not exist.
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

    /// The next chunk, or `None` when there is none before `upto`. After an error the same call may be made again.
    pub fn next(&mut self, upto: Upto) -> Result<Option<Chunk>, SpoolError> {
        if matches!(upto, Upto::Position(end) if end <= self.position) {
            return Ok(None);
        }
        loop {
            if self.open.is_none() {
                self.open = self.find()?;
            }
            let Some(open) = &mut self.open else {
                return self.nothing(upto);
            };
            let read = open.record();
            match read.map_err(|source| unreadable(&self.directory, source))? {
                Some((head, bytes)) => {
                    let begun = open.pass(head);
                    if open.at > self.position {
                        return Ok(Some(self.hand_out(head, bytes, begun)));
                    }
                }
                // Here ends a segment, or what is whole of it.
                None => match self.follow()? {
                    Some(next) => self.open = Some(next),
                    None => return self.nothing(upto),
                },
            }
        }
    }

    /// What of the record lies behind the position.
    fn hand_out(&mut self, head: Head, bytes: Bytes, begun: u64) -> Chunk {
        let skip = usize::try_from(self.position - begun).unwrap_or(0);
        let chunk = Chunk {
            position: self.position,
            kind: head.kind,
            wall_ms: head.wall_ms,
            bytes: bytes.slice(skip..),
        };
        self.position = chunk.end();
        chunk
    }

    /// There is no whole record: the end for a dead writer, damage where a living one said that there is more.
    fn nothing(&self, upto: Upto) -> Result<Option<Chunk>, SpoolError> {
        match upto {
            Upto::LastWhole => Ok(None),
            Upto::Position(_) => Err(self.damaged(self.position)),
        }
    }

    fn damaged(&self, position: u64) -> SpoolError {
        SpoolError::Damaged {
            directory: self.directory.clone(),
            position,
        }
    }

    /// Opens the segment that holds the position; `None` when there is none yet.
    fn find(&self) -> Result<Option<Open>, SpoolError> {
        let starts = match segment::list(&self.directory) {
            Ok(starts) => starts,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(unreadable(&self.directory, source)),
        };
        let holder = starts.iter().rev().find(|start| **start <= self.position);
        match holder {
            Some(start) => self.enter(*start),
            None if starts.is_empty() => Ok(None),
            None => Err(SpoolError::Gone {
                directory: self.directory.clone(),
                position: self.position,
            }),
        }
    }

    /// The segment that begins where this one ends, if there is one.
    fn follow(&self) -> Result<Option<Open>, SpoolError> {
        match &self.open {
            // Without a single record it would be found to follow itself.
            Some(open) if open.offset > MAGIC.len() as u64 => self.enter(open.at),
            Some(_) | None => Ok(None),
        }
    }

    /// `None` when there is no such file, or one too young to have its first bytes.
    fn enter(&self, start: u64) -> Result<Option<Open>, SpoolError> {
        let path = segment::path(&self.directory, start);
        let unreadable = |source| SpoolError::Unreadable {
            path: path.clone(),
            source,
        };
        let file = match whole_file::open_regular(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(unreadable(source)),
        };
        let mut magic = [0; MAGIC.len()];
        if !read_whole(&file, &mut magic, 0).map_err(unreadable)? {
            return Ok(None);
        }
        if magic != MAGIC {
            return Err(self.damaged(start));
        }
        Ok(Some(Open {
            file,
            offset: MAGIC.len() as u64,
            at: start,
        }))
    }
}

impl Open {
    /// The record at the offset, if there is a whole one.
    fn record(&self) -> io::Result<Option<(Head, Bytes)>> {
        let mut raw = [0; HEAD];
        if !read_whole(&self.file, &mut raw, self.offset)? {
            return Ok(None);
        }
        let Some(head) = Head::decode(&raw) else {
            return Ok(None);
        };
        let mut bytes = vec![0; head.length];
        let is_there = read_whole(&self.file, &mut bytes, self.offset + HEAD as u64)?;
        Ok((is_there && head.fits(&raw, &bytes)).then(|| (head, bytes.into())))
    }

    /// Steps over the record that begins here and returns where it began.
    fn pass(&mut self, head: Head) -> u64 {
        let begun = self.at;
        self.at += head.length as u64;
        self.offset += (HEAD + head.length) as u64;
        begun
    }
}

/// False at the end of the file.
fn read_whole(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<bool> {
    match file.read_exact_at(bytes, offset) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Position of the first byte that is still there.
pub fn oldest(directory: &Path) -> io::Result<Option<u64>> {
    Ok(segment::list(directory)?.first().copied())
}

fn unreadable(directory: &Path, source: io::Error) -> SpoolError {
    SpoolError::Unreadable {
        path: directory.to_owned(),
        source,
    }
}
