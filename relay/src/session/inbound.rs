//! What the daemon says: each frame is decoded, checked against what this session may speak for, and passed on.

use baton_core::input::{Frame, FrameBody, FrameRef, Heartbeat, Input, Sign};
use baton_core::record::Workspace;
use baton_proto::v1;
use baton_proto::v1::daemon_frame::Frame as Sent;

use super::decode::{self, Decoded};
use super::fault::FrameFault;
use super::held::Seen;
use super::{Ended, Session, Settled, unknown};
use crate::output::{AppendError, Appended, CHUNK_BYTES_MAX, Chunk, CutReason};

/// Terminal frames that may wait for their output at one time; a daemon has at most 4096 slots.
const SETTLING_MAX: usize = 4096;
/// Longest stretch that one cut may name; no child writes more within a lease.
const CUT_BYTES_MAX: u64 = 1 << 40;
/// Longest hold that is passed on; the core has its own, lower limit.
const HOLD_MS_MAX: u64 = 600_000;

impl Session {
    pub(super) async fn take(&mut self, frame: v1::DaemonFrame) -> Result<(), Ended> {
        unknown::count(&self.shell.telemetry, &frame);
        match frame.frame {
            // An arm from a newer protocol: nothing to do.
            None => Ok(()),
            Some(Sent::Hello(_)) => Err(Ended::Goodbye(
                v1::GoodbyeCode::ProtocolError,
                "Hello came twice on one stream",
            )),
            Some(Sent::Goodbye(_)) => Err(Ended::ByPeer),
            Some(Sent::Heartbeat(heartbeat)) => self.heartbeat(&heartbeat).await,
            Some(Sent::Hold(hold)) => self.hold(&hold).await,
            Some(Sent::Attempt(frame)) => self.attempt_frame(frame).await,
        }
    }

    async fn heartbeat(&mut self, sent: &v1::Heartbeat) -> Result<(), Ended> {
        let heartbeat = Heartbeat {
            seq: sent.seq,
            heard_seq: sent.heard_seq,
            renewals: renewals(&sent.renew),
            free_slots: sent.free_slots,
            draining: sent.status() == v1::DaemonStatus::Draining,
            // Also for a reason that only a newer daemon knows.
            unfit: sent.refuses != i32::from(v1::RejectCode::Unspecified),
            load: sent.load.as_ref().map(decode::load),
        };
        self.forward(Input::Heartbeat {
            session: self.id,
            heartbeat,
        })
        .await
    }

    async fn hold(&mut self, sent: &v1::HoldRequest) -> Result<(), Ended> {
        self.forward(Input::Hold {
            session: self.id,
            request: sent.seq,
            attempts: renewals(&sent.attempts),
            granted_ms: sent.hold_ms.min(HOLD_MS_MAX),
        })
        .await
    }

    async fn attempt_frame(&mut self, mut frame: v1::AttemptFrame) -> Result<(), Ended> {
        let named = frame
            .r#ref
            .as_ref()
            .map_or_else(String::new, |sent| sent.attempt_id.clone());
        let control_seq = frame.control_seq;
        let offset = output_offset(&frame);
        let workspace = decode::workspace(frame.body.as_ref());
        match self.decode(&mut frame) {
            // A body from a newer protocol that takes no number: nothing to do.
            Ok((_, Decoded::Control(FrameBody::Unknown))) if control_seq == 0 => Ok(()),
            Err(fault) => {
                self.refuse(&named, control_seq, offset, &fault);
                self.use_up(&frame).await
            }
            Ok((re, Decoded::Output(stream))) => self.stream(re, &frame, stream).await,
            Ok((re, Decoded::Cut(cut))) => self.cut(re, cut).await,
            Ok((re, Decoded::Control(body))) => self.control(re, &frame, body, workspace).await,
        }
    }

    /// A control frame that was refused here still takes its number, or everything behind it would be a gap.
    async fn use_up(&mut self, frame: &v1::AttemptFrame) -> Result<(), Ended> {
        match decode::reference(frame.r#ref.as_ref()) {
            Ok(re) if self.held.holds(&re) && frame.control_seq > 0 => {
                self.control(re, frame, FrameBody::Unknown, None).await
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn decode(&self, frame: &mut v1::AttemptFrame) -> Result<(FrameRef, Decoded), FrameFault> {
        decode::block_reason(frame.body.as_ref())?;
        let re = decode::reference(frame.r#ref.as_ref())?;
        if !self.held.holds(&re) {
            return Err(FrameFault::UnknownAttempt);
        }
        let decoded = decode::body(frame.body.take(), frame.within_lease)?;
        match (&decoded, frame.control_seq) {
            (Decoded::Control(FrameBody::Unknown), _)
            | (Decoded::Control(_), 1..)
            | (Decoded::Output(_) | Decoded::Cut(_), 0) => Ok((re, decoded)),
            (Decoded::Control(_), 0) | (Decoded::Output(_) | Decoded::Cut(_), 1..) => {
                Err(FrameFault::WrongNumber)
            }
        }
    }

    async fn control(
        &mut self,
        re: FrameRef,
        sent: &v1::AttemptFrame,
        body: FrameBody,
        workspace: Option<Box<Workspace>>,
    ) -> Result<(), Ended> {
        if let Some(activity) = self.held.flush(self.id, re.attempt) {
            self.forward(Input::Activity(activity)).await?;
        }
        let final_offset = decode::final_offset(&body);
        let unstored = final_offset.is_some_and(|offset| offset > self.durable_offset(re.attempt));
        if self
            .held
            .waits_for_room(re.attempt, sent.control_seq, unstored)
        {
            return Ok(());
        }
        if proves_the_end(&body) {
            self.held.last_word(re.attempt, sent.control_seq);
        }
        let frame = Box::new(Frame {
            session: self.id,
            re,
            control_seq: sent.control_seq,
            observed: decode::observed(sent),
            proof: decode::proof(sent),
            body,
            workspace,
            finished: None,
            known: Ok(None),
        });
        match final_offset {
            Some(offset) if offset > self.durable_offset(re.attempt) => {
                self.settle(frame, offset).await
            }
            Some(_) | None => self.forward_frame(frame).await,
        }
    }

    /// A terminal frame waits here until its output is durable; other attempts' frames go on meanwhile.
    async fn settle(&mut self, mut frame: Box<Frame>, offset: u64) -> Result<(), Ended> {
        let attempt = frame.re.attempt;
        let stored = self.shell.output.end(attempt.0).map_or(0, |end| end.end);
        if self.settling.len() >= SETTLING_MAX {
            return Err(Ended::Goodbye(
                v1::GoodbyeCode::Busy,
                "too many terminal frames wait for their output; replay them",
            ));
        }
        let missing = offset.saturating_sub(stored);
        if missing > 0
            && !self.held.is_all(attempt)
            && let FrameBody::Completed(result) = &mut frame.body
        {
            // The core refuses it, the daemon brings all that it has again, and what is missing then will never come.
            result.output_missing = missing;
            self.held.replays(attempt);
            return self.forward_frame(frame).await;
        }
        if missing > 0 && (!self.held.is_all(attempt) || missing > CUT_BYTES_MAX) {
            return Err(Ended::Goodbye(
                v1::GoodbyeCode::ProtocolError,
                "output is missing before a terminal frame; replay it",
            ));
        }
        if missing > 0 {
            // Nobody has it any more, and asking again would be for ever: what is missing is said to be.
            let reason = CutReason::NotReceived;
            let output = &self.shell.output;
            let cut = output.append_cut(attempt.0, stored, offset, reason).await;
            if self.appended(frame.re, stored, cut)?.is_none() {
                let waits = self.held.waits_for_room(attempt, frame.control_seq, true);
                return match waits {
                    true => Ok(()),
                    false => self.forward_frame(frame).await,
                };
            }
        }
        let output = self.shell.output.clone();
        self.settling.spawn(async move {
            let durable = output.synced(frame.re.attempt.0, offset).await.is_ok();
            (frame, durable)
        });
        Ok(())
    }

    pub(super) async fn settled(
        &mut self,
        settled: Result<Settled, tokio::task::JoinError>,
    ) -> Result<(), Ended> {
        match settled {
            Ok((frame, true)) => self.forward_frame(frame).await,
            // Not acknowledged, so the daemon keeps it and brings it again.
            Ok((_, false)) | Err(_) => Err(Ended::Goodbye(
                v1::GoodbyeCode::Busy,
                "output could not be stored",
            )),
        }
    }

    async fn stream(
        &mut self,
        re: FrameRef,
        frame: &v1::AttemptFrame,
        sent: v1::Stream,
    ) -> Result<(), Ended> {
        if self.held.is_given_up(re.attempt) {
            return Ok(());
        }
        if sent.chunk.is_empty() || sent.chunk.len() > CHUNK_BYTES_MAX {
            let fault = FrameFault::TooLong {
                field: "stream.chunk",
                size: sent.chunk.len(),
                limit: CHUNK_BYTES_MAX,
            };
            self.refuse(&re.attempt.to_string(), 0, Some(sent.offset), &fault);
            return Ok(());
        }
        if sent.tool_call_id.len() > decode::TOOL_ID_MAX {
            let (size, limit) = (sent.tool_call_id.len(), decode::TOOL_ID_MAX);
            let fault = FrameFault::TooLong {
                field: "stream.tool_call_id",
                size,
                limit,
            };
            self.refuse(&re.attempt.to_string(), 0, Some(sent.offset), &fault);
            return Ok(());
        }
        let sign = sign(&sent);
        let chunk = Chunk {
            attempt: re.attempt.0,
            offset: sent.offset,
            after_control_seq: sent.after_control_seq,
            kind: output_kind(&sent),
            observed_at_ms: decode::observed(frame).0,
            bytes: sent.chunk,
        };
        let Some(end) = self.append(re, chunk).await? else {
            return Ok(());
        };
        let seen = Seen {
            attempt: re.attempt,
            sign,
            tool: &sent.tool_call_id,
            end,
        };
        match self.held.output(self.id, seen, self.shell.clock.now().at) {
            Some(activity) => self.forward(Input::Activity(activity)).await,
            None => Ok(()),
        }
    }

    /// Where its output ends then. What does not fit on the disk is a sign of life all the same.
    async fn append(&mut self, re: FrameRef, chunk: Chunk) -> Result<Option<u64>, Ended> {
        if !self.held.is_dry(re.attempt) {
            let offset = chunk.offset;
            let appended = self.shell.output.append(chunk).await;
            if let Some(Appended { end }) = self.appended(re, offset, appended)? {
                return Ok(Some(end));
            }
        }
        let stored = self.shell.output.end(re.attempt.0).map_or(0, |end| end.end);
        Ok(self.held.is_dry(re.attempt).then_some(stored))
    }

    async fn cut(&mut self, re: FrameRef, sent: v1::OutputCut) -> Result<(), Ended> {
        if self.held.is_given_up(re.attempt) || self.held.is_dry(re.attempt) {
            return Ok(());
        }
        let (Some(to), Some(reason)) = (cut_end(&sent), cut_reason(&sent)) else {
            self.refuse(
                &re.attempt.to_string(),
                0,
                Some(sent.offset),
                &FrameFault::BadCut,
            );
            return Ok(());
        };
        let appended = self
            .shell
            .output
            .append_cut(re.attempt.0, sent.offset, to, reason)
            .await;
        self.appended(re, sent.offset, appended).map(|_| ())
    }

    /// A fault of this chunk is answered. What does not fit on the disk is left with the daemon, which has it until it is
    /// acknowledged, and nobody else has to wait for it.
    fn appended(
        &mut self,
        re: FrameRef,
        offset: u64,
        appended: Result<Appended, AppendError>,
    ) -> Result<Option<Appended>, Ended> {
        let fault = match appended {
            Ok(appended) => {
                self.acks.watch(re.attempt.0);
                return Ok(Some(appended));
            }
            Err(AppendError::DiskFull) => {
                self.held.runs_dry(re.attempt);
                return Ok(None);
            }
            Err(AppendError::Closed) => {
                return Err(Ended::Goodbye(
                    v1::GoodbyeCode::Busy,
                    "output cannot be stored now; come back later",
                ));
            }
            Err(AppendError::Gap { .. }) => FrameFault::OutputGap,
            Err(AppendError::TooLarge { len }) => FrameFault::TooLong {
                field: "stream.chunk",
                size: len,
                limit: CHUNK_BYTES_MAX,
            },
            Err(AppendError::EmptyCut { .. }) => FrameFault::BadCut,
            // Everything that could still count was stored before the end.
            Err(AppendError::Sealed { .. }) => return Ok(None),
        };
        self.refuse(&re.attempt.to_string(), 0, Some(offset), &fault);
        Ok(None)
    }

    pub(super) async fn flush_due(&mut self) -> Result<(), Ended> {
        for activity in self.held.flush_due(self.id, self.shell.clock.now().at) {
            self.forward(Input::Activity(activity)).await?;
        }
        Ok(())
    }

    fn refuse(&mut self, attempt: &str, control_seq: u64, offset: Option<u64>, fault: &FrameFault) {
        tracing::debug!(session_id = %self.id, attempt_id = attempt, control_seq, %fault, "frame refused");
        // Ids come from the peer; what is echoed is bounded.
        let attempt = &attempt[..attempt.floor_char_boundary(64)];
        self.pending
            .push_back(self.shell.stamp.fault(attempt, control_seq, offset, fault));
    }
}

fn renewals(
    sent: &[v1::RenewEntry],
) -> Vec<(baton_core::id::AttemptId, baton_core::input::LeaseToken)> {
    let one = |entry: &v1::RenewEntry| {
        let attempt = entry.attempt_id.parse().ok()?;
        // A missing token is answered like a wrong one.
        let token =
            decode::token(entry.token.as_ref()).unwrap_or(baton_core::input::LeaseToken([0; 32]));
        Some((attempt, token))
    };
    sent.iter().filter_map(one).collect()
}

fn output_offset(frame: &v1::AttemptFrame) -> Option<u64> {
    match &frame.body {
        Some(v1::attempt_frame::Body::Stream(stream)) => Some(stream.offset),
        Some(v1::attempt_frame::Body::OutputCut(cut)) => Some(cut.offset),
        Some(_) | None => None,
    }
}

/// After such a frame the daemon has nothing more to say about the attempt.
fn proves_the_end(body: &FrameBody) -> bool {
    match body {
        FrameBody::Completed(done) => done.termination.group_empty,
        FrameBody::Errored(error) => error.termination.group_empty,
        FrameBody::Canceled(canceled) => canceled.termination.group_empty,
        FrameBody::Released { termination, .. } | FrameBody::Receipt { termination } => {
            termination.group_empty
        }
        FrameBody::Rejected { .. } => true,
        FrameBody::Accepted
        | FrameBody::Started
        | FrameBody::Phase { .. }
        | FrameBody::ToolStarted { .. }
        | FrameBody::ToolFinished { .. }
        | FrameBody::PermissionRequest { .. }
        | FrameBody::Question { .. }
        | FrameBody::InputWithdrawn { .. }
        | FrameBody::InputReceived { .. }
        | FrameBody::Goal(_)
        | FrameBody::Unknown => false,
    }
}

/// What people can see was said with the prompt in hand, whatever else the daemon says of it.
fn sign(sent: &v1::Stream) -> Sign {
    match (sent.visible, sent.before_prompt) {
        (true, _) => Sign::VisibleEvent,
        (false, false) => Sign::Event,
        (false, true) => Sign::BeforePrompt,
    }
}

/// The log keeps one byte: the kind in the low bits, visibility in the highest. A number that does not fit counts as
/// opaque; one of a newer protocol that fits is kept for whoever knows it.
fn output_kind(sent: &v1::Stream) -> u8 {
    let kind = u8::try_from(sent.kind).ok();
    let kind = kind.filter(|kind| *kind < VISIBLE).unwrap_or(0);
    if sent.visible { kind | VISIBLE } else { kind }
}

/// Set in a stored chunk's kind when people were meant to see it.
pub(crate) const VISIBLE: u8 = 0x80;

/// A newer daemon's reason is unknown here, but the bytes are gone all the same: without its cut the output would
/// have a gap for ever.
fn cut_reason(sent: &v1::OutputCut) -> Option<CutReason> {
    let Ok(reason) = v1::CutReason::try_from(sent.reason) else {
        return Some(CutReason::Unknown);
    };
    match reason {
        v1::CutReason::WorkerCrash if sent.length_unknown => Some(CutReason::RecorderLost),
        v1::CutReason::DaemonOverflow => Some(CutReason::DaemonOverflow),
        v1::CutReason::DiskFull => Some(CutReason::DiskFull),
        v1::CutReason::LineTooLong => Some(CutReason::LineTooLong),
        v1::CutReason::WorkerCrash => Some(CutReason::WorkerCrash),
        // Only the relay cuts for these.
        v1::CutReason::AttemptLimit
        | v1::CutReason::Retention
        | v1::CutReason::Corrupt
        | v1::CutReason::NotReceived
        | v1::CutReason::Unspecified => None,
    }
}

fn cut_end(sent: &v1::OutputCut) -> Option<u64> {
    let end = sent.offset.checked_add(sent.length)?;
    (sent.length <= CUT_BYTES_MAX).then_some(end)
}
