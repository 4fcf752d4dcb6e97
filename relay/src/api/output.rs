//! One attempt's output as a stream: from an offset, in order, without gaps; what is missing is said by a cut.
//!
//! With `follow` it goes on until the attempt has ended and everything stored of it was sent. A terminal frame reaches
//! the core only after its output is durable, so at the end of an attempt its output is complete.

use std::sync::Arc;

use baton_core::id::{AttemptId, TaskId, TenantId};
use baton_core::record::{AttemptRecord, EndState, Receipt, State, TaskRecord};
use baton_proto::v1;
use baton_proto::v1::read_output_response::Item;
use tokio_stream::StreamExt;

use super::fault::{Fault, Thing};
use super::streams::{Answers, Feed};
use super::{Api, limits, validate};
use crate::auth::Principal;
use crate::output::{CutReason, OutputLog, Piece, ReadError};
use crate::reader::Reader;
use crate::session::VISIBLE;
use crate::watch::Tail;
use crate::wire::words;

/// Read from the log at one time.
const BLOCK_BYTES: usize = 256 * 1024;

impl Api {
    pub(super) async fn output_of(
        &self,
        who: Principal,
        request: v1::ReadOutputRequest,
    ) -> Result<Answers<v1::ReadOutputResponse>, Fault> {
        let (task, attempt) = self.named_attempt(&who.tenant, &request).await?;
        let tail = self.watch_place(task, 0)?;
        let (_, record) = self.stored_task(&who, task).await?;
        let attempt = match attempt {
            Some(id) => record.attempt(id),
            None => record.newest(),
        };
        let attempt = attempt.ok_or(Fault::NotFound(Thing::Attempt))?;
        let reading = Reading {
            log: self.output.clone(),
            attempt: attempt.id,
            at: request.from_offset,
            left: if request.limit_bytes == 0 {
                u64::MAX
            } else {
                request.limit_bytes
            },
        };
        let record = record.clone();
        self.stream(&who, |feed| reading.run(tail, record, request.follow, feed))
    }

    /// The task and, where the caller named it, the attempt.
    async fn named_attempt(
        &self,
        tenant: &TenantId,
        request: &v1::ReadOutputRequest,
    ) -> Result<(TaskId, Option<AttemptId>), Fault> {
        let attempt = match request.attempt_id.as_str() {
            "" => None,
            id => Some(validate::id::<AttemptId>("attempt_id", id)?),
        };
        match (request.task_id.as_str(), attempt) {
            ("", Some(attempt)) => {
                let tenant = tenant.clone();
                let task = self
                    .read(move |reader| task_of(reader, &tenant, attempt))
                    .await?;
                Ok((task.ok_or(Fault::NotFound(Thing::Attempt))?, Some(attempt)))
            }
            (task, attempt) => Ok((validate::id("task_id", task)?, attempt)),
        }
    }
}

/// Ids are made in time order, so an attempt's task is among those made before it, and most often the last of them.
fn task_of(reader: &Reader, tenant: &TenantId, attempt: AttemptId) -> Option<TaskId> {
    let mut before = Some(TaskId(attempt.0));
    for _ in 0..limits::LIST_SCAN / limits::PAGE_MAX as usize {
        let page = reader.tasks(tenant, before, limits::PAGE_MAX as usize);
        let owner = page
            .tasks
            .iter()
            .find(|(_, record)| record.attempt(attempt).is_some());
        if let Some((_, record)) = owner {
            return Some(record.task);
        }
        before = Some(page.next?);
    }
    None
}

struct Reading {
    log: OutputLog,
    attempt: AttemptId,
    /// The next byte to send.
    at: u64,
    /// Bytes that the client still wants.
    left: u64,
}

impl Reading {
    async fn run(
        mut self,
        tail: Tail,
        record: Arc<TaskRecord>,
        follow: bool,
        feed: Feed<v1::ReadOutputResponse>,
    ) -> Result<(), Fault> {
        let ended = attempt_of(&record, self.attempt).is_some_and(has_ended);
        let record = if follow && !ended {
            self.follow(tail, record, &feed).await?
        } else {
            let stored = self.stored_end();
            self.stored(stored, &feed).await?;
            record
        };
        let attempt = attempt_of(&record, self.attempt).ok_or(Fault::Internal)?;
        self.say_what_is_missing(attempt, &feed).await?;
        let end = v1::OutputEnd {
            attempt_id: self.attempt.to_string(),
            offset: self.at,
            state: words::attempt_state(attempt.state.name()).into(),
            complete: has_ended(attempt)
                && self.at >= self.stored_end()
                && names_its_end(attempt)
                && !self.ends_open().await?,
        };
        send(&feed, Item::End(end)).await
    }

    fn stored_end(&self) -> u64 {
        self.log.end(self.attempt.0).map_or(0, |end| end.durable)
    }

    /// The last of it is a cut of unknown length, whether or not this reader began before it.
    async fn ends_open(&self) -> Result<bool, Fault> {
        let Some(last) = self.stored_end().checked_sub(1) else {
            return Ok(false);
        };
        let (log, attempt) = (self.log.clone(), self.attempt.0);
        let read = tokio::task::spawn_blocking(move || log.read(attempt, last, 1));
        let pieces = match read.await {
            Ok(Ok(pieces)) => pieces,
            Ok(Err(ReadError::Unknown)) => return Ok(false),
            Ok(Err(error)) => return Err(unreadable(&error)),
            Err(error) => return Err(unreadable(&error)),
        };
        let reason = |piece: &Piece| match piece {
            Piece::Cut { reason, .. } => Some(*reason),
            Piece::Bytes { .. } => None,
        };
        Ok(pieces.last().and_then(reason) == Some(CutReason::RecorderLost))
    }

    /// Sends what is stored below `until`.
    async fn stored(
        &mut self,
        until: u64,
        feed: &Feed<v1::ReadOutputResponse>,
    ) -> Result<(), Fault> {
        while self.at < until && self.left > 0 {
            let (log, attempt, at) = (self.log.clone(), self.attempt.0, self.at);
            let read = tokio::task::spawn_blocking(move || log.read(attempt, at, BLOCK_BYTES));
            let pieces = match read.await {
                Ok(Ok(pieces)) => pieces,
                Ok(Err(ReadError::Unknown)) => return Ok(()),
                Ok(Err(error)) => return Err(unreadable(&error)),
                Err(error) => return Err(unreadable(&error)),
            };
            if pieces.is_empty() {
                return Ok(());
            }
            for piece in pieces {
                self.forward(piece, feed).await?;
            }
        }
        Ok(())
    }

    /// Sends pieces as they come, until the attempt has ended and all of it was sent. Gives the record as it is then.
    async fn follow(
        &mut self,
        mut tail: Tail,
        mut record: Arc<TaskRecord>,
        feed: &Feed<v1::ReadOutputResponse>,
    ) -> Result<Arc<TaskRecord>, Fault> {
        let log = self.log.clone();
        let mut pieces = log.follow(self.attempt.0, self.at);
        let mut open = true;
        while self.left > 0 {
            tokio::select! {
                piece = pieces.next(), if open => match piece {
                    Some(Ok(piece)) => self.forward(piece, feed).await?,
                    Some(Err(error)) => return Err(unreadable(&error)),
                    // Sealed with the attempt's end, whose record may be heard of a moment later.
                    None => open = false,
                },
                step = tail.next() => {
                    record = step.record;
                    if attempt_of(&record, self.attempt).is_none_or(has_ended) {
                        drop(pieces);
                        let until = self.stored_end();
                        self.stored(until, feed).await?;
                        break;
                    }
                }
            }
        }
        Ok(record)
    }

    async fn forward(
        &mut self,
        piece: Piece,
        feed: &Feed<v1::ReadOutputResponse>,
    ) -> Result<(), Fault> {
        if piece.end() <= self.at || self.left == 0 {
            return Ok(());
        }
        let piece = piece.starting_at(self.at);
        self.at = piece.end();
        self.left = self.left.saturating_sub(piece.weight() as u64);
        send(feed, self.item(piece)).await
    }

    /// The record may know of output that the log no longer has: all of it fell to retention.
    async fn say_what_is_missing(
        &mut self,
        attempt: &AttemptRecord,
        feed: &Feed<v1::ReadOutputResponse>,
    ) -> Result<(), Fault> {
        let known = attempt.final_offset.unwrap_or(0);
        if self.log.end(self.attempt.0).is_some() || self.at >= known {
            return Ok(());
        }
        let cut = Piece::Cut {
            from: self.at,
            to: known,
            reason: CutReason::Retention,
        };
        self.forward(cut, feed).await
    }

    fn item(&self, piece: Piece) -> Item {
        match piece {
            Piece::Bytes {
                offset,
                observed_at_ms,
                kind,
                bytes,
                ..
            } => Item::Chunk(v1::OutputChunk {
                attempt_id: self.attempt.to_string(),
                offset,
                end_offset: offset + bytes.len() as u64,
                data: bytes,
                kind: i32::from(kind & !VISIBLE),
                visible: kind & VISIBLE != 0,
                tool_call_id: String::new(),
                observed_at: Some(baton_proto::timestamp_from_ms(observed_at_ms)),
            }),
            Piece::Cut { from, to, reason } => Item::Cut(v1::OutputCut {
                offset: from,
                length: to - from,
                reason: cut_reason(reason).into(),
                after_control_seq: 0,
                length_unknown: reason == CutReason::RecorderLost,
            }),
        }
    }
}

fn attempt_of(record: &TaskRecord, attempt: AttemptId) -> Option<&AttemptRecord> {
    record.attempt(attempt)
}

/// Nothing more is expected of it.
fn has_ended(attempt: &AttemptRecord) -> bool {
    matches!(attempt.state, State::Parked(_) | State::Ended(_))
}

/// Its last word said how much output there is, or it never had any: what else was printed and never sent, nobody knows.
fn names_its_end(attempt: &AttemptRecord) -> bool {
    let ran = match &attempt.state {
        State::Ended(end) => end.receipt != Receipt::NotNeeded && end.state != EndState::Released,
        State::Parked(parked) => parked.receipt != Receipt::NotNeeded,
        // Not over: asked after that.
        State::Queued
        | State::Offered
        | State::Accepted
        | State::Starting
        | State::Prompted
        | State::Streaming
        | State::ToolRunning
        | State::WaitingInput
        | State::CleaningUp { .. } => true,
    };
    // A program without a prompt may still have said something of itself.
    let silent = attempt.prompt_written == Some(false) && attempt.times.agent_started.is_none();
    attempt.final_offset.is_some() || !ran || silent
}

fn cut_reason(reason: CutReason) -> v1::CutReason {
    match reason {
        CutReason::DaemonOverflow => v1::CutReason::DaemonOverflow,
        CutReason::DiskFull => v1::CutReason::DiskFull,
        CutReason::LineTooLong => v1::CutReason::LineTooLong,
        CutReason::WorkerCrash | CutReason::RecorderLost => v1::CutReason::WorkerCrash,
        CutReason::AttemptLimit => v1::CutReason::AttemptLimit,
        CutReason::Retention => v1::CutReason::Retention,
        CutReason::Corrupt => v1::CutReason::Corrupt,
        CutReason::NotReceived => v1::CutReason::NotReceived,
        CutReason::Unknown => v1::CutReason::Unspecified,
    }
}

fn unreadable(error: &dyn std::fmt::Display) -> Fault {
    tracing::error!(%error, "stored output cannot be read");
    Fault::Unreadable
}

async fn send(feed: &Feed<v1::ReadOutputResponse>, item: Item) -> Result<(), Fault> {
    let message = v1::ReadOutputResponse { item: Some(item) };
    feed.send(Ok(message)).await.map_err(|_| Fault::Stopping)
}
