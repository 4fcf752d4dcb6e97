//! The last words of an attempt: which frame ends it, what replaces that frame when the relay refuses it or
//! wants none of it.

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{LossCause, TerminationReceipt};
use tracing::warn;

use super::{REPLAY_INTERVAL_MIN, ShimReach, StopReason, SupervisedAttempt, SupervisedStage};
use crate::agents::{AttemptVerdict, FinalAgentUsage, judge_with_finish};
use crate::attempt::{AttemptEnding, EndCause};
use crate::clock::Clock;
use crate::frames::{self, ControlFrame, TerminalFields};

impl SupervisedAttempt {
    /// The relay says that it has no right to go on: kill, drop its frames, send a receipt.
    pub(crate) fn fence(&mut self, clock: &Clock) {
        match &self.stage {
            // Nothing is left to kill, and its last word may be a result that is still wanted.
            SupervisedStage::Running(reins) if reins.reach == ShimReach::Ended => {}
            SupervisedStage::Running(_) => {
                self.outbox.discard_unacked();
                self.drop_waiting_calls();
                self.order_stop(StopReason::Fenced, clock.now().after(self.cleanup_term));
            }
            SupervisedStage::Accepted { .. } => {
                self.outbox.discard_unacked();
                self.stop_reason = Some(StopReason::Fenced);
                let receipt = frames::no_process_receipt(clock.wall());
                self.finish_with_frame(Body::Receipt(receipt.clone()), receipt, clock);
            }
            // Its last word is the receipt, and may be a result that is still wanted.
            SupervisedStage::Finished { .. } => self.outbox.drop_all_but_last_control(),
        }
    }

    pub(super) fn on_ended(&mut self, ending: &AttemptEnding, clock: &Clock) {
        if matches!(ending.cause, EndCause::LeaseEnded) {
            self.raise_stop_reason(StopReason::LeaseEnded);
        }
        let verdict = judge_with_finish(ending, self.agent_finish.as_ref());
        let mut receipt = frames::termination_receipt(ending, clock.wall());
        if verdict == AttemptVerdict::Stopped {
            let loss = self.loss_cause(&ending.cause);
            receipt.loss = loss.into();
            self.log_loss(loss);
        }
        let only_receipt = Body::Receipt(receipt.clone());
        let untold = if matches!(ending.cause, EndCause::NeverLaunched) {
            let why = "the daemon died before it launched anything";
            frames::released(why, receipt.clone())
        } else {
            only_receipt.clone()
        };
        let closing = self.terminal_fields(receipt.clone());
        let body = match self.stop_reason {
            Some(StopReason::Fenced) => {
                self.outbox.discard_unacked();
                only_receipt
            }
            Some(StopReason::LeaseEnded | StopReason::Drained) | None => {
                frames::terminal_frame(&verdict, ending, closing).unwrap_or(untold)
            }
            Some(StopReason::DiskFull) => {
                let own = self.terminal_fields(receipt.clone());
                frames::terminal_frame(&verdict, ending, own)
                    .unwrap_or_else(|| frames::disk_full(&ending.stderr_tail, closing))
            }
            Some(StopReason::TooLong) => {
                let own = self.terminal_fields(receipt.clone());
                frames::terminal_frame(&verdict, ending, own)
                    .unwrap_or_else(|| frames::too_long(&ending.stderr_tail, closing))
            }
            Some(StopReason::Canceled(reason)) => {
                let own = self.terminal_fields(receipt.clone());
                frames::terminal_frame(&verdict, ending, own)
                    .unwrap_or_else(|| frames::canceled(reason, &reported_usage(ending), closing))
            }
        };
        let within_lease = ending
            .child_ended
            .map_or_else(|| self.is_within_lease(clock), |ended| ended.within_lease);
        self.finish_observed(body, receipt, within_lease, clock);
    }

    /// Why there is no result, where the relay does not know it: what it has ordered itself it knows.
    fn loss_cause(&self, cause: &EndCause) -> LossCause {
        match (cause, self.stop_reason) {
            (EndCause::LeaseEnded, _) => LossCause::LeaseEnded,
            (EndCause::Lost, _) => LossCause::SupervisorDied,
            (EndCause::Stopped, Some(StopReason::Drained)) => LossCause::DaemonStopped,
            (
                EndCause::Stopped,
                Some(
                    StopReason::Canceled(_)
                    | StopReason::DiskFull
                    | StopReason::TooLong
                    | StopReason::LeaseEnded
                    | StopReason::Fenced,
                )
                | None,
            )
            | (
                EndCause::NotStarted { .. }
                | EndCause::Exited(_)
                | EndCause::Deadline(_)
                | EndCause::WorkerDisk { .. }
                | EndCause::Lingered
                | EndCause::NeverLaunched
                | EndCause::DaemonFault,
                _,
            ) => LossCause::Unspecified,
        }
    }

    /// Whoever reads why a task was lost looks here next.
    fn log_loss(&self, loss: LossCause) {
        let attempt_id = self.attempt.attempt_id.as_str();
        match loss {
            LossCause::Unspecified => {}
            LossCause::LeaseEnded => warn!(
                attempt_id,
                "ended it without a result: no relay renewed its lease in time"
            ),
            LossCause::DaemonStopped => {
                warn!(
                    attempt_id,
                    "ended it without a result: this daemon is being stopped"
                );
            }
            LossCause::SupervisorDied => warn!(
                attempt_id,
                "ended without a result: its shim died, or was stuck and was killed"
            ),
        }
    }

    /// The relay refused the completion for good: the process is gone and cannot make up for it.
    pub(crate) fn on_refused_completion(&mut self, seq: u64, message: &str, clock: &Clock) {
        let SupervisedStage::Finished { last_seq, receipt } = &self.stage else {
            return;
        };
        if *last_seq == seq && receipt.process_started {
            let receipt = receipt.clone();
            let closing = self.terminal_fields(receipt.clone());
            self.finish_with_frame(frames::contract_unmet(message, closing), receipt, clock);
        }
    }

    /// The relay misses something before a frame that it got. `expected` is the control frame it wants.
    pub(crate) fn on_gap(&mut self, expected: Option<u64>, clock: &Clock) {
        let now = clock.now();
        if self
            .replayed_at
            .is_some_and(|at| now < at.after(REPLAY_INTERVAL_MIN))
        {
            return;
        }
        self.replayed_at = Some(now);
        match (&self.stage, self.stop_reason, expected) {
            // The frames in between were dropped on purpose: the receipt takes their place.
            (
                SupervisedStage::Finished { receipt, .. },
                Some(StopReason::Fenced),
                Some(expected),
            ) => {
                let receipt = receipt.clone();
                self.outbox.restart_at(expected);
                self.finish_with_frame(Body::Receipt(receipt.clone()), receipt, clock);
            }
            (
                SupervisedStage::Accepted { .. }
                | SupervisedStage::Running(_)
                | SupervisedStage::Finished { .. },
                _,
                _,
            ) => {
                self.outbox.resend_unacked();
            }
        }
    }

    pub(super) fn terminal_fields(&self, receipt: TerminationReceipt) -> TerminalFields {
        TerminalFields {
            final_offset: self.outbox.end_offset(),
            receipt,
        }
    }

    /// As of now: where nobody saw an end that was earlier.
    fn is_within_lease(&self, clock: &Clock) -> bool {
        self.lease
            .is_some_and(|lease| !lease.is_expired(clock.now()))
    }

    pub(super) fn finish_with_frame(
        &mut self,
        body: Body,
        receipt: TerminationReceipt,
        clock: &Clock,
    ) {
        let within_lease = self.is_within_lease(clock);
        self.finish_observed(body, receipt, within_lease, clock);
    }

    fn finish_observed(
        &mut self,
        body: Body,
        receipt: TerminationReceipt,
        within_lease: bool,
        clock: &Clock,
    ) {
        let control = ControlFrame {
            body: Some(body),
            within_lease,
        };
        let leaves = control.required_durability();
        let last_seq = self.outbox.push_control(control, clock.wall(), leaves);
        self.stage = SupervisedStage::Finished { last_seq, receipt };
    }
}

/// What it has used, also where that is all that it could say.
fn reported_usage(ending: &AttemptEnding) -> FinalAgentUsage {
    ending
        .agent_summary
        .as_ref()
        .map(FinalAgentUsage::from_summary)
        .unwrap_or_default()
}
