//! Events while an attempt is being ended. The end decided first stands, with two exceptions: a
//! result takes precedence over a deadline, and a cancel over everything.

use super::attempt_end::{canceled_by, timer_failure_code};
use super::{AttemptMachine, EventOutcome, MachineEvent};
use crate::attempt::timers::{TimerFact, TimerKey};
use crate::io::rejection::Rejection;
use crate::io::session_input::{
    CanceledBody, CompletedBody, ErroredBody, OutputSignal, ProcessTermination,
};
use crate::record::{
    AttemptState, EndState, EndedBy, FailureCode, LifecyclePhase, ParkCause, PendingEnd,
    TerminationReceipt, TimelineEventKind, TimerKind,
};

impl AttemptMachine<'_> {
    pub(super) fn on_cleaning_up(&mut self, event: MachineEvent) -> EventOutcome {
        match event {
            MachineEvent::Completed(body) => self.complete_in_cleanup(body),
            MachineEvent::ContractUnmet(body) => self.unmet_in_cleanup(body),
            MachineEvent::Errored(body) => self.error_in_cleanup(body),
            MachineEvent::Canceled(body) => self.canceled_in_cleanup(body),
            MachineEvent::Released {
                reason,
                termination,
            } if !self.is_end_decided() => self.release_attempt(reason, &termination),
            MachineEvent::Released { termination, .. } | MachineEvent::Receipt(termination) => {
                self.end_on_daemon_report(&termination)
            }
            MachineEvent::Rejected { .. } => self.end_on_daemon_report(&ProcessTermination {
                group_empty: true,
                ..ProcessTermination::default()
            }),
            MachineEvent::CancelAsked { operator } => self.cancel_in_cleanup(operator),
            MachineEvent::Forced(forced) => self.force_end(forced),
            MachineEvent::TimerExpired(TimerKey::CleanupTerm) => self.cleanup_expired(),
            MachineEvent::TimerExpired(TimerKey::Lease) => self.lease_expired_in_cleanup(),
            MachineEvent::TimerExpired(TimerKey::Total) => self.total_expired_in_cleanup(),
            MachineEvent::MissingOnDaemon => self.end_as_pending(
                TerminationReceipt::Unconfirmed,
                FailureCode::DaemonLostAttempt,
            ),
            MachineEvent::Rebooted => self.end_as_pending(
                TerminationReceipt::Confirmed,
                FailureCode::DaemonLostAttempt,
            ),
            MachineEvent::Phase(phase) => self.phase_in_cleanup(phase),
            MachineEvent::DaemonDeadline(timer) => self.daemon_deadline_in_cleanup(timer),
            MachineEvent::ToolStarted(_) => {
                self.attempt.retry_safe = false;
                EventOutcome::Applied
            }
            MachineEvent::Output { sign, end, .. } => self.output_in_cleanup(sign, end),
            MachineEvent::ToolFinished(_)
            | MachineEvent::InputWithdrawn(_)
            | MachineEvent::InputReceived(_)
            | MachineEvent::Accepted => EventOutcome::Applied,
            MachineEvent::InputAsked(..) => EventOutcome::Refused(Rejection::WrongOrder),
            MachineEvent::Park { .. } => EventOutcome::Refused(Rejection::BeingEnded),
            MachineEvent::Answered(id, answer) => self.answer_ended_input(id, &answer),
            MachineEvent::TimerExpired(_)
            | MachineEvent::Offer { .. }
            | MachineEvent::Claim { .. }
            | MachineEvent::DeliveryFailed
            | MachineEvent::Withdraw
            | MachineEvent::HandOff { .. }
            | MachineEvent::KeptBySettlement => EventOutcome::Ignored,
        }
    }

    fn pending_end(&self) -> Option<&PendingEnd> {
        if let AttemptState::CleaningUp { pending } = &self.attempt.state {
            pending.as_ref()
        } else {
            None
        }
    }

    /// Whether the relay has decided the end, so that the daemon's report cannot change it. If
    /// the daemon began the cleanup, its report decides.
    fn is_end_decided(&self) -> bool {
        match self.pending_end() {
            None | Some(PendingEnd::DaemonDeadline { .. }) => false,
            Some(PendingEnd::Deadline { .. } | PendingEnd::Cancel { .. } | PendingEnd::Park) => {
                true
            }
        }
    }

    fn complete_in_cleanup(&mut self, body: CompletedBody) -> EventOutcome {
        match self.pending_end() {
            None
            | Some(
                PendingEnd::Deadline { .. } | PendingEnd::Park | PendingEnd::DaemonDeadline { .. },
            ) => self.complete_attempt(body),
            Some(PendingEnd::Cancel { .. }) if mutant!(CancelLosesToResult) => {
                self.complete_attempt(body)
            }
            Some(PendingEnd::Cancel { .. }) => {
                self.store_usage(&body.usage, body.agent_session_id, body.final_offset);
                self.end_on_daemon_report(&body.termination)
            }
        }
    }

    /// A result with missing files. It takes precedence over no pending end, but it reports
    /// that the attempt is over.
    fn unmet_in_cleanup(&mut self, body: CompletedBody) -> EventOutcome {
        if !self.is_end_decided() {
            return self.apply_unmet_contract(body);
        }
        self.store_artifacts(body.artifacts);
        self.store_usage(&body.usage, body.agent_session_id, body.final_offset);
        self.end_on_daemon_report(&body.termination)
    }

    fn error_in_cleanup(&mut self, body: ErroredBody) -> EventOutcome {
        if !self.is_end_decided() {
            return self.fail_attempt(body);
        }
        self.store_usage(&body.usage, body.agent_session_id, body.final_offset);
        self.end_on_daemon_report(&body.termination)
    }

    fn canceled_in_cleanup(&mut self, body: CanceledBody) -> EventOutcome {
        if !self.is_end_decided() {
            return self.cancel_attempt(body);
        }
        self.store_usage(&body.usage, None, body.final_offset);
        self.end_on_daemon_report(&body.termination)
    }

    /// Ends the attempt on any terminal report of the daemon.
    fn end_on_daemon_report(&mut self, termination: &ProcessTermination) -> EventOutcome {
        if self.pending_end().is_none() {
            return self.lose_terminated(termination);
        }
        self.note_prompt_written(termination);
        let receipt = self.receipt_from(termination);
        let outcome = self.end_as_pending(receipt, FailureCode::DaemonLostAttempt);
        self.store_termination(termination);
        outcome
    }

    /// Ends as the pending end requires; without one, as a loss with this code.
    fn end_as_pending(
        &mut self,
        receipt: TerminationReceipt,
        otherwise: FailureCode,
    ) -> EventOutcome {
        match self.pending_end().cloned() {
            Some(PendingEnd::Cancel { operator }) => {
                let (code, by) = canceled_by(operator);
                self.finish(EndState::Canceled, Some(code), by, receipt)
            }
            Some(PendingEnd::Deadline { timer, .. } | PendingEnd::DaemonDeadline { timer }) => self
                .finish(
                    EndState::TimedOut,
                    Some(timer_failure_code(timer)),
                    EndedBy::Relay,
                    receipt,
                ),
            Some(PendingEnd::Park) => self.park(ParkCause::InputTimeout, receipt),
            None => self.lose_with_receipt(otherwise, receipt),
        }
    }

    /// A cancel replaces a pending deadline, so that the task ends as canceled, as requested.
    fn cancel_in_cleanup(&mut self, operator: bool) -> EventOutcome {
        if let Some(PendingEnd::Cancel { .. }) = self.pending_end() {
            return EventOutcome::Ignored;
        }
        self.attempt.state = AttemptState::CleaningUp {
            pending: Some(PendingEnd::Cancel { operator }),
        };
        EventOutcome::Applied
    }

    /// The time for the kill expired. While the daemon is disconnected, a cancel or an ordinary
    /// exit waits on: its terminal frame may be in the daemon's outbox, and the lease bounds
    /// the wait. A reported `cleanup_finished` proves nothing; only a receipt proves that no
    /// process is left.
    fn cleanup_expired(&mut self) -> EventOutcome {
        self.timeline_events
            .push(TimelineEventKind::DeadlineExpired {
                timer: TimerKind::CleanupTerm,
            });
        let waits =
            !self.is_end_decided() || matches!(self.pending_end(), Some(PendingEnd::Cancel { .. }));
        if waits && !self.connected {
            return EventOutcome::Applied;
        }
        let own = mutant!(OwnDeadlineForgotten) && !self.is_end_decided();
        if self.pending_end().is_none() || own {
            return self.finish(
                EndState::Failed,
                Some(FailureCode::NoResult),
                EndedBy::Relay,
                TerminationReceipt::Unconfirmed,
            );
        }
        self.end_as_pending(TerminationReceipt::Unconfirmed, FailureCode::NoResult)
    }

    fn lease_expired_in_cleanup(&mut self) -> EventOutcome {
        self.timeline_events
            .push(TimelineEventKind::DeadlineExpired {
                timer: TimerKind::Lease,
            });
        self.end_as_pending(TerminationReceipt::Unconfirmed, FailureCode::LeaseExpired)
    }

    fn total_expired_in_cleanup(&mut self) -> EventOutcome {
        if self.pending_end().is_some() {
            return EventOutcome::Ignored;
        }
        self.timeline_events
            .push(TimelineEventKind::DeadlineExpired {
                timer: TimerKind::Total,
            });
        let phase = self.attempt.phase;
        let pending = PendingEnd::Deadline {
            timer: TimerKind::Total,
            tool: None,
            phase,
        };
        self.attempt.state = AttemptState::CleaningUp {
            pending: Some(pending),
        };
        EventOutcome::Applied
    }

    /// The daemon's deadline report crossed the relay's own decision, or cleanup_started is
    /// repeated.
    fn daemon_deadline_in_cleanup(&mut self, timer: TimerKind) -> EventOutcome {
        if self.pending_end().is_none() {
            self.attempt.state = AttemptState::CleaningUp {
                pending: Some(PendingEnd::DaemonDeadline { timer }),
            };
        }
        self.phase_in_cleanup(LifecyclePhase::CleanupStarted)
    }

    fn phase_in_cleanup(&mut self, phase: LifecyclePhase) -> EventOutcome {
        match phase {
            LifecyclePhase::CleanupStarted => {
                self.attempt.phase = Some(phase);
                self.timeline_events.push(TimelineEventKind::Phase(phase));
                EventOutcome::Applied
            }
            LifecyclePhase::CleanupFinished => {
                self.attempt.phase = Some(phase);
                self.attempt.stage_times.cleanup_finished = Some(self.now.wall);
                // The kill is done. The timer starts again to give the terminal frame the same
                // time.
                self.update_timers(&TimerFact::Phase(phase));
                self.update_timers(&TimerFact::CancelSent);
                self.timeline_events.push(TimelineEventKind::Phase(phase));
                EventOutcome::Applied
            }
            LifecyclePhase::Accepted
            | LifecyclePhase::Queued
            | LifecyclePhase::Started
            | LifecyclePhase::AgentStarted
            | LifecyclePhase::PromptWritten
            | LifecyclePhase::FirstEventSeen
            | LifecyclePhase::FirstVisibleEventSeen => {
                self.mark_phase_reached(phase);
                EventOutcome::Applied
            }
            LifecyclePhase::Streaming
            | LifecyclePhase::ToolStarted
            | LifecyclePhase::ToolFinished
            | LifecyclePhase::WaitingInput
            | LifecyclePhase::InputReceived
            | LifecyclePhase::Heartbeat
            | LifecyclePhase::RetryScheduled
            | LifecyclePhase::Completed
            | LifecyclePhase::Failed
            | LifecyclePhase::Canceled
            | LifecyclePhase::TimedOut
            | LifecyclePhase::Lost
            | LifecyclePhase::Blocked
            | LifecyclePhase::Checkpointed
            | LifecyclePhase::Released => EventOutcome::Ignored,
        }
    }

    fn output_in_cleanup(&mut self, sign: OutputSignal, end: u64) -> EventOutcome {
        self.attempt.output_end = self.attempt.output_end.max(end);
        self.attempt.retry_safe &= sign != OutputSignal::VisibleEvent;
        EventOutcome::Ignored
    }
}
