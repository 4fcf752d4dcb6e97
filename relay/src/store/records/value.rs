//! The format of values in sled: `schema u16, crc32, body`, verified on every read, at most
//! [`MAX_VALUE`] bytes. The checksum covers the key too, so that a value under the wrong key is
//! detected.

use bytes::Bytes;

use crate::store::config::MAX_VALUE;
use crate::store::{CommitSeq, UnreadableReason};

const SEAL: usize = 2 + 4;
const CHUNK_HEAD: usize = 2 + 8;
/// Bytes of a record in one chunk.
const CHUNK: usize = MAX_VALUE - SEAL - CHUNK_HEAD;
/// Body bytes in a sealed value.
pub(crate) const MAX_SEALED: usize = MAX_VALUE - SEAL;

/// Wraps a body for storage under `key`.
pub(crate) fn seal(schema: u16, key: &[u8], head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(SEAL + head.len() + body.len());
    value.extend_from_slice(&schema.to_be_bytes());
    value.extend_from_slice(&[0; 4]);
    value.extend_from_slice(head);
    value.extend_from_slice(body);
    let crc = checksum(key, &value);
    value[2..SEAL].copy_from_slice(&crc.to_be_bytes());
    value
}

/// The body of a value stored under `key`, and the schema it was written with, which is at most
/// `known`.
pub(crate) fn unseal<'a>(
    known: u16,
    key: &[u8],
    value: &'a [u8],
) -> Result<(u16, &'a [u8]), UnreadableReason> {
    let (head, body) = value
        .split_at_checked(SEAL)
        .ok_or(UnreadableReason::Short)?;
    let crc = u32::from_be_bytes([head[2], head[3], head[4], head[5]]);
    if checksum(key, value) != crc {
        return Err(UnreadableReason::Checksum);
    }
    match u16::from_be_bytes([head[0], head[1]]) {
        newer if newer > known => Err(UnreadableReason::NewerSchema(newer)),
        schema => Ok((schema, body)),
    }
}

fn checksum(key: &[u8], value: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(&value[..2]);
    hasher.update(&value[SEAL..]);
    hasher.finalize()
}

/// One chunk of a record in sled. Its number and the total count give its position, and the
/// sequence number of the write distinguishes chunks of different writes.
#[derive(Debug)]
pub(crate) struct RecordChunk<'a> {
    pub(crate) schema: u16,
    pub(crate) count: u16,
    pub(crate) seq: CommitSeq,
    pub(crate) body: &'a [u8],
}

impl<'a> RecordChunk<'a> {
    pub(crate) fn read(known: u16, key: &[u8], value: &'a [u8]) -> Result<Self, UnreadableReason> {
        let (schema, sealed) = unseal(known, key, value)?;
        let (count, rest) = sealed
            .split_first_chunk::<2>()
            .ok_or(UnreadableReason::Short)?;
        let (seq, body) = rest
            .split_first_chunk::<8>()
            .ok_or(UnreadableReason::Short)?;
        let (count, seq) = (
            u16::from_be_bytes(*count),
            CommitSeq(u64::from_be_bytes(*seq)),
        );
        Ok(Self {
            schema,
            count,
            seq,
            body,
        })
    }
}

/// The key of a chunk: the record's key and the chunk's number.
pub(crate) fn chunk_key(key: &[u8], index: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(key.len() + 2);
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(&index.to_be_bytes());
    bytes
}

/// Splits a chunk key into the record's key and the chunk's number.
pub(crate) fn split_chunk_key(bytes: &[u8]) -> Option<(&[u8], u16)> {
    let (key, index) = bytes.split_last_chunk::<2>()?;
    Some((key, u16::from_be_bytes(*index)))
}

/// Splits a record into chunks that sled can store, at least one.
pub(crate) fn chunks(
    schema: u16,
    key: &[u8],
    seq: CommitSeq,
    body: &Bytes,
) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let count = u16::try_from(body.len().div_ceil(CHUNK).max(1))
        .expect("an append is limited to 1 MiB, which is 264 chunks");
    (0..count).map(move |index| {
        let key = chunk_key(key, index);
        let start = usize::from(index) * CHUNK;
        let piece = &body[start..body.len().min(start + CHUNK)];
        let mut head = [0; CHUNK_HEAD];
        head[..2].copy_from_slice(&count.to_be_bytes());
        head[2..].copy_from_slice(&seq.0.to_be_bytes());
        let value = seal(schema, &key, &head, piece);
        (key, value)
    })
}
