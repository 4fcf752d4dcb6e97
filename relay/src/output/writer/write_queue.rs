//! The queue of the writer: accepts output in order under the attempt's lock and queues it in
//! the same order.
//!
//! Room in the queue is reserved before the order is decided. So a caller that is cancelled
//! while it waits has changed nothing, and everything accepted is queued. Nothing here accesses
//! the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use uuid::Uuid;

use crate::output::DroppedSegments;
use crate::output::attempt::attempt_output::{AttemptOutput, SealPhase};
use crate::output::attempt::index::OutputIndex;
use crate::output::error::{OutputAppendError, OutputSyncError};
use crate::output::piece::{AcceptedEnd, CutReason, OutputChunk, OutputEnd};

/// Jobs in the queue. When it is full, the caller waits, which slows down only its daemon's
/// stream.
const QUEUE_JOBS: usize = 4096;
/// Payload bytes in the queue, so that large chunks cannot fill the memory.
const QUEUE_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub(crate) enum OutputWriterJob {
    Write(QueuedWrite),
    Control(OutputWriterControl),
}

/// What the writer does between groups.
#[derive(Debug)]
pub(crate) enum OutputWriterControl {
    Tick {
        now_wall_ms: u64,
        reply: oneshot::Sender<DroppedSegments>,
    },
    Close {
        reply: oneshot::Sender<()>,
    },
}

#[derive(Debug)]
pub(crate) struct QueuedWrite {
    pub(crate) attempt: Uuid,
    pub(crate) generation: u64,
    pub(crate) offset: u64,
    pub(crate) after_control_seq: u64,
    pub(crate) body: WriteBody,
    /// Released when the job is finished.
    pub(crate) _reserved_bytes: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
pub(crate) enum WriteBody {
    Bytes {
        kind: u8,
        observed_at_ms: u64,
        bytes: Bytes,
        /// Bytes after these that exceeded the attempt's limit.
        over_limit: u64,
    },
    Cut {
        to: u64,
        reason: CutReason,
    },
    Seal,
    Forget,
}

#[derive(Debug)]
pub(crate) struct WriteQueue {
    sender: mpsc::Sender<OutputWriterJob>,
    room: Arc<Semaphore>,
    index: Arc<OutputIndex>,
    /// Set by the writer on a full disk, cleared by the next tick.
    full: Arc<AtomicBool>,
    /// Set while the remaining disk space is reserved for records.
    restricted: AtomicBool,
    attempt_bytes_max: u64,
}

/// Output that each attempt may have in all while the disk space is reserved.
const RESTRICTED_ATTEMPT_BYTES: u64 = 64 * 1024;

type QueueSlot<'a> = mpsc::Permit<'a, OutputWriterJob>;

impl WriteQueue {
    pub(crate) fn new(
        index: Arc<OutputIndex>,
        full: Arc<AtomicBool>,
        attempt_bytes_max: u64,
    ) -> (Self, mpsc::Receiver<OutputWriterJob>) {
        let (sender, receiver) = mpsc::channel(QUEUE_JOBS);
        let room = Arc::new(Semaphore::new(QUEUE_BYTES));
        let queue = Self {
            sender,
            room,
            index,
            full,
            restricted: AtomicBool::new(false),
            attempt_bytes_max,
        };
        (queue, receiver)
    }

    pub(crate) fn set_restricted(&self, restricted: bool) {
        self.restricted.store(restricted, Ordering::Release);
    }

    /// Whether output of any length is accepted.
    pub(crate) fn has_room(&self) -> bool {
        !self.restricted.load(Ordering::Acquire) && !self.full.load(Ordering::Acquire)
    }

    /// Whether output of this attempt is refused to save space. Attempts with little output are
    /// still accepted; otherwise no running attempt could end.
    fn is_restricted_for(&self, attempt: Uuid) -> bool {
        let stored = || self.index.end(attempt).map_or(0, |end| end.end);
        self.restricted.load(Ordering::Acquire) && stored() >= RESTRICTED_ATTEMPT_BYTES
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        QUEUE_BYTES - self.room.available_permits().min(QUEUE_BYTES)
    }

    async fn reserve_slot(&self) -> Result<QueueSlot<'_>, OutputAppendError> {
        if self.full.load(Ordering::Acquire) {
            return Err(OutputAppendError::DiskFull);
        }
        self.sender
            .reserve()
            .await
            .map_err(|_| OutputAppendError::Closed)
    }

    pub(crate) async fn append(
        &self,
        chunk: OutputChunk,
    ) -> Result<AcceptedEnd, OutputAppendError> {
        if self.is_restricted_for(chunk.attempt) {
            return Err(OutputAppendError::DiskFull);
        }
        let size = u32::try_from(chunk.bytes.len()).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(size).await;
        let room = room.map_err(|_| OutputAppendError::Closed)?;
        let slot = self.reserve_slot().await?;
        let (attempt, from) = (chunk.attempt, chunk.offset);
        // An offset near the maximum is refused anyway: it would be a gap.
        let to = from.saturating_add(u64::from(size));
        self.accept(attempt, from, to, |output, start| {
            let write = self.split_at_limit(output, chunk, start, room);
            slot.send(OutputWriterJob::Write(write));
        })
    }

    /// Splits the chunk at its attempt's limit. The bytes over the limit are not kept in memory
    /// either.
    fn split_at_limit(
        &self,
        output: &mut AttemptOutput,
        chunk: OutputChunk,
        start: u64,
        room: OwnedSemaphorePermit,
    ) -> QueuedWrite {
        let mut bytes = chunk.bytes;
        let stored_len = usize::try_from(start - chunk.offset).expect("inside the chunk");
        let new_bytes = bytes.split_off(stored_len);
        let left = self.attempt_bytes_max.saturating_sub(output.stored);
        let kept = usize::try_from(left).map_or(new_bytes.len(), |left| left.min(new_bytes.len()));
        output.stored += kept as u64;
        output.after_control_seq = output.after_control_seq.max(chunk.after_control_seq);
        let body = match kept {
            0 => WriteBody::Cut {
                to: start + new_bytes.len() as u64,
                reason: CutReason::AttemptLimit,
            },
            1.. => WriteBody::Bytes {
                kind: chunk.kind,
                observed_at_ms: chunk.observed_at_ms,
                bytes: new_bytes.slice(..kept),
                over_limit: (new_bytes.len() - kept) as u64,
            },
        };
        QueuedWrite {
            attempt: chunk.attempt,
            generation: output.generation,
            offset: start,
            after_control_seq: chunk.after_control_seq,
            body,
            _reserved_bytes: Some(room),
        }
    }

    pub(crate) async fn append_cut(
        &self,
        attempt: Uuid,
        from: u64,
        to: u64,
        reason: CutReason,
    ) -> Result<AcceptedEnd, OutputAppendError> {
        let slot = self.reserve_slot().await?;
        self.accept(attempt, from, to, |output, start| {
            slot.send(OutputWriterJob::Write(QueuedWrite {
                attempt,
                generation: output.generation,
                offset: start,
                after_control_seq: output.after_control_seq,
                body: WriteBody::Cut { to, reason },
                _reserved_bytes: None,
            }));
        })
    }

    /// Checks the order. For new output, moves the end and queues the job in one step.
    fn accept(
        &self,
        attempt: Uuid,
        from: u64,
        to: u64,
        queue: impl FnOnce(&mut AttemptOutput, u64),
    ) -> Result<AcceptedEnd, OutputAppendError> {
        let mut shard = self.index.shard(attempt);
        if from > 0 && !shard.contains_key(&attempt) {
            return Err(OutputAppendError::Gap { expected: 0 });
        }
        if from == to && !shard.contains_key(&attempt) {
            return Ok(AcceptedEnd { end: 0 });
        }
        let output = shard
            .entry(attempt)
            .or_insert_with(|| AttemptOutput::new(self.index.next_generation()));
        if let Some(start) = output.new_part(from, to)? {
            output.end = to;
            queue(output, start);
        }
        Ok(AcceptedEnd { end: output.end })
    }

    /// Waits until the seal is durable. An attempt without output needs no seal on disk.
    pub(crate) async fn seal(&self, attempt: Uuid) -> Result<(), OutputAppendError> {
        if self.seal_without_output(attempt) {
            return Ok(());
        }
        let slot = self.reserve_slot().await?;
        self.index.with_attempt(attempt, |output| {
            if output.phase == SealPhase::Open {
                output.phase = SealPhase::Sealing;
                slot.send(OutputWriterJob::Write(QueuedWrite {
                    attempt,
                    generation: output.generation,
                    offset: output.end,
                    after_control_seq: output.after_control_seq,
                    body: WriteBody::Seal,
                    _reserved_bytes: None,
                }));
            }
        });
        match self.wait(attempt, |end| end.sealed).await {
            Ok(()) => Ok(()),
            Err(OutputSyncError::DiskFull) => Err(OutputAppendError::DiskFull),
            Err(OutputSyncError::Closed | OutputSyncError::NotAccepted { .. }) => {
                Err(OutputAppendError::Closed)
            }
        }
    }

    /// Seals an attempt without output; true if nothing needs to be written.
    fn seal_without_output(&self, attempt: Uuid) -> bool {
        let mut shard = self.index.shard(attempt);
        let Some(output) = shard.get_mut(&attempt) else {
            return true;
        };
        if !output.has_no_output() {
            return output.phase == SealPhase::Sealed;
        }
        output.phase = SealPhase::Sealed;
        output.notify_listeners();
        if output.listeners.is_none() {
            shard.remove(&attempt);
        }
        true
    }

    pub(crate) async fn wait_durable(
        &self,
        attempt: Uuid,
        through: u64,
    ) -> Result<(), OutputSyncError> {
        let end = self.index.end(attempt).map_or(0, |output| output.end);
        if through > end {
            return Err(OutputSyncError::NotAccepted { end });
        }
        if through == 0 {
            return Ok(());
        }
        self.wait(attempt, |end| end.durable >= through).await
    }

    /// Waits until `reached` is true. A changed generation means that a full disk discarded
    /// accepted bytes.
    async fn wait(
        &self,
        attempt: Uuid,
        reached: impl Fn(&OutputEnd) -> bool,
    ) -> Result<(), OutputSyncError> {
        let (start, mut changes) = self
            .index
            .subscribe_existing(attempt)
            .ok_or(OutputSyncError::Closed)?;
        let mut now = start;
        loop {
            if reached(&now.end) {
                return Ok(());
            }
            if now.generation != start.generation {
                return Err(OutputSyncError::DiskFull);
            }
            let changed = changes.changed().await;
            now = self
                .index
                .position(attempt)
                .ok_or(OutputSyncError::Closed)?;
            if changed.is_err() && !reached(&now.end) {
                return Err(OutputSyncError::Closed);
            }
        }
    }

    /// Forgets the attempt. Idempotent; nothing is written for an unknown attempt.
    pub(crate) async fn forget(&self, attempt: Uuid) -> Result<(), OutputAppendError> {
        let slot = self.reserve_slot().await?;
        if self.index.forget(attempt) {
            slot.send(OutputWriterJob::Write(QueuedWrite {
                attempt,
                generation: 0,
                offset: 0,
                after_control_seq: 0,
                body: WriteBody::Forget,
                _reserved_bytes: None,
            }));
        }
        Ok(())
    }

    pub(crate) async fn tick(
        &self,
        now_wall_ms: u64,
    ) -> Result<DroppedSegments, OutputAppendError> {
        let (reply, done) = oneshot::channel();
        let tick = OutputWriterJob::Control(OutputWriterControl::Tick { now_wall_ms, reply });
        self.sender
            .send(tick)
            .await
            .map_err(|_| OutputAppendError::Closed)?;
        done.await.map_err(|_| OutputAppendError::Closed)
    }

    /// Closes the writer. If it has ended already, there is nothing to do.
    pub(crate) async fn close(&self) {
        let (reply, done) = oneshot::channel();
        if self
            .sender
            .send(OutputWriterJob::Control(OutputWriterControl::Close {
                reply,
            }))
            .await
            .is_ok()
        {
            drop(done.await);
        }
    }
}
