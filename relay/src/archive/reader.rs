//! Reads an export frame by frame and checks everything. Keeps one frame in memory.
//!
//! Items are returned before the trailer is read, so that a large export need not fit into
//! memory. A caller that acts on items must be able to undo that, or must read the file to its
//! end first.

use std::io::{self, Read};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::fault::{ArchiveDamage, ArchiveFault};
use super::frame::{ArchiveFrameHead, ArchiveFrameKind, BODY_MAX, FRAME_HEAD, MAGIC};
use super::item::{ArchiveHead, ArchiveItem, ArchiveTrailer};
use super::writer::hex;
use crate::store::RecordSchema;

#[derive(Debug)]
pub struct ArchiveReader<R> {
    /// The schema to which records of an older schema are migrated.
    schema: RecordSchema,
    frames: ArchiveFrames<R>,
    head: ArchiveHead,
    /// The counts so far.
    counted: ArchiveTrailer,
    trailer: Option<ArchiveTrailer>,
}

/// The frames in order, each verified against its checksum.
#[derive(Debug)]
struct ArchiveFrames<R> {
    input: R,
    hash: Sha256,
    /// Offset and number of the next frame.
    at: u64,
    number: u64,
}

impl<R: Read> ArchiveReader<R> {
    /// Opens an export and reads its head.
    pub fn open(input: R) -> Result<Self, ArchiveFault> {
        Self::open_as(input, RecordSchema::CURRENT)
    }

    pub(super) fn open_as(input: R, schema: RecordSchema) -> Result<Self, ArchiveFault> {
        let mut frames = ArchiveFrames {
            input,
            hash: Sha256::new(),
            at: 0,
            number: 0,
        };
        let head = frames.begin();
        let head = head.map_err(|damage| ArchiveFault {
            at: frames.at,
            frame: 0,
            damage,
        })?;
        let counted = ArchiveTrailer {
            frames: 1,
            ..ArchiveTrailer::default()
        };
        Ok(Self {
            schema,
            frames,
            head,
            counted,
            trailer: None,
        })
    }

    pub fn head(&self) -> &ArchiveHead {
        &self.head
    }

    /// Bytes read so far.
    pub fn position(&self) -> u64 {
        self.frames.at
    }

    /// SHA-256 of everything read so far; after the last item, of the whole file.
    pub fn sha256(&self) -> [u8; 32] {
        self.frames.hash.clone().finalize().into()
    }

    /// The trailer; only present after the last item, when the whole file is verified.
    pub fn trailer(&self) -> Option<&ArchiveTrailer> {
        self.trailer.as_ref()
    }

    /// The next item; `None` after the last one, when the trailer matches everything before it.
    pub fn next_item(&mut self) -> Result<Option<ArchiveItem>, ArchiveFault> {
        if self.trailer.is_some() {
            return Ok(None);
        }
        let (at, frame) = (self.frames.at, self.frames.number);
        let item = self.read_item();
        item.map_err(|damage| ArchiveFault { at, frame, damage })
    }

    fn read_item(&mut self) -> Result<Option<ArchiveItem>, ArchiveDamage> {
        let before = self.frames.hash.clone();
        let (kind, body) = self.frames.next()?;
        if kind == ArchiveFrameKind::Trailer {
            self.trailer = Some(self.finish(&body, before)?);
            return Ok(None);
        }
        let item = ArchiveItem::decode(kind, &body)
            .ok_or(ArchiveDamage::Inconsistent("a frame is malformed"))?;
        self.counted.count(&item);
        self.migrate_item(item).map(Some)
    }

    fn migrate_item(&self, item: ArchiveItem) -> Result<ArchiveItem, ArchiveDamage> {
        let ArchiveItem::Put { key, body } = item else {
            return Ok(item);
        };
        let body = self.schema.migrate_body(self.head.schema, &key, body);
        let body = body.map_err(|_| {
            ArchiveDamage::Inconsistent(
                "one of its records cannot be migrated to this version's schema",
            )
        })?;
        Ok(ArchiveItem::Put { key, body })
    }

    fn finish(&mut self, body: &[u8], before: Sha256) -> Result<ArchiveTrailer, ArchiveDamage> {
        let trailer = ArchiveTrailer::decode(body)?;
        if trailer.sha256 != hex(&before.finalize()) {
            return Err(ArchiveDamage::Inconsistent("its hash does not match"));
        }
        let counted = ArchiveTrailer {
            revision: trailer.revision,
            skipped: trailer.skipped,
            missing_bodies: trailer.missing_bodies,
            sha256: trailer.sha256.clone(),
            ..self.counted.clone()
        };
        if trailer != counted {
            return Err(ArchiveDamage::Inconsistent("its counts do not match"));
        }
        match fill(&mut self.frames.input, &mut [0]).map_err(ArchiveDamage::Io)? {
            0 => Ok(trailer),
            _more => Err(ArchiveDamage::Trailing),
        }
    }
}

impl<R: Read> ArchiveFrames<R> {
    fn begin(&mut self) -> Result<ArchiveHead, ArchiveDamage> {
        let mut magic = [0; MAGIC.len()];
        let read = fill(&mut self.input, &mut magic).map_err(ArchiveDamage::Io)?;
        if magic[..read] != MAGIC[..read] {
            return Err(ArchiveDamage::NotAnExport);
        }
        if read < MAGIC.len() {
            return Err(ArchiveDamage::CutShort);
        }
        self.hash.update(magic);
        self.at = MAGIC.len() as u64;
        match self.next()? {
            (ArchiveFrameKind::Head, body) => ArchiveHead::decode(&body),
            _other => Err(ArchiveDamage::Inconsistent(
                "it does not begin with its head",
            )),
        }
    }

    fn next(&mut self) -> Result<(ArchiveFrameKind, Bytes), ArchiveDamage> {
        let mut raw = [0; FRAME_HEAD];
        self.read(&mut raw)?;
        let head = ArchiveFrameHead::decode(&raw);
        let len = usize::try_from(head.len).unwrap_or(usize::MAX);
        if len > BODY_MAX {
            return Err(ArchiveDamage::Altered);
        }
        let mut body = vec![0; len];
        self.read(&mut body)?;
        if !head.matches_checksum(self.number, &body) {
            return Err(ArchiveDamage::Altered);
        }
        self.at += (FRAME_HEAD + len) as u64;
        self.number += 1;
        let kind = ArchiveFrameKind::of(head.kind)
            .ok_or(ArchiveDamage::Inconsistent("a frame has an unknown kind"))?;
        Ok((kind, body.into()))
    }

    fn read(&mut self, into: &mut [u8]) -> Result<(), ArchiveDamage> {
        let read = fill(&mut self.input, into).map_err(ArchiveDamage::Io)?;
        if read < into.len() {
            return Err(ArchiveDamage::CutShort);
        }
        self.hash.update(&*into);
        Ok(())
    }
}

/// Reads until the buffer is full or the input ends.
fn fill(input: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match input.read(&mut into[done..]) {
            Ok(0) => break,
            Ok(some) => done += some,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
