//! A small file beside the database with the number up to which changes were acknowledged. sled
//! may lose the end of its log without an error; the next start detects that with this file.
//! Two slots are written in turn, so that a torn write leaves the other slot intact.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use uuid::Uuid;

use crate::store::CommitSeq;

const MAGIC: &[u8; 4] = b"BTWM";
const SLOT_LEN: usize = 4 + 8 + 16 + 4;
/// The slots are in different sectors, so that one write cannot tear both.
const SLOT_GAP: u64 = 4096;

/// What was acknowledged, and for which incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watermark {
    pub(crate) seq: CommitSeq,
    pub(crate) incarnation: Uuid,
}

#[derive(Debug)]
pub(crate) struct WatermarkFile {
    file: File,
    next_slot: u64,
}

impl WatermarkFile {
    /// Opens or creates the file and reads the newest watermark.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, Option<Watermark>)> {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let marks = [read_slot(&file, 0)?, read_slot(&file, 1)?];
        let newest = marks.into_iter().flatten().max_by_key(|mark| mark.seq);
        // The next write replaces the older slot.
        let next_slot = u64::from(newest.is_some() && newest == marks[0]);
        Ok((Self { file, next_slot }, newest))
    }

    /// The newest watermark in the file, if any. Creates and changes nothing.
    pub(crate) fn peek(path: &Path) -> io::Result<Option<Watermark>> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let marks = [read_slot(&file, 0)?, read_slot(&file, 1)?];
        Ok(marks.into_iter().flatten().max_by_key(|mark| mark.seq))
    }

    pub(crate) fn write(&mut self, mark: Watermark) -> io::Result<()> {
        self.file
            .write_all_at(&encode(mark), self.next_slot * SLOT_GAP)?;
        self.file.sync_data()?;
        self.next_slot = 1 - self.next_slot;
        Ok(())
    }
}

fn read_slot(file: &File, slot: u64) -> io::Result<Option<Watermark>> {
    let mut bytes = [0; SLOT_LEN];
    match file.read_exact_at(&mut bytes, slot * SLOT_GAP) {
        Ok(()) => Ok(decode(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn encode(mark: Watermark) -> [u8; SLOT_LEN] {
    let mut bytes = [0; SLOT_LEN];
    bytes[..4].copy_from_slice(MAGIC);
    bytes[4..12].copy_from_slice(&mark.seq.0.to_be_bytes());
    bytes[12..28].copy_from_slice(mark.incarnation.as_bytes());
    let crc = crc32fast::hash(&bytes[..28]);
    bytes[28..].copy_from_slice(&crc.to_be_bytes());
    bytes
}

fn decode(bytes: &[u8; SLOT_LEN]) -> Option<Watermark> {
    let seq = CommitSeq(u64::from_be_bytes(*bytes[4..].first_chunk()?));
    let incarnation = Uuid::from_bytes(*bytes[12..].first_chunk()?);
    let mark = Watermark { seq, incarnation };
    (encode(mark) == *bytes).then_some(mark)
}
