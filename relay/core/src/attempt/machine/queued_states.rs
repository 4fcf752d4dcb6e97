//! Events in the states queued, offered and parked, in which no process should exist.

use std::sync::Arc;

use super::{AttemptMachine, EventOutcome, MachineEvent};
use crate::attempt::timers::{TimerFact, TimerKey};
use crate::io::rejection::Rejection;
use crate::record::{
    AttemptState, EndState, EndedBy, FailureCode, LeaseHolder, LeaseRecord, ParkCause, PendingEnd,
    TerminationReceipt, TimelineEventKind,
};

impl AttemptMachine<'_> {
    pub(super) fn on_queued(&mut self, event: MachineEvent) -> EventOutcome {
        match event {
            MachineEvent::Offer { holder, lease } => self.offer(holder, lease),
            MachineEvent::Claim { holder, lease } => self.claim(holder, lease),
            MachineEvent::CancelAsked { operator } => self.cancel_unstarted(operator),
            MachineEvent::Forced(forced) => self.force_end(forced),
            MachineEvent::Withdraw => self.finish(
                EndState::Released,
                None,
                EndedBy::Relay,
                TerminationReceipt::NotNeeded,
            ),
            MachineEvent::TimerExpired(TimerKey::Queue) => self.park_starved(),
            MachineEvent::Park { cause, .. } => self.park(cause, TerminationReceipt::NotNeeded),
            MachineEvent::TimerExpired(_)
            | MachineEvent::DeliveryFailed
            | MachineEvent::HandOff { .. }
            | MachineEvent::KeptBySettlement
            | MachineEvent::MissingOnDaemon
            | MachineEvent::Rebooted => EventOutcome::Ignored,
            MachineEvent::Answered(..) => EventOutcome::Refused(Rejection::InputClosed),
            MachineEvent::Accepted
            | MachineEvent::Rejected { .. }
            | MachineEvent::Phase(_)
            | MachineEvent::DaemonDeadline(_)
            | MachineEvent::ToolStarted(_)
            | MachineEvent::ToolFinished(_)
            | MachineEvent::InputAsked(..)
            | MachineEvent::InputWithdrawn(_)
            | MachineEvent::InputReceived(_)
            | MachineEvent::Output { .. }
            | MachineEvent::Completed(_)
            | MachineEvent::ContractUnmet(_)
            | MachineEvent::Errored(_)
            | MachineEvent::Canceled(_)
            | MachineEvent::Released { .. }
            | MachineEvent::Receipt(_) => EventOutcome::Refused(Rejection::NotLeased),
        }
    }

    pub(super) fn on_offered(&mut self, event: MachineEvent) -> EventOutcome {
        match event {
            MachineEvent::KeptBySettlement if mutant!(PickedUpOfferedAgain) => {
                self.lose_attempt(FailureCode::NotAccepted)
            }
            MachineEvent::Accepted | MachineEvent::KeptBySettlement => self.confirm_lease(),
            MachineEvent::Rejected { code, message } => self.reject_offer(&code, message),
            MachineEvent::Released {
                reason,
                termination,
            } => self.release_attempt(reason, &termination),
            MachineEvent::Receipt(termination) => self.lose_terminated(&termination),
            MachineEvent::CancelAsked { operator } if !self.is_lease_confirmed() => {
                self.cancel_unstarted(operator)
            }
            MachineEvent::CancelAsked { operator } => {
                self.begin_cleanup(PendingEnd::Cancel { operator })
            }
            MachineEvent::Forced(forced) => self.force_end(forced),
            MachineEvent::TimerExpired(TimerKey::Accept) => {
                self.lose_attempt(FailureCode::NotAccepted)
            }
            MachineEvent::TimerExpired(TimerKey::Lease) => self.expire_lease(),
            MachineEvent::DeliveryFailed => self.lose_attempt(FailureCode::DeliveryFailed),
            MachineEvent::MissingOnDaemon => self.lose_attempt(FailureCode::DaemonLostAttempt),
            MachineEvent::Rebooted => self.lose_rebooted(),
            MachineEvent::Park { cause, termination } => {
                self.park_leased(cause, termination.as_ref())
            }
            MachineEvent::TimerExpired(_)
            | MachineEvent::Offer { .. }
            | MachineEvent::Claim { .. }
            | MachineEvent::Withdraw
            | MachineEvent::HandOff { .. } => EventOutcome::Ignored,
            MachineEvent::Answered(..) => EventOutcome::Refused(Rejection::InputClosed),
            MachineEvent::Phase(_)
            | MachineEvent::DaemonDeadline(_)
            | MachineEvent::ToolStarted(_)
            | MachineEvent::ToolFinished(_)
            | MachineEvent::InputAsked(..)
            | MachineEvent::InputWithdrawn(_)
            | MachineEvent::InputReceived(_)
            | MachineEvent::Output { .. }
            | MachineEvent::Completed(_)
            | MachineEvent::ContractUnmet(_)
            | MachineEvent::Errored(_)
            | MachineEvent::Canceled(_) => EventOutcome::Refused(Rejection::WrongOrder),
        }
    }

    pub(super) fn on_parked(&mut self, event: MachineEvent) -> EventOutcome {
        match event {
            MachineEvent::CancelAsked { operator } => {
                let (code, by) = super::attempt_end::canceled_by(operator);
                let receipt = self.parked_receipt();
                self.finish(EndState::Canceled, Some(code), by, receipt)
            }
            MachineEvent::Forced(forced) => self.force_end(forced),
            MachineEvent::HandOff { successor, to } => {
                self.attempt.successor = Some(successor);
                self.attempt.handed_off_to = Some(to);
                let receipt = self.parked_receipt();
                self.finish(EndState::HandedOff, None, EndedBy::Relay, receipt)
            }
            MachineEvent::Completed(_)
            | MachineEvent::ContractUnmet(_)
            | MachineEvent::Errored(_)
            | MachineEvent::Canceled(_)
            | MachineEvent::Released { .. }
            | MachineEvent::Rejected { .. }
            | MachineEvent::Receipt(_) => EventOutcome::Late,
            // A late result makes an attempt unnecessary that was parked before it ever ran.
            MachineEvent::Withdraw if self.parked_receipt() == TerminationReceipt::NotNeeded => {
                self.finish(
                    EndState::Released,
                    None,
                    EndedBy::Relay,
                    TerminationReceipt::NotNeeded,
                )
            }
            MachineEvent::Answered(..) => EventOutcome::Refused(Rejection::InputClosed),
            MachineEvent::Park { .. } => EventOutcome::Refused(Rejection::AlreadyParked),
            MachineEvent::Accepted
            | MachineEvent::Phase(_)
            | MachineEvent::DaemonDeadline(_)
            | MachineEvent::ToolStarted(_)
            | MachineEvent::ToolFinished(_)
            | MachineEvent::InputAsked(..)
            | MachineEvent::InputWithdrawn(_)
            | MachineEvent::InputReceived(_)
            | MachineEvent::Output { .. } => EventOutcome::Refused(Rejection::NotLeased),
            MachineEvent::Offer { .. }
            | MachineEvent::Claim { .. }
            | MachineEvent::DeliveryFailed
            | MachineEvent::Withdraw
            | MachineEvent::KeptBySettlement
            | MachineEvent::TimerExpired(_)
            | MachineEvent::MissingOnDaemon
            | MachineEvent::Rebooted => EventOutcome::Ignored,
        }
    }

    /// The receipt of the parked attempt. It may be unconfirmed: a park can precede the proof
    /// of death.
    fn parked_receipt(&self) -> TerminationReceipt {
        if let AttemptState::Parked(parked) = &self.attempt.state {
            parked.receipt
        } else {
            TerminationReceipt::NotNeeded
        }
    }

    fn offer(&mut self, holder: LeaseHolder, lease: LeaseRecord) -> EventOutcome {
        self.timeline_events.push(TimelineEventKind::Offered {
            daemon: Arc::clone(holder.name()),
        });
        self.attempt.stage_times.offered = Some(self.now.wall);
        self.attempt.holder = Some(holder);
        self.attempt.lease = Some(lease);
        self.attempt.state = AttemptState::Offered;
        self.update_timers(&TimerFact::Offered);
        EventOutcome::Applied
    }

    fn claim(&mut self, holder: LeaseHolder, lease: LeaseRecord) -> EventOutcome {
        self.attempt.stage_times.offered = Some(self.now.wall);
        self.attempt.holder = Some(holder);
        self.attempt.lease = Some(lease);
        self.confirm_lease()
    }

    /// Confirms the lease, the second of three steps (offer, accept, confirm to the daemon). A
    /// process may start only after the daemon receives LeaseConfirmed.
    fn confirm_lease(&mut self) -> EventOutcome {
        if let Some(lease) = &mut self.attempt.lease {
            lease.confirmed = true;
        }
        self.attempt.stage_times.accepted = Some(self.now.wall);
        self.attempt.state = AttemptState::Accepted;
        self.attempt.phase = Some(crate::record::LifecyclePhase::Accepted);
        self.update_timers(&TimerFact::LeaseConfirmed);
        self.timeline_events.push(TimelineEventKind::Confirmed);
        EventOutcome::Applied
    }

    fn park_starved(&mut self) -> EventOutcome {
        self.timeline_events
            .push(TimelineEventKind::DeadlineExpired {
                timer: crate::record::TimerKind::Queue,
            });
        self.park(ParkCause::Starved, TerminationReceipt::NotNeeded)
    }

    fn cancel_unstarted(&mut self, operator: bool) -> EventOutcome {
        let (code, by) = super::attempt_end::canceled_by(operator);
        self.finish(
            EndState::Canceled,
            Some(code),
            by,
            TerminationReceipt::NotNeeded,
        )
    }
}
