//! Header of one record of a segment: length, pipe, wall time and a checksum over header and
//! bytes.

use super::ChildPipe;

/// Largest payload of one record; also the default capacity of a pipe.
pub const LARGEST_CHUNK: usize = 64 * 1024;

/// 4 bytes of length, 1 of kind, 8 of wall time, 4 of checksum; big endian.
pub(super) const HEADER_SIZE: usize = 17;

/// The header in front of a record's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) length: usize,
    pub(super) kind: ChildPipe,
    pub(super) wall_ms: u64,
    checksum: u32,
}

/// `bytes` must be 1 to [`LARGEST_CHUNK`] bytes long.
pub(super) fn encode_header(kind: ChildPipe, wall_ms: u64, bytes: &[u8]) -> [u8; HEADER_SIZE] {
    let mut head = [0; HEADER_SIZE];
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    head[..4].copy_from_slice(&length.to_be_bytes());
    head[4] = match kind {
        ChildPipe::Stdout => 1,
        ChildPipe::Stderr => 2,
    };
    head[5..13].copy_from_slice(&wall_ms.to_be_bytes());
    let checksum = checksum(&head[..13], bytes);
    head[13..].copy_from_slice(&checksum.to_be_bytes());
    head
}

impl RecordHeader {
    /// `None` for bytes that no writer wrote, such as the zeros of a header that is still
    /// missing.
    pub(super) fn decode(head: &[u8; HEADER_SIZE]) -> Option<Self> {
        let (length, rest) = head.split_first_chunk::<4>()?;
        let (kind, rest) = rest.split_first()?;
        let (wall_ms, rest) = rest.split_first_chunk::<8>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let kind = match kind {
            1 => ChildPipe::Stdout,
            2 => ChildPipe::Stderr,
            _ => return None,
        };
        (1..=LARGEST_CHUNK).contains(&length).then_some(Self {
            length,
            kind,
            wall_ms: u64::from_be_bytes(*wall_ms),
            checksum: u32::from_be_bytes(*rest.first_chunk::<4>()?),
        })
    }

    /// Whether `bytes` are the ones that were written with this header.
    pub(super) fn matches_checksum(&self, head: &[u8; HEADER_SIZE], bytes: &[u8]) -> bool {
        checksum(&head[..13], bytes) == self.checksum
    }
}

fn checksum(head: &[u8], bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(bytes);
    hasher.finalize()
}
