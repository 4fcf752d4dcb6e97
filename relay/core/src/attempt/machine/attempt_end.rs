//! Ends or parks an attempt. The only place that creates an `AttemptEnd`.

use std::sync::Arc;

use super::{AttemptMachine, EventOutcome};
use crate::attempt::retry_policy;
use crate::attempt::timers::TimerFact;
use crate::goal::completion_contract;
use crate::goal::completion_contract::FoundArtifact;
use crate::io::rejection::Rejection;
use crate::io::session_input::{
    CanceledBody, CompletedBody, ErroredBody, NO_RESULT_MESSAGE, ProcessTermination,
};
use crate::record::{
    AttemptEnd, AttemptState, EndState, EndedBy, FailureCode, InputState, ParkCause, ParkedState,
    RejectCode, TerminationReceipt, TimelineEventKind, TimerKind, TokenUsage,
};
use crate::task::size_limits;
use crate::task::spec::MissingPolicy;

impl AttemptMachine<'_> {
    /// Writes the terminal record and stops every timer.
    pub(super) fn finish(
        &mut self,
        state: EndState,
        code: Option<FailureCode>,
        by: EndedBy,
        receipt: TerminationReceipt,
    ) -> EventOutcome {
        let retryable = code.as_ref().is_some_and(|code| {
            matches!(
                state,
                EndState::Failed | EndState::TimedOut | EndState::Lost
            ) && retry_policy::is_retryable(code, self.attempt.retry_safe, None)
        });
        let end = AttemptEnd {
            state,
            message: code
                .as_ref()
                .filter(|_| !matches!(by, EndedBy::Daemon | EndedBy::Agent))
                .and_then(failure_message)
                .map(Arc::from),
            failure_code: code,
            retryable,
            user_message: None,
            ended_by: by,
            cause_phase: self.attempt.phase,
            exit: None,
            receipt,
            killed_after_result: false,
            is_adopted_late: false,
            cleanup: None,
            at: self.now.wall,
        };
        self.set_end(end);
        EventOutcome::Applied
    }

    fn set_end(&mut self, end: AttemptEnd) {
        self.timeline_events.push(TimelineEventKind::Ended {
            code: end.failure_code.clone(),
            retryable: end.retryable,
        });
        self.attempt.stage_times.ended = Some(self.now.wall);
        self.attempt.state = AttemptState::Ended(end);
        self.close_open_items();
    }

    pub(super) fn park(&mut self, cause: ParkCause, receipt: TerminationReceipt) -> EventOutcome {
        self.timeline_events
            .push(TimelineEventKind::Attention(cause.attention_cause()));
        self.attempt.state = AttemptState::Parked(ParkedState {
            cause,
            since: self.now.wall,
            receipt,
        });
        self.close_open_items();
        EventOutcome::Applied
    }

    /// Parks a leased attempt and ends its lease. Without a receipt from the worker, successors
    /// wait for the fence.
    pub(super) fn park_leased(
        &mut self,
        cause: ParkCause,
        termination: Option<&ProcessTermination>,
    ) -> EventOutcome {
        let receipt = match termination {
            Some(termination) => {
                self.note_prompt_written(termination);
                self.receipt_from(termination)
            }
            None if mutant!(ParkTakenForReceipt) => TerminationReceipt::NotNeeded,
            None => self.assumed_receipt(),
        };
        self.park(cause, receipt)
    }

    /// Closes all open tools, inputs and timers.
    fn close_open_items(&mut self) {
        self.attempt.open_tools.clear();
        for input in &mut self.attempt.inputs {
            if input.state.is_pending() {
                let answer = input
                    .state
                    .answer()
                    .cloned()
                    .map(size_limits::shorten_received);
                input.state = InputState::Superseded(answer);
                input.payload = Arc::from([]);
            }
        }
        size_limits::trim_ended_attempt(self.attempt);
        self.update_timers(&TimerFact::Ended);
    }

    pub(super) fn end_mut(&mut self) -> Option<&mut AttemptEnd> {
        if let AttemptState::Ended(end) = &mut self.attempt.state {
            Some(end)
        } else {
            None
        }
    }

    pub(super) fn complete_attempt(&mut self, body: CompletedBody) -> EventOutcome {
        self.note_prompt_written(&body.termination);
        self.store_usage(&body.usage, body.agent_session_id, body.final_offset);
        self.attempt.result = body.result;
        self.store_artifacts(body.artifacts);
        let receipt = self.receipt_from(&body.termination);
        self.finish(EndState::Completed, None, self.ended_by_holder(), receipt);
        self.store_termination(&body.termination);
        if let Some(end) = self.end_mut() {
            end.killed_after_result = body.killed_after_result;
        }
        EventOutcome::Applied
    }

    /// Handles a result with missing files as the contract's policy requires.
    pub(super) fn apply_unmet_contract(&mut self, mut body: CompletedBody) -> EventOutcome {
        self.store_artifacts(std::mem::take(&mut body.artifacts));
        match completion_contract::missing_policy(self.spec) {
            MissingPolicy::Park if !mutant!(ParkRefuses) => self.park_unmet_contract(body),
            MissingPolicy::Reject | MissingPolicy::Park => {
                EventOutcome::Refused(Rejection::ContractUnmet)
            }
            MissingPolicy::Fail => {
                let summary = completion_contract::unmet_summary(
                    &completion_contract::unmet_task_requirements(self.spec, self.attempt),
                );
                self.fail_attempt(ErroredBody::receipts_missing(body, summary))
            }
        }
    }

    /// Parks with the result, so that a person who finds nothing missing can accept it.
    fn park_unmet_contract(&mut self, body: CompletedBody) -> EventOutcome {
        self.note_prompt_written(&body.termination);
        self.store_usage(&body.usage, body.agent_session_id, body.final_offset);
        self.attempt.result = body.result;
        let receipt = self.receipt_from(&body.termination);
        self.park(ParkCause::ReceiptsMissing, receipt)
    }

    pub(super) fn store_artifacts(&mut self, found: Vec<FoundArtifact>) {
        self.attempt.artifacts = completion_contract::evidence_of(self.spec, found);
    }

    pub(super) fn fail_attempt(&mut self, body: ErroredBody) -> EventOutcome {
        self.note_prompt_written(&body.termination);
        self.store_usage(&body.usage, body.agent_session_id, body.final_offset);
        let receipt = self.receipt_from(&body.termination);
        let state = end_state_of(&body.code);
        if state == EndState::Lost {
            self.update_retry_safety();
        }
        self.finish(state, Some(body.code), self.ended_by_holder(), receipt);
        self.store_termination(&body.termination);
        if let Some(end) = self.end_mut() {
            end.retryable &= body.retryable_hint != Some(false);
            end.message = body.message;
            end.user_message = body.user_message;
        }
        self.update_end_event();
        EventOutcome::Applied
    }

    /// The `ended_by` of an end that the holder reported.
    fn ended_by_holder(&self) -> EndedBy {
        match self.attempt.agent_holder() {
            Some(_) => EndedBy::Agent,
            None => EndedBy::Daemon,
        }
    }

    /// Copies `retryable` into the timeline event, which was pushed before the daemon's hint
    /// was applied.
    fn update_end_event(&mut self) {
        let Some(retry) = self.end_mut().map(|end| end.retryable) else {
            return;
        };
        if let Some(TimelineEventKind::Ended { retryable, .. }) = self.timeline_events.last_mut() {
            *retryable = retry;
        }
    }

    pub(super) fn cancel_attempt(&mut self, body: CanceledBody) -> EventOutcome {
        self.note_prompt_written(&body.termination);
        self.store_usage(&body.usage, None, body.final_offset);
        let receipt = self.receipt_from(&body.termination);
        self.finish(EndState::Canceled, None, self.ended_by_holder(), receipt);
        self.store_termination(&body.termination);
        if let Some(end) = self.end_mut() {
            end.message = body.reason;
        }
        EventOutcome::Applied
    }

    pub(super) fn release_attempt(
        &mut self,
        reason: Option<Arc<str>>,
        termination: &ProcessTermination,
    ) -> EventOutcome {
        self.note_prompt_written(termination);
        let receipt = self.receipt_from(termination);
        self.finish(EndState::Released, None, self.ended_by_holder(), receipt);
        self.store_termination(termination);
        if let Some(end) = self.end_mut() {
            end.message = reason;
        }
        EventOutcome::Applied
    }

    /// Ends a rejected offer. The daemon never starts it, so no process can exist. The task
    /// fails if no daemon could run it; otherwise another daemon may take it.
    pub(super) fn reject_offer(
        &mut self,
        code: &RejectCode,
        message: Option<Arc<str>>,
    ) -> EventOutcome {
        self.timeline_events.push(TimelineEventKind::Rejected {
            code: code.as_str().into(),
        });
        let receipt = if self.is_lease_confirmed() {
            TerminationReceipt::Confirmed
        } else {
            TerminationReceipt::NotNeeded
        };
        let failure = FailureCode::parse(code.as_str());
        let state = if code.concerns_task() {
            EndState::Failed
        } else {
            EndState::Released
        };
        self.finish(state, Some(failure), EndedBy::Daemon, receipt);
        if let Some(end) = self.end_mut() {
            end.message = Some(message.unwrap_or_else(|| code.as_str().into()));
        }
        EventOutcome::Applied
    }

    /// Ends an attempt whose receipt arrived without a result.
    pub(super) fn lose_terminated(&mut self, termination: &ProcessTermination) -> EventOutcome {
        self.note_prompt_written(termination);
        let receipt = self.receipt_from(termination);
        let ttl_ms = self.attempt.lease.as_ref().map(|lease| lease.ttl_ms);
        let description = termination.loss.map(|loss| loss.description(ttl_ms));
        self.lose_with_receipt(FailureCode::DaemonLostAttempt, receipt);
        self.store_termination(termination);
        if let Some(end) = self.end_mut() {
            end.message = Some(description.map_or_else(|| NO_RESULT_MESSAGE.into(), Into::into));
        }
        EventOutcome::Applied
    }

    pub(super) fn lose_rebooted(&mut self) -> EventOutcome {
        let receipt = if self.is_lease_confirmed() {
            TerminationReceipt::Confirmed
        } else {
            TerminationReceipt::NotNeeded
        };
        self.lose_with_receipt(FailureCode::DaemonLostAttempt, receipt)
    }

    pub(super) fn expire_lease(&mut self) -> EventOutcome {
        self.timeline_events
            .push(TimelineEventKind::DeadlineExpired {
                timer: TimerKind::Lease,
            });
        self.lose_attempt(FailureCode::LeaseExpired)
    }

    pub(super) fn lose_attempt(&mut self, code: FailureCode) -> EventOutcome {
        let receipt = self.assumed_receipt();
        self.lose_with_receipt(code, receipt)
    }

    pub(super) fn lose_with_receipt(
        &mut self,
        code: FailureCode,
        receipt: TerminationReceipt,
    ) -> EventOutcome {
        self.update_retry_safety();
        self.finish(EndState::Lost, Some(code), EndedBy::Relay, receipt)
    }

    pub(super) fn update_retry_safety(&mut self) {
        self.attempt.retry_safe &=
            retry_policy::is_loss_safe(self.is_lease_confirmed(), self.attempt.prompt_written);
    }

    pub(super) fn assumed_receipt(&self) -> TerminationReceipt {
        if self.is_lease_confirmed() {
            TerminationReceipt::Unconfirmed
        } else {
            TerminationReceipt::NotNeeded
        }
    }

    pub(super) fn receipt_from(&self, termination: &ProcessTermination) -> TerminationReceipt {
        if termination.group_empty {
            TerminationReceipt::Confirmed
        } else {
            self.assumed_receipt()
        }
    }

    /// Stores the worker's report about the prompt, unless a phase has already decided it.
    pub(super) fn note_prompt_written(&mut self, termination: &ProcessTermination) {
        if self.attempt.prompt_written.is_none() {
            self.attempt.prompt_written = termination.prompt_written;
        }
    }

    pub(super) fn store_termination(&mut self, termination: &ProcessTermination) {
        if let Some(end) = self.end_mut() {
            end.exit = termination.exit;
            end.cleanup.clone_from(&termination.cleanup);
        }
    }

    pub(super) fn store_usage(
        &mut self,
        usage: &TokenUsage,
        session: Option<Arc<str>>,
        final_offset: u64,
    ) {
        self.attempt.usage = usage.clone();
        if session.is_some() {
            self.attempt.agent_session_id = session;
        }
        self.attempt.final_offset = Some(final_offset);
        self.attempt.output_end = self.attempt.output_end.max(final_offset);
    }
}

/// Failure code and `ended_by` of a cancel.
pub(super) fn canceled_by(operator: bool) -> (FailureCode, EndedBy) {
    if operator {
        (FailureCode::CanceledByOperator, EndedBy::Operator)
    } else {
        (FailureCode::CanceledByUser, EndedBy::Client)
    }
}

/// The failure code for an expired timer.
pub(crate) fn timer_failure_code(timer: TimerKind) -> FailureCode {
    match timer {
        TimerKind::Queue => FailureCode::Starved,
        TimerKind::Accept => FailureCode::NotAccepted,
        TimerKind::ProcessStart => FailureCode::ProcessStartTimeout,
        TimerKind::PromptWrite => FailureCode::PromptWriteTimeout,
        TimerKind::FirstEvent => FailureCode::NoFirstEventTimeout,
        TimerKind::FirstVisibleEvent => FailureCode::NoVisibleEventTimeout,
        TimerKind::StreamIdle => FailureCode::StreamIdleTimeout,
        TimerKind::ToolIdle => FailureCode::ToolIdleTimeout,
        TimerKind::UserInput => FailureCode::UserInputTimeout,
        TimerKind::CleanupTerm => FailureCode::NoResult,
        TimerKind::Total => FailureCode::TaskDeadlineExceeded,
        TimerKind::Lease => FailureCode::LeaseExpired,
    }
}

/// Message for an end that the relay decided.
fn failure_message(code: &FailureCode) -> Option<&'static str> {
    Some(match code {
        FailureCode::DeliveryFailed => "the offer could not be written to the daemon's stream",
        FailureCode::NotAccepted => "the daemon did not accept the offer in time",
        FailureCode::DaemonLostAttempt => "the daemon no longer has this attempt",
        FailureCode::LeaseExpired => {
            "the holder did not renew the lease in time; it may be down or cut off"
        }
        FailureCode::ProcessStartTimeout => {
            "the agent's process did not start within process_start"
        }
        FailureCode::PromptWriteTimeout => "the prompt was not written within prompt_write",
        FailureCode::NoFirstEventTimeout => "the agent sent no event within first_event",
        FailureCode::NoVisibleEventTimeout => {
            "the agent sent no visible event within first_visible_event"
        }
        FailureCode::StreamIdleTimeout => "the agent sent no output for longer than stream_idle",
        FailureCode::ToolIdleTimeout => "a tool call sent no output for longer than tool_idle",
        FailureCode::UserInputTimeout => "no answer arrived within user_input",
        FailureCode::TaskDeadlineExceeded => "the attempt ran longer than total",
        FailureCode::NoResult => "cleanup started, but no result arrived",
        FailureCode::CanceledByUser => "canceled on request",
        FailureCode::CanceledByOperator => "canceled by an operator",
        FailureCode::SpawnFailed
        | FailureCode::ProviderMissing
        | FailureCode::BadCwd
        | FailureCode::AgentExit
        | FailureCode::ProviderError
        | FailureCode::ProviderAuth
        | FailureCode::ProviderQuota
        | FailureCode::ResumeFailed
        | FailureCode::OutputInvalid
        | FailureCode::ReceiptsMissing
        | FailureCode::RelayUnreachable
        | FailureCode::DependencyFailed
        | FailureCode::OperatorForced
        | FailureCode::DispatchLimit
        | FailureCode::Starved
        | FailureCode::Other(_) => return None,
    })
}

/// Whether a daemon's error code means that the attempt was lost, not that it failed.
pub(crate) fn is_loss_code(code: &FailureCode) -> bool {
    end_state_of(code) == EndState::Lost
}

/// The end state for a daemon's error code.
fn end_state_of(code: &FailureCode) -> EndState {
    match code {
        FailureCode::ProcessStartTimeout
        | FailureCode::PromptWriteTimeout
        | FailureCode::NoFirstEventTimeout
        | FailureCode::NoVisibleEventTimeout
        | FailureCode::StreamIdleTimeout
        | FailureCode::ToolIdleTimeout
        | FailureCode::UserInputTimeout
        | FailureCode::TaskDeadlineExceeded => EndState::TimedOut,
        // The worker stopped itself at its lease limit, which the relay counts as a loss.
        FailureCode::RelayUnreachable
        | FailureCode::LeaseExpired
        | FailureCode::DaemonLostAttempt => EndState::Lost,
        FailureCode::DeliveryFailed
        | FailureCode::NotAccepted
        | FailureCode::SpawnFailed
        | FailureCode::ProviderMissing
        | FailureCode::BadCwd
        | FailureCode::AgentExit
        | FailureCode::NoResult
        | FailureCode::ProviderError
        | FailureCode::ProviderAuth
        | FailureCode::ProviderQuota
        | FailureCode::ResumeFailed
        | FailureCode::OutputInvalid
        | FailureCode::ReceiptsMissing
        | FailureCode::CanceledByUser
        | FailureCode::CanceledByOperator
        | FailureCode::DependencyFailed
        | FailureCode::OperatorForced
        | FailureCode::DispatchLimit
        | FailureCode::Starved
        | FailureCode::Other(_) => EndState::Failed,
    }
}
