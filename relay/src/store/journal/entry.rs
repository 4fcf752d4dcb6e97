//! The journal tree: one numbered, checksummed entry per commit, split into values that sled
//! can store, under `first sequence number, part`. Owns the entry's format. Must not decide
//! what a damaged entry means: see `tail.rs`.

use std::ops::Bound;

use bytes::Bytes;

use super::overlay::RawChange;
use crate::store::config::MAX_VALUE;
use crate::store::records::schema::RecordSchema;
use crate::store::records::value::{MAX_SEALED, seal, unseal};
use crate::store::sled::tree_walk::TreeWalk;
use crate::store::{CommitSeq, UnreadableReason};

const PART_HEAD: usize = 2;
const PART_BODY_BYTES: usize = MAX_SEALED - PART_HEAD;

/// The changes of consecutive appends, committed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalEntry {
    /// The start of the relay that wrote it.
    pub(crate) relay_epoch: u64,
    pub(crate) first: CommitSeq,
    pub(crate) last: CommitSeq,
    pub(crate) changes: Vec<RawChange>,
}

/// An entry on disk: its number, and its content if it is complete.
#[derive(Debug)]
pub(crate) struct FoundEntry {
    pub(crate) first: CommitSeq,
    pub(crate) entry: Option<JournalEntry>,
}

/// Encodes an entry.
#[derive(Debug)]
pub(crate) struct EntryEncoder {
    bytes: Vec<u8>,
}

impl EntryEncoder {
    /// `room` is the approximate size of the changes.
    pub(crate) fn new(relay_epoch: u64, first: CommitSeq, last: CommitSeq, room: usize) -> Self {
        let mut bytes = Vec::with_capacity(room);
        bytes.extend_from_slice(&[0; 4]);
        for number in [relay_epoch, first.0, last.0] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        Self { bytes }
    }

    pub(crate) fn push(&mut self, change: &RawChange) {
        let key_len = u16::try_from(change.key.len()).expect("keys are shorter than 400 bytes");
        self.bytes.push(u8::from(change.body.is_some()));
        self.bytes.extend_from_slice(&key_len.to_be_bytes());
        self.bytes.extend_from_slice(&change.key);
        if let Some(body) = &change.body {
            let len = u32::try_from(body.len()).expect("an append is limited to 1 MiB");
            self.bytes.extend_from_slice(&len.to_be_bytes());
            self.bytes.extend_from_slice(body);
        }
    }

    /// Writes the entry part by part. It counts only when all parts are durable.
    pub(crate) fn write(
        mut self,
        tree: &sled::Tree,
        schema: RecordSchema,
        first: CommitSeq,
    ) -> sled::Result<()> {
        let crc = crc32fast::hash(&self.bytes[4..]);
        self.bytes[..4].copy_from_slice(&crc.to_be_bytes());
        let count = u16::try_from(self.bytes.len().div_ceil(PART_BODY_BYTES))
            .expect("an entry is limited to little over 1 MiB, which is under 300 parts");
        for (index, piece) in (0_u16..).zip(self.bytes.chunks(PART_BODY_BYTES)) {
            let key = part_key(first, index);
            let value = seal(schema.number(), &key, &count.to_be_bytes(), piece);
            tree.insert(key, value)?;
        }
        Ok(())
    }
}

/// Why the journal as a whole could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JournalError {
    #[error(transparent)]
    Sled(sled::Error),
    #[error("the journal was written by a newer version (schema {0})")]
    NewerSchema(u16),
    #[error("a change in the journal cannot be migrated from schema {0}")]
    Step(u16),
}

/// The entries of the tree in order, complete or not. Skips damaged pages and counts them.
pub(crate) struct JournalEntries<'a> {
    walk: TreeWalk<'a>,
    /// The schema to which changes are migrated.
    schema: RecordSchema,
    /// The first part of the entry after the one returned last.
    next_part: Option<(CommitSeq, Option<EntryPart>)>,
    pub(crate) damaged_pages: u64,
    /// Values longer than sled can store safely; always 0.
    pub(crate) too_long: u64,
}

impl<'a> JournalEntries<'a> {
    pub(crate) fn all(tree: &'a sled::Tree, schema: RecordSchema) -> Self {
        Self::between(tree, schema, CommitSeq(0), CommitSeq(u64::MAX))
    }

    /// Entries that begin in the range, both ends included.
    pub(crate) fn between(
        tree: &'a sled::Tree,
        schema: RecordSchema,
        from: CommitSeq,
        to: CommitSeq,
    ) -> Self {
        let bounds = (
            Bound::Included(part_key(from, 0).to_vec()),
            Bound::Included(part_key(to, u16::MAX).to_vec()),
        );
        Self {
            walk: TreeWalk::new(tree, bounds, false),
            schema,
            next_part: None,
            damaged_pages: 0,
            too_long: 0,
        }
    }

    pub(crate) fn next(&mut self) -> Result<Option<FoundEntry>, JournalError> {
        let started = match self.next_part.take() {
            Some(part) => Some(part),
            None => self.read_next_part()?,
        };
        let Some((first, part)) = started else {
            return Ok(None);
        };
        let mut parts = vec![part];
        while let Some((entry_first, part)) = self.read_next_part()? {
            if entry_first != first {
                self.next_part = Some((entry_first, part));
                break;
            }
            parts.push(part);
        }
        let entry = match join_parts(first, parts) {
            Some((schema, entry)) => Some(self.migrate_entry(schema, entry)?),
            None => None,
        };
        Ok(Some(FoundEntry { first, entry }))
    }

    fn read_next_part(&mut self) -> Result<Option<(CommitSeq, Option<EntryPart>)>, JournalError> {
        while let Some(item) = self.walk.next().map_err(JournalError::Sled)? {
            let Ok((key, value)) = item else {
                self.damaged_pages += 1;
                continue;
            };
            self.too_long += u64::from(value.len() > MAX_VALUE);
            if let Some((first, index)) = split_part_key(&key) {
                return Ok(Some((first, self.read_part(&key, index, &value)?)));
            }
        }
        Ok(None)
    }

    fn read_part(
        &self,
        key: &[u8],
        index: u16,
        value: &[u8],
    ) -> Result<Option<EntryPart>, JournalError> {
        match unseal(self.schema.number(), key, value) {
            Ok((schema, sealed)) => Ok(EntryPart::read(schema, index, sealed)),
            // Not damage: dropping it as a torn tail would destroy what a newer version wrote.
            Err(UnreadableReason::NewerSchema(newer)) => Err(JournalError::NewerSchema(newer)),
            Err(
                UnreadableReason::Checksum
                | UnreadableReason::Short
                | UnreadableReason::IncompleteParts
                | UnreadableReason::DamagedPage
                | UnreadableReason::Step(_),
            ) => Ok(None),
        }
    }

    /// Migrates an entry's changes. An entry is removed from the journal once its changes are
    /// records, so one that cannot be migrated is an error and must not be skipped.
    fn migrate_entry(
        &self,
        from: u16,
        mut entry: JournalEntry,
    ) -> Result<JournalEntry, JournalError> {
        if from < self.schema.number() {
            for change in &mut entry.changes {
                let Some(body) = change.body.take() else {
                    continue;
                };
                let body = self.schema.migrate_raw(from, &change.key, body);
                change.body = Some(body.map_err(|_| JournalError::Step(from))?);
            }
        }
        Ok(entry)
    }
}

/// Removes all entries that begin in the range.
pub(crate) fn remove(tree: &sled::Tree, from: CommitSeq, to: CommitSeq) -> sled::Result<()> {
    for key in tree
        .range(part_key(from, 0)..=part_key(to, u16::MAX))
        .keys()
    {
        tree.remove(key?)?;
    }
    Ok(())
}

#[derive(Debug)]
struct EntryPart {
    schema: u16,
    index: u16,
    count: u16,
    piece: Vec<u8>,
}

impl EntryPart {
    fn read(schema: u16, index: u16, sealed: &[u8]) -> Option<Self> {
        let (count, piece) = sealed.split_first_chunk::<PART_HEAD>()?;
        Some(Self {
            schema,
            index,
            count: u16::from_be_bytes(*count),
            piece: piece.to_vec(),
        })
    }
}

/// The entry, and the schema with which it was written.
fn join_parts(first: CommitSeq, parts: Vec<Option<EntryPart>>) -> Option<(u16, JournalEntry)> {
    let mut bytes = Vec::with_capacity(parts.len() * PART_BODY_BYTES);
    let (count, mut schema) = (parts.len(), 0);
    for (index, part) in parts.into_iter().enumerate() {
        let part = part?;
        if usize::from(part.index) != index || usize::from(part.count) != count {
            return None;
        }
        schema = part.schema;
        bytes.extend_from_slice(&part.piece);
    }
    decode(first, bytes.into()).map(|entry| (schema, entry))
}

fn decode(first: CommitSeq, bytes: Bytes) -> Option<JournalEntry> {
    let crc = u32::from_be_bytes(*bytes.first_chunk()?);
    if crc32fast::hash(&bytes[4..]) != crc {
        return None;
    }
    let mut reader = EntryDecoder { bytes, at: 4 };
    let (relay_epoch, stored_first, last) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let mut entry = JournalEntry {
        relay_epoch,
        first,
        last: CommitSeq(last),
        changes: Vec::new(),
    };
    while reader.at < reader.bytes.len() {
        entry.changes.push(reader.change()?);
    }
    (stored_first == first.0 && last >= first.0).then_some(entry)
}

/// Slices of the entry's bytes without copies; they live until the change is applied.
struct EntryDecoder {
    bytes: Bytes,
    at: usize,
}

impl EntryDecoder {
    fn change(&mut self) -> Option<RawChange> {
        let has_body = self.array::<1>()?[0] == 1;
        let key_len = u16::from_be_bytes(self.array()?);
        let key = self.take(usize::from(key_len))?;
        if !has_body {
            return Some(RawChange { key, body: None });
        }
        let len = u32::from_be_bytes(self.array()?);
        let body = Some(self.take(usize::try_from(len).ok()?)?);
        Some(RawChange { key, body })
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)
            .map(|bytes| *bytes.first_chunk().expect("exactly N bytes were taken"))
    }

    fn take(&mut self, len: usize) -> Option<Bytes> {
        let end = self
            .at
            .checked_add(len)
            .filter(|&end| end <= self.bytes.len())?;
        let taken = self.bytes.slice(self.at..end);
        self.at = end;
        Some(taken)
    }
}

fn part_key(first: CommitSeq, index: u16) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&first.0.to_be_bytes());
    key[8..].copy_from_slice(&index.to_be_bytes());
    key
}

fn split_part_key(key: &[u8]) -> Option<(CommitSeq, u16)> {
    let key: &[u8; 10] = key.try_into().ok()?;
    let (first, index) = key.split_first_chunk::<8>()?;
    let index = u16::from_be_bytes(*index.first_chunk()?);
    Some((CommitSeq(u64::from_be_bytes(*first)), index))
}
