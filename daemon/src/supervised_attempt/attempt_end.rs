//! How an attempt ends: which terminal frame is sent, and what replaces that frame when the relay
//! refuses it or accepts only a receipt.

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{LossCause, TerminationReceipt};
use tracing::warn;

use super::{StopReason, SupervisedAttempt, SupervisedStage};
use crate::agents::{AttemptVerdict, DispatchRefusal, FinalAgentUsage, judge_with_finish};
use crate::attempt::{AttemptEnding, EndCause};
use crate::clock::Clock;
use crate::frames::{self, ControlFrame, TerminalFields};

impl SupervisedAttempt {
    /// The relay reports that the attempt may not go on: kill its processes, drop its frames, send
    /// a receipt.
    pub(crate) fn fence(&mut self, clock: &Clock) {
        match &self.stage {
            // No process is left to kill, and the terminal frame may be a result that the relay
            // still accepts.
            SupervisedStage::Running(running) if running.has_ended() => {}
            SupervisedStage::Running(_) => {
                self.outbox.queue_mut().discard_unacked();
                self.tool_calls.drop_waiting();
                let kill_at = clock.now().after(self.lease.cleanup_term());
                self.order_stop(StopReason::Fenced, kill_at);
            }
            SupervisedStage::Accepted { .. } => {
                self.outbox.queue_mut().discard_unacked();
                self.stop_reason = Some(StopReason::Fenced);
                let receipt = frames::no_process_receipt(clock.wall());
                self.finish_with_frame(Body::Receipt(receipt.clone()), receipt, clock);
            }
            // The terminal frame contains the receipt, and may be a result that the relay still
            // accepts.
            SupervisedStage::Finished { .. } => {
                self.outbox.queue_mut().drop_all_but_last_control();
            }
        }
    }

    pub(super) fn on_ended(&mut self, ending: &AttemptEnding, clock: &Clock) {
        if matches!(ending.cause, EndCause::LeaseEnded) {
            self.raise_stop_reason(StopReason::LeaseEnded);
        }
        let verdict = judge_with_finish(ending, self.tool_calls.finish());
        let mut receipt = frames::termination_receipt(ending, clock.wall());
        if verdict == AttemptVerdict::Stopped {
            let loss = self.loss_cause(&ending.cause);
            receipt.loss = loss.into();
            self.log_loss(loss);
        }
        let body = if self.stop_reason == Some(StopReason::Fenced) {
            self.outbox.queue_mut().discard_unacked();
            Body::Receipt(receipt.clone())
        } else {
            let fields = self.terminal_fields(receipt.clone());
            frames::terminal_frame(&verdict, ending, fields)
                .unwrap_or_else(|| self.stopped_frame(ending, &receipt))
        };
        let within_lease = ending.child_ended.map_or_else(
            || self.lease.is_valid(clock.now()),
            |ended| ended.within_lease,
        );
        self.finish_observed(body, receipt, within_lease, clock);
    }

    /// The terminal frame of an attempt that was ordered to stop before it had an outcome.
    fn stopped_frame(&self, ending: &AttemptEnding, receipt: &TerminationReceipt) -> Body {
        let fields = self.terminal_fields(receipt.clone());
        match self.stop_reason {
            Some(StopReason::Canceled(reason)) => {
                frames::canceled(reason, &reported_usage(ending), fields)
            }
            Some(StopReason::DiskFull) => frames::disk_full(&ending.stderr_tail, fields),
            Some(StopReason::TooLong) => frames::too_long(&ending.stderr_tail, fields),
            Some(StopReason::LeaseEnded | StopReason::Drained) | None
                if matches!(ending.cause, EndCause::NeverLaunched) =>
            {
                let reason = "the daemon died before it launched anything";
                frames::released(reason, receipt.clone())
            }
            Some(StopReason::LeaseEnded | StopReason::Drained | StopReason::Fenced) | None => {
                Body::Receipt(receipt.clone())
            }
        }
    }

    /// Why there is no result, unless the relay ordered it itself.
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

    /// The first place to look when a task was lost.
    fn log_loss(&self, loss: LossCause) {
        let attempt_id = self.attempt.attempt_id.as_str();
        match loss {
            LossCause::Unspecified => {}
            LossCause::LeaseEnded => warn!(
                attempt_id,
                "attempt lost: its lease was not renewed in time"
            ),
            LossCause::DaemonStopped => {
                warn!(attempt_id, "attempt lost: the daemon is being stopped");
            }
            LossCause::SupervisorDied => warn!(
                attempt_id,
                "attempt lost: its shim died, or was stuck and was killed"
            ),
        }
    }

    /// The relay refused the completion for good. The process is gone and cannot correct it.
    pub(crate) fn on_refused_completion(&mut self, seq: u64, message: &str, clock: &Clock) {
        let SupervisedStage::Finished { last_seq, receipt } = &self.stage else {
            return;
        };
        if *last_seq == seq && receipt.process_started {
            let receipt = receipt.clone();
            let fields = self.terminal_fields(receipt.clone());
            self.finish_with_frame(frames::contract_unmet(message, fields), receipt, clock);
        }
    }

    /// The relay lacks a frame before one that it received. `expected` is the control frame that it
    /// waits for.
    pub(crate) fn on_gap(&mut self, expected: Option<u64>, clock: &Clock) {
        if !self.outbox.begin_replay(clock.now()) {
            return;
        }
        match (&self.stage, self.stop_reason, expected) {
            // The missing frames were dropped on purpose: the receipt takes their place.
            (
                SupervisedStage::Finished { receipt, .. },
                Some(StopReason::Fenced),
                Some(expected),
            ) => {
                let receipt = receipt.clone();
                self.outbox.queue_mut().restart_at(expected);
                self.finish_with_frame(Body::Receipt(receipt.clone()), receipt, clock);
            }
            (
                SupervisedStage::Accepted { .. }
                | SupervisedStage::Running(_)
                | SupervisedStage::Finished { .. },
                _,
                _,
            ) => self.resend_unacked(),
        }
    }

    pub(super) fn terminal_fields(&self, receipt: TerminationReceipt) -> TerminalFields {
        TerminalFields {
            final_offset: self.outbox.queue().end_offset(),
            receipt,
        }
    }

    /// Ends an attempt for which no process was started.
    pub(super) fn finish_unstarted(&mut self, refusal: &DispatchRefusal, clock: &Clock) {
        let receipt = frames::no_process_receipt(clock.wall());
        self.finish_with_frame(frames::rejected(refusal), receipt, clock);
    }

    pub(super) fn finish_with_frame(
        &mut self,
        body: Body,
        receipt: TerminationReceipt,
        clock: &Clock,
    ) {
        let within_lease = self.lease.is_valid(clock.now());
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
        let last_seq = self.outbox.push_control(control, clock);
        self.stage = SupervisedStage::Finished { last_seq, receipt };
    }
}

/// What the agent used, also when it reported nothing else.
fn reported_usage(ending: &AttemptEnding) -> FinalAgentUsage {
    ending
        .agent_summary
        .as_ref()
        .map(FinalAgentUsage::from_summary)
        .unwrap_or_default()
}
