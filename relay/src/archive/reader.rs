//! Reads an export, frame by frame, and checks everything on the way. Holds one frame in memory.
//!
//! Items are given before the trailer was seen, so that a large export need not fit into memory: who acts on them must be
//! able to take it back, or read it once to the end before.

use std::io::{self, Read};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::fault::{ArchiveFault, Damage};
use super::frame::{BODY_MAX, FRAME_HEAD, FrameHead, FrameKind, MAGIC};
use super::item::{Head, Item, Trailer};
use super::writer::hex;
use crate::store::Schema;

#[derive(Debug)]
pub struct ArchiveReader<R> {
    /// Records of older ones are brought up to it.
    schema: Schema,
    frames: Frames<R>,
    head: Head,
    /// What was counted so far.
    counted: Trailer,
    trailer: Option<Trailer>,
}

/// Frames as they come, each fitting its checksum.
#[derive(Debug)]
struct Frames<R> {
    input: R,
    hash: Sha256,
    /// Where the next frame begins, and its number.
    at: u64,
    number: u64,
}

impl<R: Read> ArchiveReader<R> {
    /// Reads the head.
    pub fn open(input: R) -> Result<Self, ArchiveFault> {
        Self::open_as(input, Schema::CURRENT)
    }

    pub(super) fn open_as(input: R, schema: Schema) -> Result<Self, ArchiveFault> {
        let mut frames = Frames {
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
        let counted = Trailer {
            frames: 1,
            ..Trailer::default()
        };
        Ok(Self {
            schema,
            frames,
            head,
            counted,
            trailer: None,
        })
    }

    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Bytes read so far.
    pub fn position(&self) -> u64 {
        self.frames.at
    }

    /// Of everything that was read so far: after the last item, of the whole file.
    pub fn sha256(&self) -> [u8; 32] {
        self.frames.hash.clone().finalize().into()
    }

    /// Only there after the last item, when all of it was read and checked.
    pub fn trailer(&self) -> Option<&Trailer> {
        self.trailer.as_ref()
    }

    /// The next item; `None` after the last one, once the trailer fits to all that came before it.
    pub fn next_item(&mut self) -> Result<Option<Item>, ArchiveFault> {
        if self.trailer.is_some() {
            return Ok(None);
        }
        let (at, frame) = (self.frames.at, self.frames.number);
        let item = self.step();
        item.map_err(|damage| ArchiveFault { at, frame, damage })
    }

    fn step(&mut self) -> Result<Option<Item>, Damage> {
        let before = self.frames.hash.clone();
        let (kind, body) = self.frames.next()?;
        if kind == FrameKind::Trailer {
            self.trailer = Some(self.finish(&body, before)?);
            return Ok(None);
        }
        let item = Item::decode(kind, &body).ok_or(Damage::Inconsistent("a frame is malformed"))?;
        self.counted.count(&item);
        self.bring_up(item).map(Some)
    }

    fn bring_up(&self, item: Item) -> Result<Item, Damage> {
        let Item::Put { key, body } = item else {
            return Ok(item);
        };
        let body = self.schema.bring_up(self.head.schema, &key, body);
        let body = body.map_err(|_| {
            Damage::Inconsistent("a record in it cannot be brought to this version's schema")
        })?;
        Ok(Item::Put { key, body })
    }

    fn finish(&mut self, body: &[u8], before: Sha256) -> Result<Trailer, Damage> {
        let trailer = Trailer::decode(body)?;
        if trailer.sha256 != hex(&before.finalize()) {
            return Err(Damage::Inconsistent("its hash does not match"));
        }
        let counted = Trailer {
            revision: trailer.revision,
            skipped: trailer.skipped,
            missing_bodies: trailer.missing_bodies,
            sha256: trailer.sha256.clone(),
            ..self.counted.clone()
        };
        if trailer != counted {
            return Err(Damage::Inconsistent("its counts do not match"));
        }
        match fill(&mut self.frames.input, &mut [0]).map_err(Damage::Io)? {
            0 => Ok(trailer),
            _more => Err(Damage::Trailing),
        }
    }
}

impl<R: Read> Frames<R> {
    fn begin(&mut self) -> Result<Head, Damage> {
        let mut magic = [0; MAGIC.len()];
        let read = fill(&mut self.input, &mut magic).map_err(Damage::Io)?;
        if magic[..read] != MAGIC[..read] {
            return Err(Damage::NotAnExport);
        }
        if read < MAGIC.len() {
            return Err(Damage::CutShort);
        }
        self.hash.update(magic);
        self.at = MAGIC.len() as u64;
        match self.next()? {
            (FrameKind::Head, body) => Head::decode(&body),
            _other => Err(Damage::Inconsistent("it does not begin with its head")),
        }
    }

    fn next(&mut self) -> Result<(FrameKind, Bytes), Damage> {
        let mut raw = [0; FRAME_HEAD];
        self.read(&mut raw)?;
        let head = FrameHead::decode(&raw);
        let len = usize::try_from(head.len).unwrap_or(usize::MAX);
        if len > BODY_MAX {
            return Err(Damage::Altered);
        }
        let mut body = vec![0; len];
        self.read(&mut body)?;
        if !head.fits(self.number, &body) {
            return Err(Damage::Altered);
        }
        self.at += (FRAME_HEAD + len) as u64;
        self.number += 1;
        let kind = FrameKind::of(head.kind).ok_or(Damage::Inconsistent("a frame is of no kind"))?;
        Ok((kind, body.into()))
    }

    fn read(&mut self, into: &mut [u8]) -> Result<(), Damage> {
        let read = fill(&mut self.input, into).map_err(Damage::Io)?;
        if read < into.len() {
            return Err(Damage::CutShort);
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
