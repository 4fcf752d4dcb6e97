//! The states in which no process may exist: queued, offered, parked.

use std::sync::Arc;

use super::{Event, Machine, Outcome};
use crate::record::{
    EndState, EndedBy, EventKind, FailureCode, Holder, Lease, ParkCause, Pending, Receipt, State,
};
use crate::reject::Rejection;
use crate::timers::{Fact, TimerKey};

impl Machine<'_> {
    pub(super) fn in_queued(&mut self, event: Event) -> Outcome {
        match event {
            Event::Offer { holder, lease } => self.offer(holder, lease),
            Event::Claim { holder, lease } => self.claim(holder, lease),
            Event::CancelAsked { operator } => self.cancel_unstarted(operator),
            Event::Forced(forced) => self.forced(forced),
            Event::Withdraw => {
                self.finish(EndState::Released, None, EndedBy::Relay, Receipt::NotNeeded)
            }
            Event::Expired(TimerKey::Queue) => self.starve(),
            Event::Park { cause, .. } => self.park(cause, Receipt::NotNeeded),
            Event::Expired(_)
            | Event::DeliveryFailed
            | Event::HandOff { .. }
            | Event::Kept
            | Event::Missing
            | Event::Rebooted => Outcome::Ignored,
            Event::Answered(..) => Outcome::Refused(Rejection::InputClosed),
            Event::Accepted
            | Event::Rejected { .. }
            | Event::Phase(_)
            | Event::OwnDeadline(_)
            | Event::ToolStarted(_)
            | Event::ToolFinished(_)
            | Event::InputAsked(..)
            | Event::InputWithdrawn(_)
            | Event::InputReceived(_)
            | Event::Output { .. }
            | Event::Completed(_)
            | Event::Unmet(_)
            | Event::Errored(_)
            | Event::Canceled(_)
            | Event::Released { .. }
            | Event::Receipt(_) => Outcome::Refused(Rejection::NotLeased),
        }
    }

    pub(super) fn in_offered(&mut self, event: Event) -> Outcome {
        match event {
            Event::Kept if mutant!(PickedUpOfferedAgain) => self.lose(FailureCode::NotAccepted),
            Event::Accepted | Event::Kept => self.confirm(),
            Event::Rejected { code, message } => self.reject(&code, message),
            Event::Released {
                reason,
                termination,
            } => self.release(reason, &termination),
            Event::Receipt(termination) => self.gone(&termination),
            Event::CancelAsked { operator } if !self.confirmed() => self.cancel_unstarted(operator),
            Event::CancelAsked { operator } => self.begin_cleanup(Pending::Cancel { operator }),
            Event::Forced(forced) => self.forced(forced),
            Event::Expired(TimerKey::Accept) => self.lose(FailureCode::NotAccepted),
            Event::Expired(TimerKey::Lease) => self.expire_lease(),
            Event::DeliveryFailed => self.lose(FailureCode::DeliveryFailed),
            Event::Missing => self.lose(FailureCode::DaemonLostAttempt),
            Event::Rebooted => self.rebooted(),
            Event::Park { cause, termination } => self.park_held(cause, termination.as_ref()),
            Event::Expired(_)
            | Event::Offer { .. }
            | Event::Claim { .. }
            | Event::Withdraw
            | Event::HandOff { .. } => Outcome::Ignored,
            Event::Answered(..) => Outcome::Refused(Rejection::InputClosed),
            Event::Phase(_)
            | Event::OwnDeadline(_)
            | Event::ToolStarted(_)
            | Event::ToolFinished(_)
            | Event::InputAsked(..)
            | Event::InputWithdrawn(_)
            | Event::InputReceived(_)
            | Event::Output { .. }
            | Event::Completed(_)
            | Event::Unmet(_)
            | Event::Errored(_)
            | Event::Canceled(_) => Outcome::Refused(Rejection::WrongOrder),
        }
    }

    pub(super) fn in_parked(&mut self, event: Event) -> Outcome {
        match event {
            Event::CancelAsked { operator } => {
                let (code, by) = super::ending::canceled_by(operator);
                let receipt = self.parked_receipt();
                self.finish(EndState::Canceled, Some(code), by, receipt)
            }
            Event::Forced(forced) => self.forced(forced),
            Event::HandOff { successor, to } => {
                self.attempt.successor = Some(successor);
                self.attempt.handed_to = Some(to);
                let receipt = self.parked_receipt();
                self.finish(EndState::HandedOff, None, EndedBy::Relay, receipt)
            }
            Event::Completed(_)
            | Event::Unmet(_)
            | Event::Errored(_)
            | Event::Canceled(_)
            | Event::Released { .. }
            | Event::Rejected { .. }
            | Event::Receipt(_) => Outcome::Late,
            // What was parked before it ever ran is needed no more when a result came late.
            Event::Withdraw if self.parked_receipt() == Receipt::NotNeeded => {
                self.finish(EndState::Released, None, EndedBy::Relay, Receipt::NotNeeded)
            }
            Event::Answered(..) => Outcome::Refused(Rejection::InputClosed),
            Event::Park { .. } => Outcome::Refused(Rejection::AlreadyParked),
            Event::Accepted
            | Event::Phase(_)
            | Event::OwnDeadline(_)
            | Event::ToolStarted(_)
            | Event::ToolFinished(_)
            | Event::InputAsked(..)
            | Event::InputWithdrawn(_)
            | Event::InputReceived(_)
            | Event::Output { .. } => Outcome::Refused(Rejection::NotLeased),
            Event::Offer { .. }
            | Event::Claim { .. }
            | Event::DeliveryFailed
            | Event::Withdraw
            | Event::Kept
            | Event::Expired(_)
            | Event::Missing
            | Event::Rebooted => Outcome::Ignored,
        }
    }

    /// What is known of the death of its processes; a park may come before it.
    fn parked_receipt(&self) -> Receipt {
        if let State::Parked(parked) = &self.attempt.state {
            parked.receipt
        } else {
            Receipt::NotNeeded
        }
    }

    fn offer(&mut self, holder: Holder, lease: Lease) -> Outcome {
        self.notes.push(EventKind::Offered {
            daemon: Arc::clone(holder.name()),
        });
        self.attempt.times.offered = Some(self.now.wall);
        self.attempt.holder = Some(holder);
        self.attempt.lease = Some(lease);
        self.attempt.state = State::Offered;
        self.tell(&Fact::Offered);
        Outcome::Applied
    }

    fn claim(&mut self, holder: Holder, lease: Lease) -> Outcome {
        self.attempt.times.offered = Some(self.now.wall);
        self.attempt.holder = Some(holder);
        self.attempt.lease = Some(lease);
        self.confirm()
    }

    /// The second of the three steps: LeaseConfirmed follows, and only then may a process start.
    fn confirm(&mut self) -> Outcome {
        if let Some(lease) = &mut self.attempt.lease {
            lease.confirmed = true;
        }
        self.attempt.times.accepted = Some(self.now.wall);
        self.attempt.state = State::Accepted;
        self.attempt.phase = Some(crate::record::Phase::Accepted);
        self.tell(&Fact::LeaseConfirmed);
        self.notes.push(EventKind::Confirmed);
        Outcome::Applied
    }

    fn starve(&mut self) -> Outcome {
        self.notes.push(EventKind::DeadlineExpired {
            timer: crate::record::TimerKind::Queue,
        });
        self.park(ParkCause::Starved, Receipt::NotNeeded)
    }

    fn cancel_unstarted(&mut self, operator: bool) -> Outcome {
        let (code, by) = super::ending::canceled_by(operator);
        self.finish(EndState::Canceled, Some(code), by, Receipt::NotNeeded)
    }
}
