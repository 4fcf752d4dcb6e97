//! One attempt as the supervisor holds it: its stage, its lease, its outbox, and what each order and event
//! does to them. No I/O: frames go into the outbox, orders into the attempt's watch channel.

use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_daemon_core::lease_clock::LeaseClock;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    ActiveAttempt, ActiveState, AttemptRef, CancelReason, LeaseToken, LifecyclePhase,
    TerminationReceipt, WorkspaceReport,
};
use baton_proto::worker::Finish;

use crate::agents::{DispatchRefusal, FinalAgentUsage};
use crate::attempt::{AttemptPlan, StopRequest};
use crate::clock::{BootTime, Clock};
use crate::frames::{self, ControlFrame};
use crate::outbox::{AckedPosition, FrameOutbox, OUTPUT_LIMIT};
use crate::storage::attempt_dir::AttemptId;
use crate::storage::conversation_store::ConversationTurn;

mod attempt_control;
mod attempt_end;
mod attempt_events;
mod lease;
mod outbox_location;
mod recovered_attempt;
mod tool_calls;

pub(crate) use attempt_control::{AttemptControlReceivers, LeaseDelivery, ShimReach};
pub(crate) use outbox_location::OutboxLocation;
pub(crate) use recovered_attempt::RecoveredAttempt;

use attempt_control::AttemptControl;
use tool_calls::ToolCalls;

/// Complaints about one gap come in bunches: one for each frame that was in flight.
const REPLAY_INTERVAL_MIN: Duration = Duration::from_millis(500);

pub(crate) struct SupervisedAttempt {
    pub(crate) attempt: AttemptRef,
    /// None when it did not outlive the daemon that had it.
    pub(crate) token: Option<LeaseToken>,
    pub(crate) outbox: FrameOutbox,
    pub(crate) outbox_location: OutboxLocation,
    /// The turn belongs to a conversation.
    pub(crate) conversation: Option<ConversationTurn>,
    stage: SupervisedStage,
    lease: Option<LeaseClock>,
    cleanup_term: Duration,
    started_at: Option<BootTime>,
    phase: LifecyclePhase,
    /// Why it was ordered to stop: the strongest reason so far.
    stop_reason: Option<StopReason>,
    /// When it last replayed because the relay missed something; what was in flight then is no news.
    replayed_at: Option<BootTime>,
    /// Its id waits in the supervisor's queue of attempts with something to send.
    pub(crate) is_queued: bool,
    /// The directory that it has to itself.
    exclusive_root: Option<PathBuf>,
    /// Where it works, as it was said last.
    workspace: Option<WorkspaceReport>,
    /// What its agent says through its tools, where it has some.
    tool_calls: Option<ToolCalls>,
    /// What its agent said of the end.
    agent_finish: Option<Finish>,
}

enum SupervisedStage {
    /// Taken, not confirmed: nothing is started yet.
    Accepted {
        plan: Box<AttemptPlan>,
        accepted_at: BootTime,
        confirm_by: BootTime,
    },
    /// A task drives its shim.
    Running(AttemptControl),
    /// Nothing runs. Kept until the relay has acknowledged `last_seq`.
    Finished {
        last_seq: u64,
        receipt: TerminationReceipt,
    },
}

/// A stronger one decides what is said at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    Canceled(CancelReason),
    /// The daemon stops and could wait no longer. To the task that is a loss and not a cancel, so only a
    /// receipt is said: the relay's policy for losses decides how the task goes on.
    Drained,
    /// What it has to say cannot be stored.
    DiskFull,
    /// What it has to say is more than any disk would be given at once.
    TooLong,
    /// No renewal was acknowledged in time. Only a receipt is said, and the result if there was one.
    LeaseEnded,
    /// The relay took the attempt away: only a receipt is wanted.
    Fenced,
}

impl StopReason {
    fn strength(self) -> u8 {
        match self {
            Self::Canceled(_) | Self::Drained | Self::DiskFull | Self::TooLong => 0,
            Self::LeaseEnded => 1,
            Self::Fenced => 2,
        }
    }

    /// Whether the lease counts no more.
    fn ends_lease(self) -> bool {
        self.strength() >= Self::LeaseEnded.strength()
    }

    /// Whether an agent may end its turn first. Not where nobody would hear of it; and not when a deadline has passed that
    /// the relay watches: who was told that nobody answered would come to a result without the answer.
    fn allows_interrupt(self) -> bool {
        match self {
            Self::Canceled(reason) => reason != CancelReason::Deadline,
            Self::Drained => true,
            Self::DiskFull | Self::TooLong | Self::LeaseEnded | Self::Fenced => false,
        }
    }
}

/// A dispatch that is taken.
pub(crate) struct AcceptedDispatch {
    pub(crate) attempt: AttemptRef,
    pub(crate) token: LeaseToken,
    pub(crate) outbox_location: OutboxLocation,
    pub(crate) plan: AttemptPlan,
    pub(crate) confirm_within: Duration,
    pub(crate) conversation: Option<ConversationTurn>,
}

/// What starts once the lease is confirmed.
pub(crate) struct AttemptStart {
    pub(crate) plan: AttemptPlan,
    pub(crate) token: LeaseToken,
    /// Where its shim works.
    pub(crate) dir: AttemptId,
    pub(crate) control: AttemptControlReceivers,
}

impl SupervisedAttempt {
    pub(crate) fn accept(offer: AcceptedDispatch, clock: &Clock) -> Self {
        let AcceptedDispatch {
            attempt,
            token,
            outbox_location: place,
            plan,
            confirm_within: accept,
            conversation: conversing,
        } = offer;
        let now = clock.now();
        let cleanup_term = plan.cleanup_term;
        let exclusive = plan.workspace.exclusive_root().map(Path::to_owned);
        let voice = plan
            .tools
            .clone()
            .map(|granted| ToolCalls::new(granted, plan.required_files.clone()));
        let stage = SupervisedStage::Accepted {
            plan: Box::new(plan),
            accepted_at: now,
            confirm_by: now.after(accept),
        };
        let mut held = Self {
            outbox: FrameOutbox::new(OUTPUT_LIMIT),
            outbox_location: place,
            conversation: conversing,
            exclusive_root: exclusive,
            tool_calls: voice,
            ..Self::new(attempt, Some(token), stage, cleanup_term)
        };
        held.push_frame(frames::accepted(), clock);
        held
    }

    pub(crate) fn refuse(
        attempt: AttemptRef,
        token: LeaseToken,
        refusal: &DispatchRefusal,
        clock: &Clock,
    ) -> Self {
        let stage = SupervisedStage::Finished {
            last_seq: 0,
            receipt: frames::no_process_receipt(clock.wall()),
        };
        let mut held = Self::new(attempt, Some(token), stage, Duration::ZERO);
        held.finish_with_frame(
            frames::rejected(refusal),
            frames::no_process_receipt(clock.wall()),
            clock,
        );
        held
    }

    fn new(
        attempt: AttemptRef,
        token: Option<LeaseToken>,
        stage: SupervisedStage,
        cleanup_term: Duration,
    ) -> Self {
        Self {
            attempt,
            token,
            outbox: FrameOutbox::in_memory(OUTPUT_LIMIT),
            outbox_location: OutboxLocation::Memory,
            conversation: None,
            stage,
            lease: None,
            cleanup_term,
            started_at: None,
            phase: LifecyclePhase::Accepted,
            stop_reason: None,
            replayed_at: None,
            is_queued: false,
            exclusive_root: None,
            workspace: None,
            tool_calls: None,
            agent_finish: None,
        }
    }

    /// Whether it is in this directory, or will be, and nobody else may.
    pub(crate) fn occupies_root(&self, root: &Path) -> bool {
        !self.is_finished() && self.exclusive_root.as_deref() == Some(root)
    }

    /// Whether it takes up one of the daemon's slots: something runs, or may.
    pub(crate) fn uses_slot(&self) -> bool {
        match &self.stage {
            SupervisedStage::Accepted { .. } => true,
            SupervisedStage::Running(reins) => reins.reach != ShimReach::Ended,
            SupervisedStage::Finished { .. } => false,
        }
    }

    /// Whether its task owes it an end.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.stage, SupervisedStage::Running(_))
    }

    /// Its last word is in the outbox.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.stage, SupervisedStage::Finished { .. })
    }

    /// Finished, and the relay has it all.
    pub(crate) fn is_settled(&self) -> bool {
        match self.stage {
            SupervisedStage::Finished { .. } => {
                self.is_terminal_seq(self.outbox.acked().control_seq)
            }
            SupervisedStage::Accepted { .. } | SupervisedStage::Running(_) => false,
        }
    }

    /// Finished, and `seq` is the last word or beyond it.
    pub(crate) fn is_terminal_seq(&self, seq: u64) -> bool {
        match self.stage {
            SupervisedStage::Finished { last_seq, .. } => seq >= last_seq,
            SupervisedStage::Accepted { .. } | SupervisedStage::Running(_) => false,
        }
    }

    /// The relay repeats an offer that stands, so the daemon repeats its answer.
    pub(crate) fn resend_acceptance(&mut self, clock: &Clock) {
        if matches!(self.stage, SupervisedStage::Accepted { .. }) {
            self.push_frame(frames::accepted(), clock);
        }
    }

    /// The lease counts from the send of what the relay answered; for a running one it is a renewal.
    /// Returns what to start, once; nothing when the lease was over before its confirmation came.
    pub(crate) fn confirm_lease(
        &mut self,
        sent_at: Option<BootTime>,
        granted: Duration,
        clock: &Clock,
    ) -> Option<AttemptStart> {
        let SupervisedStage::Accepted {
            plan, accepted_at, ..
        } = &self.stage
        else {
            if let Some(sent_at) = sent_at {
                self.renew(sent_at, granted);
            }
            return None;
        };
        if !self.outbox.log().has_stored_entries() {
            // No directory to start it in yet. Its acceptance leaves when there is one, and is confirmed again.
            return None;
        }
        let lease = LeaseClock::from_grant(sent_at.unwrap_or(*accepted_at), granted);
        if lease.is_expired(clock.now()) {
            self.return_unstarted(&DispatchRefusal::not_confirmed(), clock);
            return None;
        }
        let (token, dir) = (self.token.clone()?, self.outbox_location.dir_id()?);
        self.lease = Some(lease);
        let plan = (**plan).clone();
        let (reins, bits) = AttemptControl::new(Some(lease), ShimReach::Linked, 0);
        self.stage = SupervisedStage::Running(reins);
        Some(AttemptStart {
            plan,
            token,
            dir,
            control: bits,
        })
    }

    pub(crate) fn cancel(&mut self, reason: CancelReason, grace: Option<Duration>, clock: &Clock) {
        match &self.stage {
            SupervisedStage::Accepted { .. } => {
                let receipt = frames::no_process_receipt(clock.wall());
                let closing = self.terminal_fields(receipt.clone());
                self.finish_with_frame(
                    frames::canceled(reason, &FinalAgentUsage::default(), closing),
                    receipt,
                    clock,
                );
            }
            SupervisedStage::Running(_) => {
                let grace = grace.unwrap_or(self.cleanup_term);
                self.order_stop(StopReason::Canceled(reason), clock.now().after(grace));
            }
            // It names a finished attempt: nothing to do.
            SupervisedStage::Finished { .. } => {}
        }
    }

    /// The daemon's time to drain is up, and KILL must go out by a moment.
    pub(crate) fn stop_for_drain(&mut self, kill_by: BootTime, clock: &Clock) {
        let by_grace = clock.now().after(self.cleanup_term);
        self.order_stop(StopReason::Drained, by_grace.min(kill_by));
    }

    /// The daemon takes no new work: what has not started goes back.
    pub(crate) fn return_unstarted(&mut self, refusal: &DispatchRefusal, clock: &Clock) {
        if matches!(self.stage, SupervisedStage::Accepted { .. }) {
            self.finish_with_frame(
                frames::rejected(refusal),
                frames::no_process_receipt(clock.wall()),
                clock,
            );
        }
    }

    /// For Hello.
    pub(crate) fn to_active_attempt(&self, now: BootTime) -> ActiveAttempt {
        let state = match &self.stage {
            SupervisedStage::Accepted { .. } => ActiveState::Running,
            SupervisedStage::Running(reins) => match reins.reach {
                ShimReach::Linked if self.is_shim_unresponsive(now) => ActiveState::Unreachable,
                ShimReach::Linked => ActiveState::Running,
                ShimReach::Unreachable => ActiveState::Unreachable,
                // How it ended is known, and is told as soon as its output is.
                ShimReach::Ended => ActiveState::Finished,
            },
            SupervisedStage::Finished { .. } => ActiveState::Finished,
        };
        let acked = self.outbox.acked().control_seq;
        let last = self.outbox.last_control_seq();
        ActiveAttempt {
            r#ref: Some(self.attempt.clone()),
            token: self.token.clone().filter(|_| state == ActiveState::Running),
            state: state.into(),
            last_control_seq: last,
            oldest_control_seq: if acked < last { acked + 1 } else { 0 },
            output_end: self.outbox.end_offset(),
            oldest_offset: self.outbox.oldest_output_offset(),
            phase: self.phase.into(),
            open_tool_call_ids: Vec::new(),
            open_input_ids: Vec::new(),
        }
    }

    /// A new stream, and what the relay has of it: everything beyond that goes out again.
    pub(crate) fn replay_after(&mut self, acked: AckedPosition) {
        self.outbox.apply_settlement(acked);
    }

    fn order_stop(&mut self, why: StopReason, kill_at: BootTime) {
        self.raise_stop_reason(why);
        if let SupervisedStage::Running(reins) = &self.stage {
            let may_ask = why.allows_interrupt();
            let calls_off = matches!(why, StopReason::Canceled(_));
            reins.order_stop(StopRequest {
                kill_at,
                may_interrupt_turn: may_ask,
                result_unwanted: calls_off,
            });
        }
    }

    /// Of equals the first counts: a second cancel changes nothing.
    fn raise_stop_reason(&mut self, why: StopReason) {
        if self
            .stop_reason
            .is_none_or(|standing| standing.strength() < why.strength())
        {
            self.stop_reason = Some(why);
        }
    }

    fn push_frame(&mut self, body: Body, clock: &Clock) {
        let control = ControlFrame::from(body);
        let leaves = control.required_durability();
        self.outbox.push_control(control, clock.wall(), leaves);
    }
}

#[cfg(test)]
mod tests;
