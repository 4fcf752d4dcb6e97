//! Calls of the attempt's agent through its tools. A call becomes a frame of the attempt and is
//! answered when the relay has acknowledged that frame. The capability is valid only while the
//! attempt runs.

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{ErrorDetail, ProgressUpdate};
use baton_proto::worker::{Finish, FoldSnapshot, OwnTask, ToolAnswer};
use prost::Message;
use tokio::sync::oneshot;

use super::running_attempt::UNACKED_CONTROL_MAX;
use super::{StopReason, SupervisedAttempt, SupervisedStage};
use crate::clock::{BootTime, Clock};
use crate::outbox::TranscriptProgress;
use crate::receipts::RequiredFiles;
use crate::tools::{ToolGrant, error_detail, noted_answer, refused_answer};

/// Calls of one attempt that wait for the relay. Above it the oldest is answered with "stored by
/// the daemon, not yet by the relay".
const WAITING_CALLS_MAX: usize = 64;

/// What the agent may do through its tools, what it has reported, and the calls that wait.
#[derive(Debug, Default)]
pub(super) struct ToolCalls {
    /// `None` for an agent without tools.
    granted: Option<ToolGrant>,
    required_files: Option<RequiredFiles>,
    waiting: Vec<WaitingToolCall>,
    /// The outcome that the agent has reported. It cannot be changed.
    finish: Option<Finish>,
}

#[derive(Debug)]
struct WaitingToolCall {
    /// The number of the frame that carries the call.
    seq: u64,
    reply: oneshot::Sender<ToolAnswer>,
}

impl ToolCalls {
    pub(super) fn new(
        granted: Option<ToolGrant>,
        required_files: Option<RequiredFiles>,
        finish: Option<Finish>,
    ) -> Self {
        Self {
            granted,
            required_files,
            waiting: Vec::new(),
            finish,
        }
    }

    pub(super) fn finish(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }

    fn accepts_secret(&self, secret: &str) -> bool {
        let granted = self.granted.as_ref();
        granted.is_some_and(|granted| granted.hash.matches_secret(secret))
    }

    fn add_waiting(&mut self, seq: u64, reply: oneshot::Sender<ToolAnswer>) {
        if self.waiting.len() == WAITING_CALLS_MAX {
            // The caller may have gone.
            let _ = self.waiting.remove(0).reply.send(noted_answer(false));
        }
        self.waiting.push(WaitingToolCall { seq, reply });
    }

    /// Drops the waiting calls because their frames were discarded. The callers are answered that
    /// the attempt is over.
    pub(super) fn drop_waiting(&mut self) {
        self.waiting.clear();
    }

    fn settle(&mut self, answer: impl Fn(&WaitingToolCall) -> Option<ToolAnswer>) {
        for waiting in std::mem::take(&mut self.waiting) {
            match answer(&waiting) {
                // The caller may have gone.
                Some(answer) => drop(waiting.reply.send(answer)),
                None => self.waiting.push(waiting),
            }
        }
    }
}

impl SupervisedAttempt {
    /// Whether this secret is the capability of the attempt and the attempt may use it now.
    pub(crate) fn accepts_secret(&self, secret: &str, now: BootTime) -> bool {
        let runs = match &self.stage {
            SupervisedStage::Running(running) => !running.has_ended(),
            SupervisedStage::Accepted { .. } | SupervisedStage::Finished { .. } => false,
        };
        let allowed = self.stop_reason.is_none_or(StopReason::allows_tool_calls);
        runs && allowed && self.lease.is_valid(now) && self.tool_calls.accepts_secret(secret)
    }

    /// The files that the attempt has to leave.
    pub(crate) fn required_files(&self) -> Option<RequiredFiles> {
        self.tool_calls.required_files.clone()
    }

    /// The attempt's own task as far as the daemon has it.
    pub(crate) fn own_task(&self) -> OwnTask {
        let granted = self.tool_calls.granted.clone();
        let (goal, success_criteria, resume) = granted.map_or_else(Default::default, |granted| {
            (granted.goal, granted.success_criteria, granted.resume)
        });
        OwnTask {
            r#ref: Some(self.attempt.clone()),
            goal,
            success_criteria,
            resume,
            cancel_requested: matches!(self.stop_reason, Some(StopReason::Canceled(_))),
            finish: self.tool_calls.finish.clone(),
        }
    }

    /// Whether another frame of a tool call may be queued.
    pub(crate) fn has_frame_room(&self) -> bool {
        self.outbox.queue().control_bytes() <= UNACKED_CONTROL_MAX
    }

    /// Queues the call's frame. The call is answered when the relay has acknowledged it.
    pub(crate) fn push_tool_frame(
        &mut self,
        body: Body,
        reply: oneshot::Sender<ToolAnswer>,
        clock: &Clock,
    ) {
        self.outbox.push(body, clock);
        let seq = self.outbox.queue().last_control_seq();
        self.tool_calls.add_waiting(seq, reply);
    }

    /// The agent reports how its attempt ends. The outcome is fixed from here on, whatever the
    /// process does afterwards. It is stored with the frame that carries the summary.
    pub(crate) fn fix_outcome(
        &mut self,
        finish: Finish,
        reply: oneshot::Sender<ToolAnswer>,
        clock: &Clock,
    ) {
        let summary = finish.summary.clone();
        let queue = self.outbox.queue_mut();
        let TranscriptProgress { consumed, snapshot } = queue.progress().clone();
        let mut snapshot = FoldSnapshot::decode(snapshot).unwrap_or_default();
        snapshot.finish = Some(finish.clone());
        queue.set_progress(TranscriptProgress {
            consumed,
            snapshot: snapshot.encode_to_vec().into(),
        });
        self.tool_calls.finish = Some(finish);
        if let SupervisedStage::Running(running) = &self.stage {
            running.fix_outcome();
        }
        let update = ProgressUpdate {
            summary: Some(summary),
            ..ProgressUpdate::default()
        };
        self.push_tool_frame(Body::Progress(update), reply, clock);
    }

    /// The answer to a call after the outcome was fixed; `None` while it is open. The same outcome
    /// once more is accepted without effect.
    pub(crate) fn refuse_after_outcome(&self, repeated: Option<&Finish>) -> Option<ToolAnswer> {
        let fixed = self.tool_calls.finish()?;
        if repeated == Some(fixed) {
            return Some(noted_answer(false));
        }
        let hint = "end your work: the daemon reports the outcome when the process has ended";
        let refusal = error_detail(
            "outcome_fixed",
            "the outcome of this attempt is fixed",
            hint,
            "",
        );
        Some(refused_answer("failed_precondition", refusal))
    }

    /// The relay refused one frame and changed nothing.
    pub(crate) fn on_frame_rejected(&mut self, seq: u64, error: &ErrorDetail) {
        self.tool_calls.settle(|waiting| {
            (waiting.seq == seq).then(|| refused_answer("failed_precondition", error.clone()))
        });
    }

    /// A new stream may renumber frames, so acks can no longer be matched with waiting calls.
    pub(crate) fn answer_waiting_calls(&mut self) {
        self.tool_calls.settle(|_| Some(noted_answer(false)));
    }

    /// The relay has acknowledged more frames.
    pub(crate) fn on_acked(&mut self) {
        let acked = self.outbox.queue().acked().control_seq;
        self.tool_calls
            .settle(|waiting| (waiting.seq <= acked).then(|| noted_answer(true)));
    }
}
