//! Streams one attempt's output from an offset, in order and without gaps. Missing bytes are
//! reported as a cut.
//!
//! With `follow`, the stream continues until the attempt has ended and all its stored output was
//! sent. A terminal frame reaches the core only after its output is durable, so the output of an
//! ended attempt is complete.

use std::sync::Arc;

use baton_core::ids::{AttemptId, TaskId, TenantId};
use baton_core::record::{AttemptRecord, AttemptState, EndState, TaskRecord, TerminationReceipt};
use baton_proto::v1;
use baton_proto::v1::read_output_response::Item;
use tokio_stream::StreamExt;

use crate::api::Api;
use crate::api::error::fault::{ApiFault, EntityKind};
use crate::api::request::streams::{ResponseStream, StreamSender};
use crate::api::request::{limits, validate};
use crate::api::wire::enums;
use crate::auth::Principal;
use crate::output::{CutReason, OutputLog, OutputPiece, OutputReadError};
use crate::reader::RecordReader;
use crate::session::VISIBLE_BIT;
use crate::task_watchers::TaskSubscription;

/// Bytes of one read from the log.
const READ_BYTES: usize = 256 * 1024;

impl Api {
    pub(crate) async fn handle_read_output(
        &self,
        who: Principal,
        request: v1::ReadOutputRequest,
    ) -> Result<ResponseStream<v1::ReadOutputResponse>, ApiFault> {
        let (task, attempt) = self.named_attempt(&who.tenant, &request).await?;
        let subscription = self.subscribe_task(task, 0)?;
        let (_, record) = self.stored_task(&who, task).await?;
        let attempt = match attempt {
            Some(id) => record.attempt(id),
            None => record.newest_attempt(),
        };
        let attempt = attempt.ok_or(ApiFault::NotFound(EntityKind::Attempt))?;
        let streamer = OutputStreamer {
            log: self.output.clone(),
            attempt: attempt.id,
            next_offset: request.from_offset,
            bytes_left: if request.limit_bytes == 0 {
                u64::MAX
            } else {
                request.limit_bytes
            },
        };
        let record = record.clone();
        self.open_stream(&who, |feed| {
            streamer.run(subscription, record, request.follow, feed)
        })
    }

    /// The task and, if the caller named it, the attempt.
    async fn named_attempt(
        &self,
        tenant: &TenantId,
        request: &v1::ReadOutputRequest,
    ) -> Result<(TaskId, Option<AttemptId>), ApiFault> {
        let attempt = match request.attempt_id.as_str() {
            "" => None,
            id => Some(validate::id::<AttemptId>("attempt_id", id)?),
        };
        match (request.task_id.as_str(), attempt) {
            ("", Some(attempt)) => {
                let tenant = tenant.clone();
                let task = self
                    .read_store(move |reader| task_of_attempt(reader, &tenant, attempt))
                    .await?;
                Ok((
                    task.ok_or(ApiFault::NotFound(EntityKind::Attempt))?,
                    Some(attempt),
                ))
            }
            (task, attempt) => Ok((validate::id("task_id", task)?, attempt)),
        }
    }
}

/// Finds the task of an attempt. Ids are ordered by time, so the search goes back from the
/// attempt's own id, and mostly ends at the first task.
fn task_of_attempt(reader: &RecordReader, tenant: &TenantId, attempt: AttemptId) -> Option<TaskId> {
    let mut before = Some(TaskId(attempt.0));
    for _ in 0..limits::LIST_SCAN_RECORDS / limits::PAGE_MAX as usize {
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

struct OutputStreamer {
    log: OutputLog,
    attempt: AttemptId,
    /// The next byte to send.
    next_offset: u64,
    /// Bytes left of the client's limit.
    bytes_left: u64,
}

impl OutputStreamer {
    async fn run(
        mut self,
        subscription: TaskSubscription,
        record: Arc<TaskRecord>,
        follow: bool,
        feed: StreamSender<v1::ReadOutputResponse>,
    ) -> Result<(), ApiFault> {
        let ended = attempt_of(&record, self.attempt).is_some_and(has_ended);
        let record = if follow && !ended {
            self.follow(subscription, record, &feed).await?
        } else {
            let stored = self.stored_end();
            self.send_stored(stored, &feed).await?;
            record
        };
        let attempt = attempt_of(&record, self.attempt).ok_or(ApiFault::Internal)?;
        self.send_missing_cut(attempt, &feed).await?;
        let end = v1::OutputEnd {
            attempt_id: self.attempt.to_string(),
            offset: self.next_offset,
            state: enums::attempt_state(attempt.state.kind()).into(),
            complete: has_ended(attempt)
                && self.next_offset >= self.stored_end()
                && reports_final_offset(attempt)
                && !self.ends_with_unknown_cut().await?,
        };
        send_item(&feed, Item::End(end)).await
    }

    fn stored_end(&self) -> u64 {
        self.log.end(self.attempt.0).map_or(0, |end| end.durable)
    }

    /// Whether the stored output ends with a cut of unknown length, also if this reader started
    /// after it.
    async fn ends_with_unknown_cut(&self) -> Result<bool, ApiFault> {
        let Some(last) = self.stored_end().checked_sub(1) else {
            return Ok(false);
        };
        let (log, attempt) = (self.log.clone(), self.attempt.0);
        let read = tokio::task::spawn_blocking(move || log.read(attempt, last, 1));
        let pieces = match read.await {
            Ok(Ok(pieces)) => pieces,
            Ok(Err(OutputReadError::Unknown)) => return Ok(false),
            Ok(Err(error)) => return Err(unreadable_output(&error)),
            Err(error) => return Err(unreadable_output(&error)),
        };
        let reason = |piece: &OutputPiece| match piece {
            OutputPiece::Cut { reason, .. } => Some(*reason),
            OutputPiece::Bytes { .. } => None,
        };
        Ok(pieces.last().and_then(reason) == Some(CutReason::RecorderLost))
    }

    /// Sends the stored output below the offset `until`.
    async fn send_stored(
        &mut self,
        until: u64,
        feed: &StreamSender<v1::ReadOutputResponse>,
    ) -> Result<(), ApiFault> {
        while self.next_offset < until && self.bytes_left > 0 {
            let (log, attempt, at) = (self.log.clone(), self.attempt.0, self.next_offset);
            let read = tokio::task::spawn_blocking(move || log.read(attempt, at, READ_BYTES));
            let pieces = match read.await {
                Ok(Ok(pieces)) => pieces,
                Ok(Err(OutputReadError::Unknown)) => return Ok(()),
                Ok(Err(error)) => return Err(unreadable_output(&error)),
                Err(error) => return Err(unreadable_output(&error)),
            };
            if pieces.is_empty() {
                return Ok(());
            }
            for piece in pieces {
                self.send_piece(piece, feed).await?;
            }
        }
        Ok(())
    }

    /// Sends pieces as they arrive, until the attempt has ended and all its output was sent.
    /// Returns the newest record.
    async fn follow(
        &mut self,
        mut subscription: TaskSubscription,
        mut record: Arc<TaskRecord>,
        feed: &StreamSender<v1::ReadOutputResponse>,
    ) -> Result<Arc<TaskRecord>, ApiFault> {
        let log = self.log.clone();
        let mut pieces = log.follow_output(self.attempt.0, self.next_offset);
        let mut open = true;
        while self.bytes_left > 0 {
            tokio::select! {
                piece = pieces.next(), if open => match piece {
                    Some(Ok(piece)) => self.send_piece(piece, feed).await?,
                    Some(Err(error)) => return Err(unreadable_output(&error)),
                    // The log was sealed at the attempt's end. The record may be published slightly
                    // later.
                    None => open = false,
                },
                update = subscription.next() => {
                    record = update.record;
                    if attempt_of(&record, self.attempt).is_none_or(has_ended) {
                        drop(pieces);
                        let until = self.stored_end();
                        self.send_stored(until, feed).await?;
                        break;
                    }
                }
            }
        }
        Ok(record)
    }

    async fn send_piece(
        &mut self,
        piece: OutputPiece,
        feed: &StreamSender<v1::ReadOutputResponse>,
    ) -> Result<(), ApiFault> {
        if piece.end() <= self.next_offset || self.bytes_left == 0 {
            return Ok(());
        }
        let piece = piece.starting_at(self.next_offset);
        self.next_offset = piece.end();
        self.bytes_left = self.bytes_left.saturating_sub(piece.payload_bytes() as u64);
        send_item(feed, self.piece_item(piece)).await
    }

    /// Sends a cut for output that the record counts but the log no longer has, because retention
    /// removed all of it.
    async fn send_missing_cut(
        &mut self,
        attempt: &AttemptRecord,
        feed: &StreamSender<v1::ReadOutputResponse>,
    ) -> Result<(), ApiFault> {
        let known = attempt.final_offset.unwrap_or(0);
        if self.log.end(self.attempt.0).is_some() || self.next_offset >= known {
            return Ok(());
        }
        let cut = OutputPiece::Cut {
            from: self.next_offset,
            to: known,
            reason: CutReason::Retention,
        };
        self.send_piece(cut, feed).await
    }

    fn piece_item(&self, piece: OutputPiece) -> Item {
        match piece {
            OutputPiece::Bytes {
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
                kind: i32::from(kind & !VISIBLE_BIT),
                visible: kind & VISIBLE_BIT != 0,
                tool_call_id: String::new(),
                observed_at: Some(baton_proto::timestamp_from_ms(observed_at_ms)),
            }),
            OutputPiece::Cut { from, to, reason } => Item::Cut(v1::OutputCut {
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

/// Whether no more output is expected.
fn has_ended(attempt: &AttemptRecord) -> bool {
    matches!(
        attempt.state,
        AttemptState::Parked(_) | AttemptState::Ended(_)
    )
}

/// Whether the length of the output is certain: the last frame reported it, or the attempt had no
/// output. Otherwise the agent may have printed output that never arrived.
fn reports_final_offset(attempt: &AttemptRecord) -> bool {
    let ran = match &attempt.state {
        AttemptState::Ended(end) => {
            end.receipt != TerminationReceipt::NotNeeded && end.state != EndState::Released
        }
        AttemptState::Parked(parked) => parked.receipt != TerminationReceipt::NotNeeded,
        // Not ended; the result is used for ended attempts only.
        AttemptState::Queued
        | AttemptState::Offered
        | AttemptState::Accepted
        | AttemptState::Starting
        | AttemptState::Prompted
        | AttemptState::Streaming
        | AttemptState::ToolRunning
        | AttemptState::WaitingInput
        | AttemptState::CleaningUp { .. } => true,
    };
    // An agent that was started may have printed something even before its prompt was written.
    let silent =
        attempt.prompt_written == Some(false) && attempt.stage_times.agent_started.is_none();
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

fn unreadable_output(error: &dyn std::fmt::Display) -> ApiFault {
    tracing::error!(%error, "reading stored output failed");
    ApiFault::Unreadable
}

async fn send_item(
    feed: &StreamSender<v1::ReadOutputResponse>,
    item: Item,
) -> Result<(), ApiFault> {
    let message = v1::ReadOutputResponse { item: Some(item) };
    feed.send(Ok(message)).await.map_err(|_| ApiFault::Stopping)
}
