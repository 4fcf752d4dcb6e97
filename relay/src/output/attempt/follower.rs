//! Followers: history from disk, then live pieces from the shared tail, in one stream without
//! gap or duplicate.
//!
//! Pull-based: a follower has at most one batch and an offset. A slow follower that the tail
//! has passed reads from disk again; nothing is queued for it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::watch;
use tokio_stream::Stream;
use tokio_util::sync::ReusableBoxFuture;
use uuid::Uuid;

use super::attempt_output::FollowStep;
use super::index::OutputIndex;
use crate::output::error::OutputReadError;
use crate::output::piece::{OutputEnd, OutputPiece};
use crate::output::segment_reader::OutputSegmentReader;

/// About one extent, so that one read fills one batch.
const BATCH_BYTES: usize = 256 * 1024;

type PieceBatch = Option<Result<Vec<OutputPiece>, OutputReadError>>;

/// One reader's position in one attempt's output.
struct OutputFollower {
    attempt: Uuid,
    at: u64,
    end_changes: watch::Receiver<OutputEnd>,
    reader: Arc<OutputSegmentReader>,
    /// Must be the last field: the receiver above must be dropped before the index counts the
    /// remaining listeners.
    registration: FollowerRegistration,
}

/// Counts the follower while it lives.
struct FollowerRegistration {
    attempt: Uuid,
    index: Arc<OutputIndex>,
}

impl OutputFollower {
    async fn next(&mut self) -> PieceBatch {
        loop {
            // Mark the end as seen before checking it, so that a later change ends the wait
            // below.
            self.end_changes.borrow_and_update();
            let batch = match self.registration.index.step(self.attempt, self.at) {
                None => return Some(Err(OutputReadError::Unknown)),
                Some(FollowStep::End) => return None,
                Some(FollowStep::FromTail(pieces)) => Ok(pieces),
                Some(FollowStep::ReadDisk) => self.read().await,
                Some(FollowStep::Wait) => {
                    let moved = self.end_changes.changed().await;
                    if moved.is_err() && self.registration.index.has_writer_ended() {
                        return Some(Err(OutputReadError::Closed));
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

    /// History may not be in the page cache, so the read runs on a blocking thread.
    async fn read(&self) -> Result<Vec<OutputPiece>, OutputReadError> {
        let (reader, attempt, at) = (Arc::clone(&self.reader), self.attempt, self.at);
        let read = tokio::task::spawn_blocking(move || reader.read(attempt, at, BATCH_BYTES));
        // Only a runtime that shuts down cancels it, and then nothing reads the result.
        read.await.unwrap_or(Err(OutputReadError::Closed))
    }
}

impl Drop for FollowerRegistration {
    fn drop(&mut self) {
        self.index.remove_follower(self.attempt);
    }
}

/// The stream of a follower's pieces.
pub(crate) struct FollowStream {
    batch: VecDeque<OutputPiece>,
    next: ReusableBoxFuture<'static, (PieceBatch, OutputFollower)>,
    ended: bool,
}

async fn step(mut follower: OutputFollower) -> (PieceBatch, OutputFollower) {
    (follower.next().await, follower)
}

impl FollowStream {
    pub(crate) fn new(
        index: Arc<OutputIndex>,
        reader: Arc<OutputSegmentReader>,
        attempt: Uuid,
        from: u64,
    ) -> Self {
        let follower = OutputFollower {
            attempt,
            at: from,
            end_changes: index.add_follower(attempt),
            reader,
            registration: FollowerRegistration { attempt, index },
        };
        Self {
            batch: VecDeque::new(),
            next: ReusableBoxFuture::new(step(follower)),
            ended: false,
        }
    }
}

impl Stream for FollowStream {
    type Item = Result<OutputPiece, OutputReadError>;

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
