//! Following: history from disk, then live from the shared tail, in one stream without gap or duplicate.
//!
//! Pull-based: a follower holds at most one batch and an offset. One that is slow finds the tail gone past it and reads
//! the disk again; nobody queues for it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::watch;
use tokio_stream::Stream;
use tokio_util::sync::ReusableBoxFuture;
use uuid::Uuid;

use super::attempt::Step;
use super::error::ReadError;
use super::index::Index;
use super::piece::{OutputEnd, Piece};
use super::reader::Reader;

/// About one extent, so that one read serves one batch.
const BATCH_BYTES: usize = 256 * 1024;

type Batch = Option<Result<Vec<Piece>, ReadError>>;

/// One reader's place in one attempt's output.
struct Follower {
    attempt: Uuid,
    at: u64,
    moves: watch::Receiver<OutputEnd>,
    reader: Arc<Reader>,
    /// Last, so that the receiver above is gone when the index looks who is left.
    presence: Presence,
}

/// Counts the follower while it lives.
struct Presence {
    attempt: Uuid,
    index: Arc<Index>,
}

impl Follower {
    async fn next(&mut self) -> Batch {
        loop {
            // Seen before looking, so that what moves in between wakes the wait below.
            self.moves.borrow_and_update();
            let batch = match self.presence.index.step(self.attempt, self.at) {
                None => return Some(Err(ReadError::Unknown)),
                Some(Step::End) => return None,
                Some(Step::Tail(pieces)) => Ok(pieces),
                Some(Step::Disk) => self.read().await,
                Some(Step::Wait) => {
                    let moved = self.moves.changed().await;
                    if moved.is_err() && self.presence.index.has_hung_up() {
                        return Some(Err(ReadError::Closed));
                    }
                    continue;
                }
            };
            if let Some(last) = batch.as_ref().ok().and_then(|pieces| pieces.last()) {
                self.at = last.end();
            }
            return Some(batch);
        }
    }

    /// History may be cold, so the read leaves the runtime's threads.
    async fn read(&self) -> Result<Vec<Piece>, ReadError> {
        let (reader, attempt, at) = (Arc::clone(&self.reader), self.attempt, self.at);
        let read = tokio::task::spawn_blocking(move || reader.read(attempt, at, BATCH_BYTES));
        // Only a runtime that shuts down cancels it, and then nobody reads the answer.
        read.await.unwrap_or(Err(ReadError::Closed))
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.index.remove_follower(self.attempt);
    }
}

/// The stream over a follower.
pub(crate) struct Follow {
    batch: VecDeque<Piece>,
    next: ReusableBoxFuture<'static, (Batch, Follower)>,
    ended: bool,
}

async fn step(mut follower: Follower) -> (Batch, Follower) {
    (follower.next().await, follower)
}

impl Follow {
    pub(crate) fn new(index: Arc<Index>, reader: Arc<Reader>, attempt: Uuid, from: u64) -> Self {
        let follower = Follower {
            attempt,
            at: from,
            moves: index.add_follower(attempt),
            reader,
            presence: Presence { attempt, index },
        };
        Self {
            batch: VecDeque::new(),
            next: ReusableBoxFuture::new(step(follower)),
            ended: false,
        }
    }
}

impl Stream for Follow {
    type Item = Result<Piece, ReadError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(piece) = self.batch.pop_front() {
                return Poll::Ready(Some(Ok(piece)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let (batch, follower) = ready!(self.next.poll(context));
            match batch {
                None => self.ended = true,
                Some(Err(error)) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
                Some(Ok(pieces)) => {
                    self.batch = pieces.into();
                    self.next.set(step(follower));
                }
            }
        }
    }
}
