//! Reads an attempt's transcript in a blocking thread, one batch at a time, and tracks its end.

use std::ops::Range;
use std::path::PathBuf;

use tokio::task::JoinHandle;

use super::TranscriptReader;
use crate::spool::{ChildPipe, ReadLimit, SpoolChunk, SpoolError, SpoolReader};

/// Bytes that are read at a time, and so the most that waits in memory.
const BATCH_BYTES: usize = 256 * 1024;

type BatchReadResult = (SpoolReader, Result<Vec<SpoolChunk>, SpoolError>);

#[derive(Debug)]
pub(super) struct SpoolBatchReader {
    /// Absent while the job reads.
    reader: Option<SpoolReader>,
    read_job: Option<JoinHandle<BatchReadResult>>,
    position: u64,
    upto: ReadLimit,
    /// Everything was read, or it cannot be read.
    is_at_end: bool,
}

impl SpoolBatchReader {
    pub(super) fn open(directory: PathBuf, position: u64) -> Self {
        Self {
            reader: Some(SpoolReader::open(directory, position)),
            read_job: None,
            position,
            upto: ReadLimit::Position(0),
            is_at_end: false,
        }
    }

    /// The shim has written up to this position.
    pub(super) fn extend_end(&mut self, end: u64) {
        match self.upto {
            ReadLimit::Position(known) => self.upto = ReadLimit::Position(known.max(end)),
            ReadLimit::LastWholeRecord => {}
        }
    }

    /// The shim is gone without a report: reads as far as there are whole records.
    pub(super) fn read_to_last_record(&mut self) {
        self.upto = ReadLimit::LastWholeRecord;
    }

    pub(super) fn has_more(&self) -> bool {
        !self.is_at_end
            && match self.upto {
                ReadLimit::Position(end) => self.position < end,
                ReadLimit::LastWholeRecord => true,
            }
    }

    /// Bytes before the known end that were never read.
    pub(super) fn unread_bytes(&self) -> u64 {
        match self.upto {
            ReadLimit::Position(end) => end.saturating_sub(self.position),
            ReadLimit::LastWholeRecord => 0,
        }
    }

    /// The next batch; empty at the end. After an error there is no more. Cancel safe.
    pub(super) async fn next_batch(&mut self) -> Result<Vec<SpoolChunk>, SpoolError> {
        if let Some(reader) = self.reader.take() {
            let upto = self.upto;
            self.read_job = Some(tokio::task::spawn_blocking(move || {
                read_batch(reader, upto)
            }));
        }
        let Some(job) = &mut self.read_job else {
            return Ok(Vec::new());
        };
        let (reader, batch) = job.await.expect("reading a file does not panic");
        self.read_job = None;
        self.position = reader.position();
        self.reader = Some(reader);
        let at_last = self.upto == ReadLimit::LastWholeRecord;
        self.is_at_end = match &batch {
            Ok(batch) => at_last && batch.is_empty(),
            Err(_) => true,
        };
        batch
    }
}

/// Gives the reader output again that it has already reported, to restore its state. What was
/// consumed for good holds nothing that the state needs.
pub(super) async fn replay_transcript(
    spool: PathBuf,
    range: Range<u64>,
    reader_state: &mut TranscriptReader,
) {
    let all = reader_state.has_agent_session();
    let read = tokio::task::spawn_blocking(move || {
        let oldest = crate::spool::oldest_position(&spool).ok().flatten();
        let from = oldest.map_or(range.start, |oldest| range.start.max(oldest));
        let mut reader = SpoolReader::open(spool, from);
        let mut chunks = Vec::new();
        while let Ok(Some(chunk)) = reader.next(ReadLimit::Position(range.end)) {
            if all || chunk.kind == ChildPipe::Stderr {
                chunks.push(chunk);
            }
        }
        (chunks, range.end)
    });
    let (chunks, end) = read.await.expect("reading a file does not panic");
    for chunk in chunks {
        let known = end.saturating_sub(chunk.position);
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let bytes = &chunk.bytes[..known.min(chunk.bytes.len())];
        reader_state.replay(chunk.kind, chunk.position, bytes);
    }
}

fn read_batch(mut reader: SpoolReader, upto: ReadLimit) -> BatchReadResult {
    let mut batch = Vec::new();
    let mut length = 0;
    while length < BATCH_BYTES {
        match reader.next(upto) {
            Ok(Some(chunk)) => {
                length += chunk.bytes.len();
                batch.push(chunk);
            }
            Ok(None) => break,
            // The chunks before the error count; the next call meets the error again.
            Err(_) if !batch.is_empty() => break,
            Err(error) => return (reader, Err(error)),
        }
    }
    (reader, Ok(batch))
}
