//! The record tree: one record per key, split into chunks if it is long. Only the apply step
//! and recovery may write it. Everything written here was in the journal first, so replay
//! repairs a crash in the middle.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::{Bytes, BytesMut};
use sled::IVec;

use super::schema::RecordSchema;
use super::value::{RecordChunk, chunk_key, chunks, split_chunk_key};
use crate::store::sled::panic_guard::catch_sled_panic;
use crate::store::{CommitSeq, UnreadableReason};

#[derive(Clone, Debug)]
pub(crate) struct RecordTree {
    pub(crate) tree: sled::Tree,
    /// Bytes of keys and values by which the tree has grown since it was opened.
    grown: Arc<AtomicI64>,
    /// The schema of written records; records that are read are migrated to it.
    schema: RecordSchema,
}

/// The value of a key. Outer errors come from sled; inner errors concern this record only.
pub(crate) type RecordLookup = Result<Option<Bytes>, UnreadableReason>;

impl RecordTree {
    pub(crate) fn new(tree: sled::Tree, schema: RecordSchema) -> Self {
        Self {
            tree,
            schema,
            grown: Arc::default(),
        }
    }

    pub(crate) fn growth_bytes(&self) -> i64 {
        self.grown.load(Ordering::Relaxed)
    }

    pub(crate) fn put(&self, key: &[u8], seq: CommitSeq, body: &Bytes) -> sled::Result<()> {
        let (mut written, mut before) = (0, None);
        for (index, (key, value)) in (0_u16..).zip(chunks(self.schema.number(), key, seq, body)) {
            let (key_len, len) = (key.len(), value.len());
            let old = self.tree.insert(key, value)?;
            let replaced = old
                .as_ref()
                .map_or(0, |old| entry_bytes(key_len, old.len()));
            self.add(entry_bytes(key_len, len) - replaced);
            before = if index == 0 { old } else { before };
            written = index + 1;
        }
        self.remove_chunks(key, written, before)
    }

    pub(crate) fn delete(&self, key: &[u8]) -> sled::Result<()> {
        match self.remove(chunk_key(key, 0))? {
            Some(before) => self.remove_chunks(key, 1, Some(before)),
            None => Ok(()),
        }
    }

    /// Removes the chunks of an older, longer value from number `from` on.
    fn remove_chunks(&self, key: &[u8], from: u16, before: Option<IVec>) -> sled::Result<()> {
        let Some(before) = before else { return Ok(()) };
        let count = self
            .chunk(&chunk_key(key, 0), &before)
            .map(|chunk| chunk.count);
        // If the first chunk is unreadable, the number of chunks is unknown.
        let Ok(count) = count else {
            return self.remove_chunks_by_scan(key, from);
        };
        for index in from..count {
            self.remove(chunk_key(key, index))?;
        }
        Ok(())
    }

    fn remove(&self, raw_key: impl AsRef<[u8]>) -> sled::Result<Option<IVec>> {
        let old = self.tree.remove(&raw_key)?;
        if let Some(old) = &old {
            self.add(-entry_bytes(raw_key.as_ref().len(), old.len()));
        }
        Ok(old)
    }

    fn add(&self, bytes: i64) {
        self.grown.fetch_add(bytes, Ordering::Relaxed);
    }

    fn remove_chunks_by_scan(&self, key: &[u8], from: u16) -> sled::Result<()> {
        let last = chunk_key(key, u16::MAX);
        for old in self.tree.range(chunk_key(key, from)..=last).keys() {
            self.remove(old?)?;
        }
        Ok(())
    }

    pub(crate) fn get(&self, key: &[u8]) -> sled::Result<RecordLookup> {
        let first_key = chunk_key(key, 0);
        let first = match self.read_chunk(&first_key)? {
            Ok(Some(first)) => first,
            Ok(None) => return Ok(Ok(None)),
            Err(why) => return Ok(Err(why)),
        };
        match self.chunk(&first_key, &first) {
            Ok(chunk) if chunk.count == 1 => Ok(self.read_single_chunk(key, &chunk)),
            Ok(chunk) => Ok(self.join(key, &chunk)?.map(Some)),
            Err(why) => Ok(Err(why)),
        }
    }

    fn chunk<'a>(
        &self,
        raw_key: &[u8],
        value: &'a [u8],
    ) -> Result<RecordChunk<'a>, UnreadableReason> {
        RecordChunk::read(self.schema.number(), raw_key, value)
    }

    /// Reads a record that has only one chunk.
    fn read_single_chunk(&self, key: &[u8], chunk: &RecordChunk<'_>) -> RecordLookup {
        let body = Bytes::copy_from_slice(chunk.body);
        self.schema.migrate_raw(chunk.schema, key, body).map(Some)
    }

    /// Reads a record met in a scan of the tree; `None` for a later chunk of the record met
    /// before.
    pub(crate) fn read_scanned(
        &self,
        last: Option<&[u8]>,
        raw_key: &[u8],
        value: &[u8],
    ) -> sled::Result<Option<(Bytes, RecordLookup)>> {
        let Some((key, index)) = split_chunk_key(raw_key) else {
            return Ok(Some((
                Bytes::copy_from_slice(raw_key),
                Err(UnreadableReason::Short),
            )));
        };
        if last == Some(key) {
            return Ok(None);
        }
        let whole = self
            .chunk(raw_key, value)
            .ok()
            .filter(|chunk| index == 0 && chunk.count == 1);
        let found = match whole {
            Some(chunk) => self.read_single_chunk(key, &chunk),
            None => self
                .get(key)?
                .and_then(|body| body.map(Some).ok_or(UnreadableReason::IncompleteParts)),
        };
        Ok(Some((Bytes::copy_from_slice(key), found)))
    }

    fn join(
        &self,
        key: &[u8],
        first: &RecordChunk<'_>,
    ) -> sled::Result<Result<Bytes, UnreadableReason>> {
        let mut body = BytesMut::from(first.body);
        for index in 1..first.count {
            let raw_key = chunk_key(key, index);
            let value = match self.read_chunk(&raw_key)? {
                Ok(Some(value)) => value,
                Ok(None) => return Ok(Err(UnreadableReason::IncompleteParts)),
                Err(why) => return Ok(Err(why)),
            };
            match self.chunk(&raw_key, &value) {
                Ok(chunk) if (chunk.count, chunk.seq) == (first.count, first.seq) => {
                    body.extend_from_slice(chunk.body);
                }
                Ok(_) => return Ok(Err(UnreadableReason::IncompleteParts)),
                Err(why) => return Ok(Err(why)),
            }
        }
        let whole = self.schema.migrate_raw(first.schema, key, body.freeze());
        Ok(whole)
    }

    fn read_chunk(&self, raw_key: &[u8]) -> sled::Result<Result<Option<IVec>, UnreadableReason>> {
        match catch_sled_panic(|| self.tree.get(raw_key)) {
            Ok(value) => Ok(Ok(value)),
            Err(sled::Error::Corruption { .. }) => Ok(Err(UnreadableReason::DamagedPage)),
            Err(other) => Err(other),
        }
    }
}

/// The size of a key and its value.
pub(crate) fn entry_bytes(key: usize, value: usize) -> i64 {
    i64::try_from(key + value).unwrap_or(i64::MAX)
}
