//! Handles frames of the daemon: each is decoded, checked against the attempts of this session,
//! and forwarded.

use baton_core::io::session_input::{
    AttemptFrame, FrameBody, FrameRef, HeartbeatMessage, LeaseExtension, SessionInput,
};
use baton_core::record::WorkspaceReport;
use baton_proto::v1;
use baton_proto::v1::daemon_frame::Frame as Sent;

use super::fault::FrameFault;
use super::frame_decode;
use super::frame_decode::DecodedFrame;
use super::output_frame::{CUT_BYTES_MAX, activity_sign, cut_end, cut_reason, output_kind};
use super::session_attempts::OutputObservation;
use super::{DaemonSession, SessionEnd, TerminalFrame, unknown_values};
use crate::output::{AcceptedEnd, CHUNK_BYTES_MAX, CutReason, OutputAppendError, OutputChunk};

/// Number of terminal frames that may wait for their output at one time. A daemon has at most
/// 4096 slots.
const WAITING_TERMINAL_FRAMES_MAX: usize = 4096;
/// Longest lease extension that is forwarded. The core has its own, lower limit.
const LEASE_EXTENSION_MS_MAX: u64 = 600_000;

impl DaemonSession {
    pub(super) async fn handle_frame(&mut self, frame: v1::DaemonFrame) -> Result<(), SessionEnd> {
        unknown_values::count_unknown(&self.context.telemetry, &frame);
        match frame.frame {
            // A frame of a newer protocol is ignored.
            None => Ok(()),
            Some(Sent::Hello(_)) => Err(SessionEnd::Goodbye(
                v1::GoodbyeCode::ProtocolError,
                "Hello was sent twice on one stream",
            )),
            Some(Sent::Goodbye(_)) => Err(SessionEnd::ByPeer),
            Some(Sent::Heartbeat(heartbeat)) => self.handle_heartbeat(&heartbeat).await,
            Some(Sent::Hold(hold)) => self.handle_lease_extension(&hold).await,
            Some(Sent::Attempt(frame)) => self.handle_attempt_frame(frame).await,
        }
    }

    async fn handle_heartbeat(&mut self, sent: &v1::Heartbeat) -> Result<(), SessionEnd> {
        let heartbeat = HeartbeatMessage {
            seq: sent.seq,
            received_ack_seq: sent.heard_seq,
            renewals: renewals(&sent.renew),
            free_slots: sent.free_slots,
            draining: sent.status() == v1::DaemonStatus::Draining,
            // True also for a reason of a newer protocol.
            unfit: sent.refuses != i32::from(v1::RejectCode::Unspecified),
            load: sent.load.as_ref().map(frame_decode::machine_load),
        };
        self.forward(SessionInput::Heartbeat {
            session: self.id,
            heartbeat,
        })
        .await
    }

    async fn handle_lease_extension(&mut self, sent: &v1::HoldRequest) -> Result<(), SessionEnd> {
        self.forward(SessionInput::ExtendLeases(LeaseExtension {
            session: self.id,
            request: sent.seq,
            attempts: renewals(&sent.attempts),
            granted_ms: sent.hold_ms.min(LEASE_EXTENSION_MS_MAX),
        }))
        .await
    }

    async fn handle_attempt_frame(
        &mut self,
        mut frame: v1::AttemptFrame,
    ) -> Result<(), SessionEnd> {
        let named = frame
            .r#ref
            .as_ref()
            .map_or_else(String::new, |sent| sent.attempt_id.clone());
        let control_seq = frame.control_seq;
        let offset = output_offset(&frame);
        let workspace = frame_decode::workspace(frame.body.as_ref());
        match self.decode_frame(&mut frame) {
            // A body of a newer protocol without a control_seq is ignored.
            Ok((_, DecodedFrame::Control(FrameBody::Unknown))) if control_seq == 0 => Ok(()),
            Err(fault) => {
                self.refuse_frame(&named, control_seq, offset, &fault);
                self.consume_control_seq(&frame).await
            }
            Ok((re, DecodedFrame::Output(stream))) => self.handle_output(re, &frame, stream).await,
            Ok((re, DecodedFrame::Cut(cut))) => self.handle_cut(re, cut).await,
            Ok((re, DecodedFrame::Control(body))) => {
                self.handle_control(re, &frame, body, workspace).await
            }
        }
    }

    /// A control frame that was refused here still consumes its control_seq; otherwise every
    /// later frame would be a gap.
    async fn consume_control_seq(&mut self, frame: &v1::AttemptFrame) -> Result<(), SessionEnd> {
        match frame_decode::frame_ref(frame.r#ref.as_ref()) {
            Ok(re) if self.attempts.contains_ref(&re) && frame.control_seq > 0 => {
                self.handle_control(re, frame, FrameBody::Unknown, None)
                    .await
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn decode_frame(
        &self,
        frame: &mut v1::AttemptFrame,
    ) -> Result<(FrameRef, DecodedFrame), FrameFault> {
        frame_decode::check_block_reason(frame.body.as_ref())?;
        let re = frame_decode::frame_ref(frame.r#ref.as_ref())?;
        if !self.attempts.contains_ref(&re) {
            return Err(FrameFault::UnknownAttempt);
        }
        let decoded = frame_decode::decode_body(frame.body.take(), frame.within_lease)?;
        match (&decoded, frame.control_seq) {
            (DecodedFrame::Control(FrameBody::Unknown), _)
            | (DecodedFrame::Control(_), 1..)
            | (DecodedFrame::Output(_) | DecodedFrame::Cut(_), 0) => Ok((re, decoded)),
            (DecodedFrame::Control(_), 0)
            | (DecodedFrame::Output(_) | DecodedFrame::Cut(_), 1..) => Err(FrameFault::WrongNumber),
        }
    }

    async fn handle_control(
        &mut self,
        re: FrameRef,
        sent: &v1::AttemptFrame,
        body: FrameBody,
        workspace: Option<Box<WorkspaceReport>>,
    ) -> Result<(), SessionEnd> {
        if let Some(activity) = self.attempts.flush(self.id, re.attempt) {
            self.forward(SessionInput::Activity(activity)).await?;
        }
        let final_offset = frame_decode::final_offset(&body);
        let unstored = final_offset.is_some_and(|offset| offset > self.durable_offset(re.attempt));
        if self
            .attempts
            .must_wait_for_output(re.attempt, sent.control_seq, unstored)
        {
            return Ok(());
        }
        if proves_termination(&body) {
            self.attempts.note_final_frame(re.attempt, sent.control_seq);
        }
        let frame = Box::new(AttemptFrame {
            session: self.id,
            frame_ref: re,
            control_seq: sent.control_seq,
            observed: frame_decode::observed_at(sent),
            proof: frame_decode::proof(sent),
            body,
            workspace,
        });
        match final_offset {
            Some(offset) if offset > self.durable_offset(re.attempt) => {
                self.wait_for_output(frame, offset).await
            }
            Some(_) | None => self.forward_frame(frame).await,
        }
    }

    /// Lets a terminal frame wait until its output is durable. Frames of other attempts are not
    /// delayed.
    async fn wait_for_output(
        &mut self,
        mut frame: Box<AttemptFrame>,
        offset: u64,
    ) -> Result<(), SessionEnd> {
        let attempt = frame.frame_ref.attempt;
        let stored = self.context.output.end(attempt.0).map_or(0, |end| end.end);
        if self.waiting_terminal.len() >= WAITING_TERMINAL_FRAMES_MAX {
            return Err(SessionEnd::Goodbye(
                v1::GoodbyeCode::Busy,
                "too many terminal frames wait for their output; connect again and replay them",
            ));
        }
        let missing = offset.saturating_sub(stored);
        if missing > 0
            && !self.attempts.has_full_replay(attempt)
            && let FrameBody::Completed(result) = &mut frame.body
        {
            // The core refuses the result and the daemon replays all that it has. Output that
            // is missing after that will never arrive.
            result.output_missing = missing;
            self.attempts.mark_full_replay(attempt);
            return self.forward_frame(frame).await;
        }
        if missing > 0 && (!self.attempts.has_full_replay(attempt) || missing > CUT_BYTES_MAX) {
            return Err(SessionEnd::Goodbye(
                v1::GoodbyeCode::ProtocolError,
                "output is missing before a terminal frame; connect again and replay it",
            ));
        }
        if missing > 0 {
            // The daemon has lost this output, so asking for it again would never end. The
            // missing range is stored as a cut.
            let reason = CutReason::NotReceived;
            let output = &self.context.output;
            let cut = output.append_cut(attempt.0, stored, offset, reason).await;
            if self.check_appended(frame.frame_ref, stored, cut)?.is_none() {
                let waits = self
                    .attempts
                    .must_wait_for_output(attempt, frame.control_seq, true);
                return match waits {
                    true => Ok(()),
                    false => self.forward_frame(frame).await,
                };
            }
        }
        let output = self.context.output.clone();
        self.waiting_terminal.spawn(async move {
            let durable = output
                .wait_durable(frame.frame_ref.attempt.0, offset)
                .await
                .is_ok();
            (frame, durable)
        });
        Ok(())
    }

    pub(super) async fn forward_terminal_frame(
        &mut self,
        result: Result<TerminalFrame, tokio::task::JoinError>,
    ) -> Result<(), SessionEnd> {
        match result {
            Ok((frame, true)) => self.forward_frame(frame).await,
            // The frame is not acknowledged, so the daemon keeps it and replays it.
            Ok((_, false)) | Err(_) => Err(SessionEnd::Goodbye(
                v1::GoodbyeCode::Busy,
                "output could not be stored; connect again and replay it",
            )),
        }
    }

    async fn handle_output(
        &mut self,
        re: FrameRef,
        frame: &v1::AttemptFrame,
        sent: v1::Stream,
    ) -> Result<(), SessionEnd> {
        if self.attempts.is_abandoned(re.attempt) {
            return Ok(());
        }
        if sent.chunk.is_empty() || sent.chunk.len() > CHUNK_BYTES_MAX {
            let fault = FrameFault::TooLong {
                field: "stream.chunk",
                size: sent.chunk.len(),
                limit: CHUNK_BYTES_MAX,
            };
            self.refuse_frame(&re.attempt.to_string(), 0, Some(sent.offset), &fault);
            return Ok(());
        }
        if sent.tool_call_id.len() > frame_decode::TOOL_ID_MAX {
            let (size, limit) = (sent.tool_call_id.len(), frame_decode::TOOL_ID_MAX);
            let fault = FrameFault::TooLong {
                field: "stream.tool_call_id",
                size,
                limit,
            };
            self.refuse_frame(&re.attempt.to_string(), 0, Some(sent.offset), &fault);
            return Ok(());
        }
        let sign = activity_sign(&sent);
        let chunk = OutputChunk {
            attempt: re.attempt.0,
            offset: sent.offset,
            after_control_seq: sent.after_control_seq,
            kind: output_kind(&sent),
            observed_at_ms: frame_decode::observed_at(frame).0,
            bytes: sent.chunk,
        };
        let Some(end) = self.append_output(re, chunk).await? else {
            return Ok(());
        };
        let seen = OutputObservation {
            attempt: re.attempt,
            sign,
            tool: &sent.tool_call_id,
            end,
        };
        match self
            .attempts
            .note_output(self.id, seen, self.context.clock.now().monotonic)
        {
            Some(activity) => self.forward(SessionInput::Activity(activity)).await,
            None => Ok(()),
        }
    }

    /// Stores a chunk and returns the new end of the output. A chunk that does not fit on the
    /// disk still counts as activity, so it returns the stored end. `None` for a refused chunk.
    async fn append_output(
        &mut self,
        re: FrameRef,
        chunk: OutputChunk,
    ) -> Result<Option<u64>, SessionEnd> {
        if !self.attempts.waits_for_disk(re.attempt) {
            let offset = chunk.offset;
            let appended = self.context.output.append(chunk).await;
            if let Some(AcceptedEnd { end }) = self.check_appended(re, offset, appended)? {
                return Ok(Some(end));
            }
        }
        let stored = self
            .context
            .output
            .end(re.attempt.0)
            .map_or(0, |end| end.end);
        Ok(self.attempts.waits_for_disk(re.attempt).then_some(stored))
    }

    async fn handle_cut(&mut self, re: FrameRef, sent: v1::OutputCut) -> Result<(), SessionEnd> {
        if self.attempts.is_abandoned(re.attempt) || self.attempts.waits_for_disk(re.attempt) {
            return Ok(());
        }
        let (Some(to), Some(reason)) = (cut_end(&sent), cut_reason(&sent)) else {
            self.refuse_frame(
                &re.attempt.to_string(),
                0,
                Some(sent.offset),
                &FrameFault::BadCut,
            );
            return Ok(());
        };
        let appended = self
            .context
            .output
            .append_cut(re.attempt.0, sent.offset, to, reason)
            .await;
        self.check_appended(re, sent.offset, appended).map(|_| ())
    }

    /// Handles the result of an append. A faulty chunk is rejected. A chunk that does not fit
    /// on the disk stays with the daemon, which keeps it until it is acknowledged; other
    /// attempts do not wait for it.
    fn check_appended(
        &mut self,
        re: FrameRef,
        offset: u64,
        appended: Result<AcceptedEnd, OutputAppendError>,
    ) -> Result<Option<AcceptedEnd>, SessionEnd> {
        let fault = match appended {
            Ok(appended) => {
                self.acks.watch(re.attempt.0);
                return Ok(Some(appended));
            }
            Err(OutputAppendError::DiskFull) => {
                self.attempts.mark_disk_full(re.attempt);
                return Ok(None);
            }
            Err(OutputAppendError::Closed) => {
                return Err(SessionEnd::Goodbye(
                    v1::GoodbyeCode::Busy,
                    "output cannot be stored now; connect again later",
                ));
            }
            Err(OutputAppendError::Gap { .. }) => FrameFault::OutputGap,
            Err(OutputAppendError::TooLarge { len }) => FrameFault::TooLong {
                field: "stream.chunk",
                size: len,
                limit: CHUNK_BYTES_MAX,
            },
            Err(OutputAppendError::EmptyCut { .. }) => FrameFault::BadCut,
            // The output was sealed at the end of the attempt; later chunks have no effect.
            Err(OutputAppendError::Sealed { .. }) => return Ok(None),
        };
        self.refuse_frame(&re.attempt.to_string(), 0, Some(offset), &fault);
        Ok(None)
    }

    pub(super) async fn flush_due(&mut self) -> Result<(), SessionEnd> {
        for activity in self
            .attempts
            .flush_due(self.id, self.context.clock.now().monotonic)
        {
            self.forward(SessionInput::Activity(activity)).await?;
        }
        Ok(())
    }

    fn refuse_frame(
        &mut self,
        attempt: &str,
        control_seq: u64,
        offset: Option<u64>,
        fault: &FrameFault,
    ) {
        tracing::debug!(session_id = %self.id, attempt_id = attempt, control_seq, %fault, "frame refused");
        // The id comes from the peer, so its length is limited before it is sent back.
        let attempt = &attempt[..attempt.floor_char_boundary(64)];
        self.pending.push_back(
            self.context
                .encoder
                .fault(attempt, control_seq, offset, fault),
        );
    }
}

fn renewals(
    sent: &[v1::RenewEntry],
) -> Vec<(
    baton_core::ids::AttemptId,
    baton_core::io::session_input::LeaseToken,
)> {
    let one = |entry: &v1::RenewEntry| {
        let attempt = entry.attempt_id.parse().ok()?;
        // A missing token is treated like a wrong one.
        let token = frame_decode::lease_token(entry.token.as_ref())
            .unwrap_or(baton_core::io::session_input::LeaseToken([0; 32]));
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

/// Whether the daemon sends no more frames of the attempt after this one.
fn proves_termination(body: &FrameBody) -> bool {
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
