//! What the attempt's agent says through its tools: frames like any other of the attempt, and an answer when the relay has
//! them. The capability is worth something while the attempt runs, and not a moment longer.

use baton_proto::v1::ErrorDetail;
use baton_proto::v1::ProgressUpdate;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::worker::{Finish, FoldSnapshot, OwnTask, ToolAnswer};
use prost::Message;
use tokio::sync::oneshot;

use super::{ShimReach, StopReason, SupervisedAttempt, SupervisedStage};
use crate::clock::{BootTime, Clock};
use crate::outbox::TranscriptProgress;
use crate::receipts::RequiredFiles;
use crate::tools::{ToolGrant, error_detail, noted_answer, refused_answer};

/// Calls that wait for the relay, of one attempt. More: the oldest is told that the daemon has it.
const WAITING_CALLS_MAX: usize = 64;

/// The agent's own words, on their way.
#[derive(Debug)]
pub(crate) struct ToolCalls {
    granted: ToolGrant,
    required_files: Option<RequiredFiles>,
    waiting: Vec<WaitingToolCall>,
}

#[derive(Debug)]
struct WaitingToolCall {
    /// The frame that carries it.
    seq: u64,
    reply: oneshot::Sender<ToolAnswer>,
}

impl ToolCalls {
    pub(super) fn new(granted: ToolGrant, required_files: Option<RequiredFiles>) -> Self {
        Self {
            granted,
            required_files,
            waiting: Vec::new(),
        }
    }
}

impl SupervisedAttempt {
    /// Whether this secret may speak for the attempt now.
    pub(crate) fn accepts_secret(&self, secret: &str, now: BootTime) -> bool {
        let runs = match &self.stage {
            SupervisedStage::Running(reins) => reins.reach != ShimReach::Ended,
            SupervisedStage::Accepted { .. } | SupervisedStage::Finished { .. } => false,
        };
        let heard = match self.stop_reason {
            None | Some(StopReason::Canceled(_) | StopReason::Drained) => true,
            Some(
                StopReason::DiskFull
                | StopReason::TooLong
                | StopReason::LeaseEnded
                | StopReason::Fenced,
            ) => false,
        };
        let leased = self.lease.is_some_and(|lease| !lease.is_expired(now));
        let fits = |voice: &ToolCalls| voice.granted.hash.matches_secret(secret);
        runs && heard && leased && self.tool_calls.as_ref().is_some_and(fits)
    }

    /// What it has to leave.
    pub(crate) fn required_files(&self) -> Option<RequiredFiles> {
        self.tool_calls.as_ref()?.required_files.clone()
    }

    /// What is known here of the attempt's own task.
    pub(crate) fn own_task(&self) -> OwnTask {
        let granted = self.tool_calls.as_ref().map(|voice| voice.granted.clone());
        let (goal, success_criteria, resume) = granted.map_or_else(Default::default, |granted| {
            (granted.goal, granted.success_criteria, granted.resume)
        });
        OwnTask {
            r#ref: Some(self.attempt.clone()),
            goal,
            success_criteria,
            resume,
            cancel_requested: matches!(self.stop_reason, Some(StopReason::Canceled(_))),
            finish: self.agent_finish.clone(),
        }
    }

    /// Says it, and answers when the relay has it.
    pub(crate) fn push_tool_frame(
        &mut self,
        body: Body,
        reply: oneshot::Sender<ToolAnswer>,
        clock: &Clock,
    ) {
        self.push_frame(body, clock);
        let seq = self.outbox.last_control_seq();
        let Some(voice) = &mut self.tool_calls else {
            return;
        };
        if voice.waiting.len() == WAITING_CALLS_MAX {
            // Whoever asked may have gone; so below.
            let _ = voice.waiting.remove(0).reply.send(noted_answer(false));
        }
        voice.waiting.push(WaitingToolCall { seq, reply });
    }

    /// The agent says how its attempt ends. Fixed from here on: what the process does afterwards changes nothing. It is
    /// stored with the frame that tells the summary.
    pub(crate) fn fix_outcome(
        &mut self,
        finish: Finish,
        reply: oneshot::Sender<ToolAnswer>,
        clock: &Clock,
    ) {
        let summary = finish.summary.clone();
        let TranscriptProgress { consumed, snapshot } = self.outbox.progress().clone();
        let mut snapshot = FoldSnapshot::decode(snapshot).unwrap_or_default();
        snapshot.finish = Some(finish.clone());
        self.agent_finish = Some(finish);
        if let SupervisedStage::Running(reins) = &self.stage {
            reins.fix_outcome();
        }
        self.outbox.set_progress(TranscriptProgress {
            consumed,
            snapshot: snapshot.encode_to_vec().into(),
        });
        let update = ProgressUpdate {
            summary: Some(summary),
            ..ProgressUpdate::default()
        };
        self.push_tool_frame(Body::Progress(update), reply, clock);
    }

    /// What was fixed stays. The same again is no news.
    pub(crate) fn refuse_after_outcome(&self, said: Option<&Finish>) -> Option<ToolAnswer> {
        let fixed = self.agent_finish.as_ref()?;
        if said == Some(fixed) {
            return Some(noted_answer(false));
        }
        let hint = "end your work: the daemon tells the outcome when the process has ended";
        let over = error_detail(
            "outcome_fixed",
            "the outcome of this attempt is fixed",
            hint,
            "",
        );
        Some(refused_answer("failed_precondition", over))
    }

    /// The relay has more of what was said.
    pub(crate) fn on_acked(&mut self) {
        let acked = self.outbox.acked().control_seq;
        self.settle_waiting_calls(|waiting| (waiting.seq <= acked).then(|| noted_answer(true)));
    }

    /// The relay refused one frame, and changed nothing.
    pub(crate) fn on_frame_rejected(&mut self, seq: u64, error: &ErrorDetail) {
        self.settle_waiting_calls(|waiting| {
            (waiting.seq == seq).then(|| refused_answer("failed_precondition", error.clone()))
        });
    }

    /// A new stream: numbers may move, so nobody here can tell any more which ack is whose.
    pub(crate) fn answer_waiting_calls(&mut self) {
        self.settle_waiting_calls(|_| Some(noted_answer(false)));
    }

    /// What they said was thrown away: they are told that the attempt is over.
    pub(super) fn drop_waiting_calls(&mut self) {
        if let Some(voice) = &mut self.tool_calls {
            voice.waiting.clear();
        }
    }

    fn settle_waiting_calls(&mut self, answer: impl Fn(&WaitingToolCall) -> Option<ToolAnswer>) {
        let Some(voice) = &mut self.tool_calls else {
            return;
        };
        for waiting in std::mem::take(&mut voice.waiting) {
            match answer(&waiting) {
                Some(answer) => {
                    let _ = waiting.reply.send(answer);
                }
                None => voice.waiting.push(waiting),
            }
        }
    }
}
