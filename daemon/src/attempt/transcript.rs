//! Reads an attempt's transcript off the runtime's threads, one batch at a time, and knows how far it goes.

use std::ops::Range;
use std::path::PathBuf;

use tokio::task::JoinHandle;

use super::Fold;
use crate::spool::{Chunk, OutputKind, Reader, SpoolError, Upto};

/// What is read at a time, and so what waits in memory at most.
const BATCH: usize = 256 * 1024;

type Read = (Reader, Result<Vec<Chunk>, SpoolError>);

#[derive(Debug)]
pub(super) struct Transcript {
    /// With the job while that reads.
    reader: Option<Reader>,
    job: Option<JoinHandle<Read>>,
    position: u64,
    upto: Upto,
    /// There is no more to read, or it cannot be read.
    ended: bool,
}

impl Transcript {
    pub(super) fn open(directory: PathBuf, position: u64) -> Self {
        Self {
            reader: Some(Reader::open(directory, position)),
            job: None,
            position,
            upto: Upto::Position(0),
            ended: false,
        }
    }

    /// The shim has said that it wrote this far.
    pub(super) fn grown(&mut self, end: u64) {
        match self.upto {
            Upto::Position(known) => self.upto = Upto::Position(known.max(end)),
            Upto::LastWhole => {}
        }
    }

    /// The shim is gone and has said nothing: as far as it goes.
    pub(super) fn read_all(&mut self) {
        self.upto = Upto::LastWhole;
    }

    pub(super) fn has_more(&self) -> bool {
        !self.ended
            && match self.upto {
                Upto::Position(end) => self.position < end,
                Upto::LastWhole => true,
            }
    }

    /// Bytes before the known end that were never read.
    pub(super) fn unread(&self) -> u64 {
        match self.upto {
            Upto::Position(end) => end.saturating_sub(self.position),
            Upto::LastWhole => 0,
        }
    }

    /// The next batch; empty at the end. After an error there is no more. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Vec<Chunk>, SpoolError> {
        if let Some(reader) = self.reader.take() {
            let upto = self.upto;
            self.job = Some(tokio::task::spawn_blocking(move || read(reader, upto)));
        }
        let Some(job) = &mut self.job else {
            return Ok(Vec::new());
        };
        let (reader, batch) = job.await.expect("reading a file does not panic");
        self.job = None;
        self.position = reader.position();
        self.reader = Some(reader);
        let at_last = self.upto == Upto::LastWhole;
        self.ended = match &batch {
            Ok(batch) => at_last && batch.is_empty(),
            Err(_) => true,
        };
        batch
    }
}

/// Shows the fold again what it was told before. What was consumed for good has nothing that it must remember.
pub(super) async fn recall(spool: PathBuf, range: Range<u64>, fold: &mut Fold) {
    let all = fold.is_talk();
    let read = tokio::task::spawn_blocking(move || {
        let oldest = crate::spool::oldest(&spool).ok().flatten();
        let from = oldest.map_or(range.start, |oldest| range.start.max(oldest));
        let mut reader = Reader::open(spool, from);
        let mut chunks = Vec::new();
        while let Ok(Some(chunk)) = reader.next(Upto::Position(range.end)) {
            if all || chunk.kind == OutputKind::Stderr {
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
        fold.recall(chunk.kind, chunk.position, bytes);
    }
}

fn read(mut reader: Reader, upto: Upto) -> Read {
    let mut batch = Vec::new();
    let mut length = 0;
    while length < BATCH {
        match reader.next(upto) {
            Ok(Some(chunk)) => {
                length += chunk.bytes.len();
                batch.push(chunk);
            }
            Ok(None) => break,
            // What was read before it counts; the next call meets the error again.
            Err(_) if !batch.is_empty() => break,
            Err(error) => return (reader, Err(error)),
        }
    }
    (reader, Ok(batch))
}
