//! Encodes and decodes one frame of an export. No I/O.

use crc32fast::Hasher;

/// The first bytes of every export.
pub(super) const MAGIC: &[u8; 8] = b"BTNEXP01";
/// kind, length, checksum.
pub(super) const FRAME_HEAD: usize = 1 + 4 + 4;
/// Longest body: a record or prompt of 1 MiB and the fields around it. Limits a reader's
/// memory.
pub(super) const BODY_MAX: usize = 2 << 20;

/// The kind of a frame. Numbers must never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ArchiveFrameKind {
    Head = 1,
    Put = 2,
    Delete = 3,
    Body = 4,
    Output = 5,
    Cut = 6,
    Sealed = 7,
    Trailer = 8,
}

impl ArchiveFrameKind {
    const ALL: [Self; 8] = [
        Self::Head,
        Self::Put,
        Self::Delete,
        Self::Body,
        Self::Output,
        Self::Cut,
        Self::Sealed,
        Self::Trailer,
    ];

    pub(super) fn of(number: u8) -> Option<Self> {
        let index = usize::from(number).checked_sub(1)?;
        Self::ALL.get(index).copied()
    }
}

/// The head of a frame, before its checksum is compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArchiveFrameHead {
    pub(super) kind: u8,
    pub(super) len: u32,
    crc: u32,
}

impl ArchiveFrameHead {
    pub(super) fn decode(raw: &[u8; FRAME_HEAD]) -> Self {
        let [kind, l0, l1, l2, l3, c0, c1, c2, c3] = *raw;
        Self {
            kind,
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            crc: u32::from_le_bytes([c0, c1, c2, c3]),
        }
    }

    pub(super) fn matches_checksum(&self, number: u64, body: &[u8]) -> bool {
        checksum(number, self.kind, self.len, body) == self.crc
    }
}

/// The head for a body that the caller writes after it.
pub(super) fn encode_head(number: u64, kind: ArchiveFrameKind, body: &[u8]) -> [u8; FRAME_HEAD] {
    let len = u32::try_from(body.len()).expect("bodies are limited to 2 MiB");
    let mut raw = [0; FRAME_HEAD];
    raw[0] = kind as u8;
    raw[1..5].copy_from_slice(&len.to_le_bytes());
    raw[5..].copy_from_slice(&checksum(number, kind as u8, len, body).to_le_bytes());
    raw
}

fn checksum(number: u64, kind: u8, len: u32, body: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(&[kind]);
    hasher.update(&len.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}
