//! Writes an export frame by frame. Keeps one frame in memory.

use std::io::{self, Write};

use sha2::{Digest, Sha256};

use super::frame::{self, ArchiveFrameKind, MAGIC};
use super::item::{ArchiveHead, ArchiveItem, ArchiveTrailer};

#[derive(Debug)]
pub struct ArchiveWriter<W> {
    out: W,
    hash: Sha256,
    trailer: ArchiveTrailer,
    written: u64,
    /// The body of the present frame; kept to reuse its memory.
    body: Vec<u8>,
}

/// An export that was written to its end.
#[derive(Debug)]
pub struct FinishedArchive<W> {
    pub trailer: ArchiveTrailer,
    /// Size of the whole file.
    pub bytes: u64,
    pub sha256: [u8; 32],
    pub out: W,
}

impl<W: Write> ArchiveWriter<W> {
    pub fn begin(out: W, head: &ArchiveHead) -> io::Result<Self> {
        let mut writer = Self {
            out,
            hash: Sha256::new(),
            trailer: ArchiveTrailer::default(),
            written: 0,
            body: Vec::new(),
        };
        writer.write(MAGIC)?;
        writer.frame(ArchiveFrameKind::Head, &head.encode())?;
        writer.trailer.frames = 1;
        Ok(writer)
    }

    pub fn put(&mut self, item: &ArchiveItem) -> io::Result<()> {
        let mut body = std::mem::take(&mut self.body);
        let kind = item.encode(&mut body);
        let written = self.frame(kind, &body);
        self.body = body;
        self.trailer.count(item);
        written
    }

    /// Bytes so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes the trailer. `outcome` sets what the items do not contain: the revision and what
    /// was left out.
    pub fn finish(
        mut self,
        outcome: impl FnOnce(&mut ArchiveTrailer),
    ) -> io::Result<FinishedArchive<W>> {
        outcome(&mut self.trailer);
        self.trailer.sha256 = hex(&self.hash.clone().finalize());
        let body = self.trailer.encode();
        self.frame(ArchiveFrameKind::Trailer, &body)?;
        self.out.flush()?;
        Ok(FinishedArchive {
            trailer: self.trailer,
            bytes: self.written,
            sha256: self.hash.finalize().into(),
            out: self.out,
        })
    }

    fn frame(&mut self, kind: ArchiveFrameKind, body: &[u8]) -> io::Result<()> {
        let head = frame::encode_head(self.trailer.frames, kind, body);
        self.write(&head)?;
        self.write(body)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
