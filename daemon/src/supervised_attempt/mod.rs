//! One attempt as the supervisor sees it: its stage, its lease and its outbox, and what each order
//! and event does to them.
//!
//! There is no I/O here: frames go into the outbox, orders into the control handle of the
//! attempt's task. The parts own their own state: [`AttemptLease`], [`AttemptOutbox`],
//! [`RunningAttemptState`] and [`ToolCalls`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_daemon_core::lease_clock::LeaseClock;
use baton_proto::v1::{
    ActiveAttempt, ActiveState, AttemptRef, CancelReason, DaemonFrame, LeaseToken, LifecyclePhase,
    TerminationReceipt, WorkspaceReport,
};

use crate::agents::{DispatchRefusal, FinalAgentUsage};
use crate::attempt::{AttemptControlReceiver, AttemptPlan, StopRequest};
use crate::clock::{BootTime, Clock};
use crate::frames;
use crate::outbox::{AckedPosition, DurablePosition, OutboxJob};
use crate::storage::attempt_dir::AttemptId;
use crate::storage::conversation_store::ConversationTurn;

mod attempt_end;
mod attempt_events;
mod attempt_outbox;
mod lease;
mod recovered_attempt;
mod running_attempt;
mod stop_reason;
mod tool_calls;

pub(crate) use attempt_outbox::OutboxLocation;
pub(crate) use recovered_attempt::RecoveredAttempt;
pub(crate) use running_attempt::ShimReach;
pub(crate) use stop_reason::StopReason;

use attempt_outbox::AttemptOutbox;
use lease::AttemptLease;
use running_attempt::RunningAttemptState;
use tool_calls::ToolCalls;

pub(crate) struct SupervisedAttempt {
    attempt: AttemptRef,
    stage: SupervisedStage,
    lease: AttemptLease,
    outbox: AttemptOutbox,
    tool_calls: ToolCalls,
    /// The conversation that the attempt is a turn of.
    conversation: Option<ConversationTurn>,
    started_at: Option<BootTime>,
    phase: LifecyclePhase,
    /// Why it was ordered to stop: the strongest reason so far.
    stop_reason: Option<StopReason>,
    /// The directory that no other attempt may use.
    exclusive_root: Option<PathBuf>,
    /// The workspace as it was last reported.
    workspace: Option<WorkspaceReport>,
}

enum SupervisedStage {
    /// Accepted and not confirmed: nothing is started yet.
    Accepted {
        plan: Box<AttemptPlan>,
        accepted_at: BootTime,
        confirm_by: BootTime,
    },
    /// A task drives its shim.
    Running(RunningAttemptState),
    /// Nothing runs. The attempt is retained until the relay has acknowledged `last_seq`.
    Finished {
        last_seq: u64,
        receipt: TerminationReceipt,
    },
}

/// A dispatch that the daemon accepts.
pub(crate) struct AcceptedDispatch {
    pub(crate) attempt: AttemptRef,
    pub(crate) token: LeaseToken,
    pub(crate) outbox_location: OutboxLocation,
    pub(crate) plan: AttemptPlan,
    pub(crate) confirm_within: Duration,
    pub(crate) conversation: Option<ConversationTurn>,
}

/// What the attempt's task is started with once the lease is confirmed.
pub(crate) struct AttemptStart {
    pub(crate) plan: AttemptPlan,
    pub(crate) token: LeaseToken,
    /// The directory of its shim.
    pub(crate) dir: AttemptId,
    pub(crate) control: AttemptControlReceiver,
}

impl SupervisedAttempt {
    pub(crate) fn accept(offer: AcceptedDispatch, clock: &Clock) -> Self {
        let AcceptedDispatch {
            attempt,
            token,
            outbox_location,
            plan,
            confirm_within,
            conversation,
        } = offer;
        let now = clock.now();
        let lease = AttemptLease::new(Some(token), None, plan.cleanup_term);
        let exclusive_root = plan.workspace.exclusive_root().map(Path::to_owned);
        let tool_calls = ToolCalls::new(plan.tools.clone(), plan.required_files.clone(), None);
        let stage = SupervisedStage::Accepted {
            plan: Box::new(plan),
            accepted_at: now,
            confirm_by: now.after(confirm_within),
        };
        let mut accepted = Self {
            conversation,
            exclusive_root,
            tool_calls,
            ..Self::new(attempt, stage, lease, AttemptOutbox::new(outbox_location))
        };
        accepted.outbox.push(frames::accepted(), clock);
        accepted
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
        let lease = AttemptLease::new(Some(token), None, Duration::ZERO);
        let mut refused = Self::new(attempt, stage, lease, AttemptOutbox::in_memory());
        refused.finish_unstarted(refusal, clock);
        refused
    }

    fn new(
        attempt: AttemptRef,
        stage: SupervisedStage,
        lease: AttemptLease,
        outbox: AttemptOutbox,
    ) -> Self {
        Self {
            attempt,
            stage,
            lease,
            outbox,
            tool_calls: ToolCalls::default(),
            conversation: None,
            started_at: None,
            phase: LifecyclePhase::Accepted,
            stop_reason: None,
            exclusive_root: None,
            workspace: None,
        }
    }

    pub(crate) fn attempt(&self) -> &AttemptRef {
        &self.attempt
    }

    pub(crate) fn conversation(&self) -> Option<&ConversationTurn> {
        self.conversation.as_ref()
    }

    /// The directory to remove once the attempt is settled.
    pub(crate) fn dir_id(&self) -> Option<AttemptId> {
        self.outbox.dir_id()
    }

    /// Whether the attempt uses this directory, or will, and no other attempt may.
    pub(crate) fn occupies_root(&self, root: &Path) -> bool {
        !self.is_finished() && self.exclusive_root.as_deref() == Some(root)
    }

    /// Whether it takes up one of the daemon's slots: a process runs, or may be started.
    pub(crate) fn uses_slot(&self) -> bool {
        match &self.stage {
            SupervisedStage::Accepted { .. } => true,
            SupervisedStage::Running(running) => !running.has_ended(),
            SupervisedStage::Finished { .. } => false,
        }
    }

    /// Whether the end of its task is still to come.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.stage, SupervisedStage::Running(_))
    }

    /// Whether its terminal frame is in the outbox.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.stage, SupervisedStage::Finished { .. })
    }

    /// Finished, and the relay has acknowledged the terminal frame.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_terminal_seq(self.outbox.queue().acked().control_seq)
    }

    /// Finished, and `seq` is the terminal frame or comes after it.
    pub(crate) fn is_terminal_seq(&self, seq: u64) -> bool {
        match self.stage {
            SupervisedStage::Finished { last_seq, .. } => seq >= last_seq,
            SupervisedStage::Accepted { .. } | SupervisedStage::Running(_) => false,
        }
    }

    #[cfg(test)]
    pub(crate) fn is_stored(&self) -> bool {
        self.outbox.is_stored()
    }

    /// Unacknowledged output in bytes.
    pub(crate) fn unacked_output(&self) -> usize {
        self.outbox.queue().output_bytes()
    }

    /// The relay has repeated a dispatch that is not confirmed yet, so the acceptance is repeated.
    pub(crate) fn resend_acceptance(&mut self, clock: &Clock) {
        if matches!(self.stage, SupervisedStage::Accepted { .. }) {
            self.outbox.push(frames::accepted(), clock);
        }
    }

    /// The lease counts from when the confirmed request was sent. For a running attempt this is a
    /// renewal. Returns what to start, once; `None` when the lease ended before its confirmation.
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
        if !self.outbox.is_stored() {
            // There is no directory to start it in yet. The acceptance is sent when there is one,
            // and the relay confirms it again.
            return None;
        }
        let lease = LeaseClock::from_grant(sent_at.unwrap_or(*accepted_at), granted);
        if lease.is_expired(clock.now()) {
            self.return_unstarted(&DispatchRefusal::not_confirmed(), clock);
            return None;
        }
        let (token, dir) = (self.lease.token().cloned()?, self.outbox.dir_id()?);
        self.lease.start(lease);
        let plan = (**plan).clone();
        let (running, control) = RunningAttemptState::new(Some(lease), ShimReach::Linked, 0);
        self.stage = SupervisedStage::Running(running);
        Some(AttemptStart {
            plan,
            token,
            dir,
            control,
        })
    }

    pub(crate) fn cancel(&mut self, reason: CancelReason, grace: Option<Duration>, clock: &Clock) {
        match &self.stage {
            SupervisedStage::Accepted { .. } => {
                let receipt = frames::no_process_receipt(clock.wall());
                let fields = self.terminal_fields(receipt.clone());
                let body = frames::canceled(reason, &FinalAgentUsage::default(), fields);
                self.finish_with_frame(body, receipt, clock);
            }
            SupervisedStage::Running(_) => {
                let grace = grace.unwrap_or(self.lease.cleanup_term());
                self.order_stop(StopReason::Canceled(reason), clock.now().after(grace));
            }
            // Nothing is left to cancel.
            SupervisedStage::Finished { .. } => {}
        }
    }

    /// The time to drain is over, and SIGKILL must be sent by `kill_by`.
    pub(crate) fn stop_for_drain(&mut self, kill_by: BootTime, clock: &Clock) {
        let by_grace = clock.now().after(self.lease.cleanup_term());
        self.order_stop(StopReason::Drained, by_grace.min(kill_by));
    }

    /// Returns an attempt that was not started to the relay.
    pub(crate) fn return_unstarted(&mut self, refusal: &DispatchRefusal, clock: &Clock) {
        if matches!(self.stage, SupervisedStage::Accepted { .. }) {
            self.finish_unstarted(refusal, clock);
        }
    }

    /// The attempt's entry in Hello.
    pub(crate) fn to_active_attempt(&self, now: BootTime) -> ActiveAttempt {
        let state = match &self.stage {
            SupervisedStage::Accepted { .. } => ActiveState::Running,
            SupervisedStage::Running(running) => match running.reach() {
                ShimReach::Linked if self.is_shim_unresponsive(now) => ActiveState::Unreachable,
                ShimReach::Linked => ActiveState::Running,
                ShimReach::Unreachable => ActiveState::Unreachable,
                // Its end is known and is sent after the rest of its output.
                ShimReach::Ended => ActiveState::Finished,
            },
            SupervisedStage::Finished { .. } => ActiveState::Finished,
        };
        let queue = self.outbox.queue();
        let acked = queue.acked().control_seq;
        let last = queue.last_control_seq();
        let token = self.lease.token().cloned();
        ActiveAttempt {
            r#ref: Some(self.attempt.clone()),
            token: token.filter(|_| state == ActiveState::Running),
            state: state.into(),
            last_control_seq: last,
            oldest_control_seq: if acked < last { acked + 1 } else { 0 },
            output_end: queue.end_offset(),
            oldest_offset: queue.oldest_output_offset(),
            phase: self.phase.into(),
            open_tool_call_ids: Vec::new(),
            open_input_ids: Vec::new(),
        }
    }

    /// Whether a frame waits to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        self.outbox.queue().next_unsent().is_some()
    }

    /// The next frame to send, if the attempt may send it now.
    pub(crate) fn next_frame(&self, now: BootTime) -> Option<DaemonFrame> {
        let record = self.outbox.queue().next_unsent()?;
        let token = self.lease.token();
        (!self.must_not_send(now))
            .then(|| frames::encode_attempt_frame(&self.attempt, token, record))
    }

    /// The frame of [`Self::next_frame`] is on its way.
    pub(crate) fn mark_sent(&mut self) {
        self.outbox.queue_mut().mark_sent();
    }

    /// A new stream: everything unacknowledged is sent again.
    pub(crate) fn resend_unacked(&mut self) {
        self.outbox.queue_mut().resend_unacked();
    }

    /// The position that the relay has on a new stream: everything after it is sent again.
    pub(crate) fn replay_after(&mut self, acked: AckedPosition) {
        self.outbox.queue_mut().apply_settlement(acked);
    }

    /// The relay has acknowledged frames up to this position.
    pub(crate) fn ack(&mut self, acked: AckedPosition) {
        self.outbox.queue_mut().ack(acked);
        self.on_acked();
    }

    pub(crate) fn has_disk_job(&self) -> bool {
        self.outbox.has_disk_job()
    }

    /// The next job for the disk. A job that was taken must be submitted.
    pub(crate) fn next_disk_job(&mut self) -> Option<OutboxJob> {
        self.outbox.next_disk_job()
    }

    /// The job that writes frames which the disk refused before.
    pub(crate) fn repair_job(&mut self) -> Option<OutboxJob> {
        self.outbox.repair_job()
    }

    /// The disk refused a write before and may accept it now.
    pub(crate) fn needs_repair(&self) -> bool {
        self.outbox.needs_repair()
    }

    /// The disk has stored more: the shim may drop the transcript before it.
    pub(crate) fn on_durable(&mut self, durable: DurablePosition) {
        let log = self.outbox.queue_mut().log_mut();
        log.on_durable(durable);
        let (consumed, written) = (log.stored_consumed(), log.written_through());
        if let SupervisedStage::Running(running) = &mut self.stage {
            running.on_stored(consumed);
            running.on_written(written);
        }
    }

    /// The outbox file could not be rewritten; the old one is still complete.
    pub(crate) fn on_not_replaced(&mut self) {
        self.outbox.queue_mut().log_mut().on_replaced();
    }

    /// The disk refused a write. Returns the directory of an attempt that was never stored.
    pub(crate) fn on_disk_failed(&mut self, why: StopReason, clock: &Clock) -> Option<AttemptId> {
        let unused_dir = self.outbox.on_write_failed();
        match &self.stage {
            SupervisedStage::Accepted { .. } => {
                self.return_unstarted(&DispatchRefusal::disk_full(), clock);
            }
            SupervisedStage::Running(_) => {
                self.order_stop(why, clock.now().after(self.lease.cleanup_term()));
            }
            // All its frames are queued and are sent from memory.
            SupervisedStage::Finished { .. } => {}
        }
        unused_dir
    }

    fn order_stop(&mut self, reason: StopReason, kill_at: BootTime) {
        self.raise_stop_reason(reason);
        if let SupervisedStage::Running(running) = &self.stage {
            running.stop(StopRequest {
                kill_at,
                may_interrupt_turn: reason.allows_interrupt(),
                result_unwanted: matches!(reason, StopReason::Canceled(_)),
            });
        }
    }

    /// Of two reasons of equal strength the first counts: a second cancel changes nothing.
    fn raise_stop_reason(&mut self, reason: StopReason) {
        if self
            .stop_reason
            .is_none_or(|current| reason.is_stronger_than(current))
        {
            self.stop_reason = Some(reason);
        }
    }
}

#[cfg(test)]
mod tests;
