//! The last words of an attempt: which frame ends it, what replaces that frame when the relay refuses it or
//! wants none of it.

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{LossCause, TerminationReceipt};
use tracing::warn;

use super::{Held, REPLAY_PAUSE, Reach, Stage, StopWhy};
use crate::agents::{Used, Verdict, as_told};
use crate::attempt::{Cause, Ending};
use crate::clock::Clock;
use crate::frames::{self, Closing, Control};

impl Held {
    /// The relay says that it has no right to go on: kill, drop its frames, send a receipt.
    pub(crate) fn fence(&mut self, clock: &Clock) {
        match &self.stage {
            // Nothing is left to kill, and its last word may be a result that is still wanted.
            Stage::Running(reins) if reins.reach == Reach::Over => {}
            Stage::Running(_) => {
                self.outbox.drop_unacked();
                self.forget_waiting();
                self.order_stop(StopWhy::Fenced, clock.now().after(self.cleanup_term));
            }
            Stage::Accepted { .. } => {
                self.outbox.drop_unacked();
                self.stopping = Some(StopWhy::Fenced);
                let receipt = frames::nothing_ran(clock.wall());
                self.finish(Body::Receipt(receipt.clone()), receipt, clock);
            }
            // Its last word is the receipt, and may be a result that is still wanted.
            Stage::Finished { .. } => self.outbox.keep_last_control(),
        }
    }

    pub(super) fn on_ended(&mut self, ending: &Ending, clock: &Clock) {
        if matches!(ending.cause, Cause::LeaseEnded) {
            self.raise_stop(StopWhy::LeaseEnded);
        }
        let verdict = as_told(ending, self.finish.as_ref());
        let mut receipt = frames::receipt(ending, clock.wall());
        if verdict == Verdict::Stopped {
            let loss = self.loss(&ending.cause);
            receipt.loss = loss.into();
            self.log_loss(loss);
        }
        let only_receipt = Body::Receipt(receipt.clone());
        let untold = if matches!(ending.cause, Cause::NeverLaunched) {
            let why = "the daemon died before it launched anything";
            frames::given_back(why, receipt.clone())
        } else {
            only_receipt.clone()
        };
        let closing = self.closing(receipt.clone());
        let body = match self.stopping {
            Some(StopWhy::Fenced) => {
                self.outbox.drop_unacked();
                only_receipt
            }
            Some(StopWhy::LeaseEnded | StopWhy::Drained) | None => {
                frames::terminal(&verdict, ending, closing).unwrap_or(untold)
            }
            Some(StopWhy::DiskFull) => {
                let own = self.closing(receipt.clone());
                frames::terminal(&verdict, ending, own)
                    .unwrap_or_else(|| frames::disk_full(&ending.stderr_tail, closing))
            }
            Some(StopWhy::TooLong) => {
                let own = self.closing(receipt.clone());
                frames::terminal(&verdict, ending, own)
                    .unwrap_or_else(|| frames::too_long(&ending.stderr_tail, closing))
            }
            Some(StopWhy::Canceled(reason)) => {
                let own = self.closing(receipt.clone());
                frames::terminal(&verdict, ending, own)
                    .unwrap_or_else(|| frames::canceled(reason, &used(ending), closing))
            }
        };
        let within_lease = ending
            .ended
            .map_or_else(|| self.is_within_lease(clock), |ended| ended.within_lease);
        self.finish_with(body, receipt, within_lease, clock);
    }

    /// Why there is no result, where the relay does not know it: what it has ordered itself it knows.
    fn loss(&self, cause: &Cause) -> LossCause {
        match (cause, self.stopping) {
            (Cause::LeaseEnded, _) => LossCause::LeaseEnded,
            (Cause::Lost, _) => LossCause::SupervisorDied,
            (Cause::Stopped, Some(StopWhy::Drained)) => LossCause::DaemonStopped,
            (
                Cause::Stopped,
                Some(
                    StopWhy::Canceled(_)
                    | StopWhy::DiskFull
                    | StopWhy::TooLong
                    | StopWhy::LeaseEnded
                    | StopWhy::Fenced,
                )
                | None,
            )
            | (
                Cause::NotStarted { .. }
                | Cause::Exited(_)
                | Cause::Deadline(_)
                | Cause::Disk { .. }
                | Cause::Lingered
                | Cause::NeverLaunched
                | Cause::Broken,
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
        let Stage::Finished { last_seq, receipt } = &self.stage else {
            return;
        };
        if *last_seq == seq && receipt.process_started {
            let receipt = receipt.clone();
            let closing = self.closing(receipt.clone());
            self.finish(frames::contract_unmet(message, closing), receipt, clock);
        }
    }

    /// The relay misses something before a frame that it got. `expected` is the control frame it wants.
    pub(crate) fn on_gap(&mut self, expected: Option<u64>, clock: &Clock) {
        let now = clock.now();
        if self
            .replayed_at
            .is_some_and(|at| now < at.after(REPLAY_PAUSE))
        {
            return;
        }
        self.replayed_at = Some(now);
        match (&self.stage, self.stopping, expected) {
            // The frames in between were dropped on purpose: the receipt takes their place.
            (Stage::Finished { receipt, .. }, Some(StopWhy::Fenced), Some(expected)) => {
                let receipt = receipt.clone();
                self.outbox.restart_at(expected);
                self.finish(Body::Receipt(receipt.clone()), receipt, clock);
            }
            (Stage::Accepted { .. } | Stage::Running(_) | Stage::Finished { .. }, _, _) => {
                self.outbox.rewind();
            }
        }
    }

    pub(super) fn closing(&self, receipt: TerminationReceipt) -> Closing {
        Closing {
            final_offset: self.outbox.end_offset(),
            receipt,
        }
    }

    /// As of now: where nobody saw an end that was earlier.
    fn is_within_lease(&self, clock: &Clock) -> bool {
        self.lease.is_some_and(|lease| !lease.is_over(clock.now()))
    }

    pub(super) fn finish(&mut self, body: Body, receipt: TerminationReceipt, clock: &Clock) {
        let within_lease = self.is_within_lease(clock);
        self.finish_with(body, receipt, within_lease, clock);
    }

    fn finish_with(
        &mut self,
        body: Body,
        receipt: TerminationReceipt,
        within_lease: bool,
        clock: &Clock,
    ) {
        let control = Control {
            body: Some(body),
            within_lease,
        };
        let leaves = control.leaves();
        let last_seq = self.outbox.push_control(control, clock.wall(), leaves);
        self.stage = Stage::Finished { last_seq, receipt };
    }
}

/// What it has used, also where that is all that it could say.
fn used(ending: &Ending) -> Used {
    ending.spoken.as_ref().map(Used::of).unwrap_or_default()
}
