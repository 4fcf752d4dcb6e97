//! The attempt is being ended. What it ends as was decided first and stays, with two rules: a result wins over a
//! deadline, and a cancel wins over everything.

use super::ending::{canceled_by, code_of};
use super::{Event, Machine, Outcome};
use crate::input::{CanceledBody, Completed, Errored, Sign, Termination};
use crate::record::{
    EndState, EndedBy, EventKind, FailureCode, ParkCause, Pending, Phase, Receipt, State, TimerKind,
};
use crate::reject::Rejection;
use crate::timers::{Fact, TimerKey};

impl Machine<'_> {
    pub(super) fn in_cleaning(&mut self, event: Event) -> Outcome {
        match event {
            Event::Completed(body) => self.complete_in_cleanup(body),
            Event::Unmet(body) => self.unmet_in_cleanup(body),
            Event::Errored(body) => self.error_in_cleanup(body),
            Event::Canceled(body) => self.canceled_in_cleanup(body),
            Event::Released {
                reason,
                termination,
            } if !self.is_decided() => self.release(reason, &termination),
            Event::Released { termination, .. } | Event::Receipt(termination) => {
                self.over(&termination)
            }
            Event::Rejected { .. } => self.over(&Termination {
                group_empty: true,
                ..Termination::default()
            }),
            Event::CancelAsked { operator } => self.cancel_in_cleanup(operator),
            Event::Forced(forced) => self.forced(forced),
            Event::Expired(TimerKey::CleanupTerm) => self.cleanup_expired(),
            Event::Expired(TimerKey::Lease) => self.lease_expired_in_cleanup(),
            Event::Expired(TimerKey::Total) => self.total_in_cleanup(),
            Event::Missing => {
                self.end_as_pending(Receipt::Unconfirmed, FailureCode::DaemonLostAttempt)
            }
            Event::Rebooted => {
                self.end_as_pending(Receipt::Confirmed, FailureCode::DaemonLostAttempt)
            }
            Event::Phase(phase) => self.phase_in_cleanup(phase),
            Event::OwnDeadline(timer) => self.own_deadline_in_cleanup(timer),
            Event::ToolStarted(_) => {
                self.attempt.retry_safe = false;
                Outcome::Applied
            }
            Event::Output { sign, end, .. } => self.output_in_cleanup(sign, end),
            Event::ToolFinished(_)
            | Event::InputWithdrawn(_)
            | Event::InputReceived(_)
            | Event::Accepted => Outcome::Applied,
            Event::InputAsked(..) => Outcome::Refused(Rejection::WrongOrder),
            Event::Park { .. } => Outcome::Refused(Rejection::BeingEnded),
            Event::Answered(id, answer) => self.answered_late(id, &answer),
            Event::Expired(_)
            | Event::Offer { .. }
            | Event::Claim { .. }
            | Event::DeliveryFailed
            | Event::Withdraw
            | Event::HandOff { .. }
            | Event::Kept => Outcome::Ignored,
        }
    }

    fn pending(&self) -> Option<&Pending> {
        if let State::CleaningUp { pending } = &self.attempt.state {
            pending.as_ref()
        } else {
            None
        }
    }

    /// Whether it is known what it ends as, whatever the daemon says. Why the daemon ends it by itself is its own affair.
    fn is_decided(&self) -> bool {
        match self.pending() {
            None | Some(Pending::OwnDeadline { .. }) => false,
            Some(Pending::Deadline { .. } | Pending::Cancel { .. } | Pending::Park) => true,
        }
    }

    fn complete_in_cleanup(&mut self, body: Completed) -> Outcome {
        match self.pending() {
            None | Some(Pending::Deadline { .. } | Pending::Park | Pending::OwnDeadline { .. }) => {
                self.complete(body)
            }
            Some(Pending::Cancel { .. }) if mutant!(CancelLosesToResult) => self.complete(body),
            Some(Pending::Cancel { .. }) => {
                self.keep_usage(&body.usage, body.agent_session_id, body.final_offset);
                self.over(&body.termination)
            }
        }
    }

    /// No result, so it wins over nothing; but it is the word that the attempt is over.
    fn unmet_in_cleanup(&mut self, body: Completed) -> Outcome {
        if !self.is_decided() {
            return self.unmet(body);
        }
        self.keep_receipts(body.artifacts);
        self.keep_usage(&body.usage, body.agent_session_id, body.final_offset);
        self.over(&body.termination)
    }

    fn error_in_cleanup(&mut self, body: Errored) -> Outcome {
        if !self.is_decided() {
            return self.error(body);
        }
        self.keep_usage(&body.usage, body.agent_session_id, body.final_offset);
        self.over(&body.termination)
    }

    fn canceled_in_cleanup(&mut self, body: CanceledBody) -> Outcome {
        if !self.is_decided() {
            return self.canceled(body);
        }
        self.keep_usage(&body.usage, None, body.final_offset);
        self.over(&body.termination)
    }

    /// The daemon's word that it is over, whatever word it chose.
    fn over(&mut self, termination: &Termination) -> Outcome {
        if self.pending().is_none() {
            return self.gone(termination);
        }
        self.learn(termination);
        let receipt = self.receipt_of(termination);
        let outcome = self.end_as_pending(receipt, FailureCode::DaemonLostAttempt);
        self.note_termination(termination);
        outcome
    }

    /// Ends as decided; where nothing was, as a loss with this code.
    fn end_as_pending(&mut self, receipt: Receipt, otherwise: FailureCode) -> Outcome {
        match self.pending().cloned() {
            Some(Pending::Cancel { operator }) => {
                let (code, by) = canceled_by(operator);
                self.finish(EndState::Canceled, Some(code), by, receipt)
            }
            Some(Pending::Deadline { timer, .. } | Pending::OwnDeadline { timer }) => self.finish(
                EndState::TimedOut,
                Some(code_of(timer)),
                EndedBy::Relay,
                receipt,
            ),
            Some(Pending::Park) => self.park(ParkCause::InputTimeout, receipt),
            None => self.lose_with(otherwise, receipt),
        }
    }

    /// A person's cancel replaces a deadline: they asked for it to be canceled, and canceled it will be.
    fn cancel_in_cleanup(&mut self, operator: bool) -> Outcome {
        if let Some(Pending::Cancel { .. }) = self.pending() {
            return Outcome::Ignored;
        }
        self.attempt.state = State::CleaningUp {
            pending: Some(Pending::Cancel { operator }),
        };
        Outcome::Applied
    }

    /// Time is up for the kill. A cancel or an ordinary exit whose daemon is away waits on, for the lease bounds it and
    /// its last word may be in the daemon's outbox. That cleanup was said to be finished proves nothing: only a receipt
    /// tells that no process is left.
    fn cleanup_expired(&mut self) -> Outcome {
        self.notes.push(EventKind::DeadlineExpired {
            timer: TimerKind::CleanupTerm,
        });
        let waits = !self.is_decided() || matches!(self.pending(), Some(Pending::Cancel { .. }));
        if waits && !self.connected {
            return Outcome::Applied;
        }
        let own = mutant!(OwnDeadlineForgotten) && !self.is_decided();
        if self.pending().is_none() || own {
            return self.finish(
                EndState::Failed,
                Some(FailureCode::NoResult),
                EndedBy::Relay,
                Receipt::Unconfirmed,
            );
        }
        self.end_as_pending(Receipt::Unconfirmed, FailureCode::NoResult)
    }

    fn lease_expired_in_cleanup(&mut self) -> Outcome {
        self.notes.push(EventKind::DeadlineExpired {
            timer: TimerKind::Lease,
        });
        self.end_as_pending(Receipt::Unconfirmed, FailureCode::LeaseExpired)
    }

    fn total_in_cleanup(&mut self) -> Outcome {
        if self.pending().is_some() {
            return Outcome::Ignored;
        }
        self.notes.push(EventKind::DeadlineExpired {
            timer: TimerKind::Total,
        });
        let phase = self.attempt.phase;
        let pending = Pending::Deadline {
            timer: TimerKind::Total,
            tool: None,
            phase,
        };
        self.attempt.state = State::CleaningUp {
            pending: Some(pending),
        };
        Outcome::Applied
    }

    /// The daemon had found the deadline before it heard of what was decided here, or says twice that it cleans up.
    fn own_deadline_in_cleanup(&mut self, timer: TimerKind) -> Outcome {
        if self.pending().is_none() {
            self.attempt.state = State::CleaningUp {
                pending: Some(Pending::OwnDeadline { timer }),
            };
        }
        self.phase_in_cleanup(Phase::CleanupStarted)
    }

    fn phase_in_cleanup(&mut self, phase: Phase) -> Outcome {
        match phase {
            Phase::CleanupStarted => {
                self.attempt.phase = Some(phase);
                self.notes.push(EventKind::Phase(phase));
                Outcome::Applied
            }
            Phase::CleanupFinished => {
                self.attempt.phase = Some(phase);
                self.attempt.times.cleanup_finished = Some(self.now.wall);
                // The kill is done; its terminal frame gets as long again before the relay ends it.
                self.tell(&Fact::Phase(phase));
                self.tell(&Fact::CancelSent);
                self.notes.push(EventKind::Phase(phase));
                Outcome::Applied
            }
            Phase::Accepted
            | Phase::Queued
            | Phase::Started
            | Phase::AgentStarted
            | Phase::PromptWritten
            | Phase::FirstEventSeen
            | Phase::FirstVisibleEventSeen => {
                self.reach(phase);
                Outcome::Applied
            }
            Phase::Streaming
            | Phase::ToolStarted
            | Phase::ToolFinished
            | Phase::WaitingInput
            | Phase::InputReceived
            | Phase::Heartbeat
            | Phase::RetryScheduled
            | Phase::Completed
            | Phase::Failed
            | Phase::Canceled
            | Phase::TimedOut
            | Phase::Lost
            | Phase::Blocked
            | Phase::Checkpointed
            | Phase::Released => Outcome::Ignored,
        }
    }

    fn output_in_cleanup(&mut self, sign: Sign, end: u64) -> Outcome {
        self.attempt.output_end = self.attempt.output_end.max(end);
        self.attempt.retry_safe &= sign != Sign::VisibleEvent;
        Outcome::Ignored
    }
}
