//! How an attempt ends: builds the terminal record, or parks it. The one place that makes an `End`.

use std::sync::Arc;

use super::{Machine, Outcome};
use crate::bounds;
use crate::contract::{self, FoundFile};
use crate::input::{CanceledBody, Completed, Errored, NO_RESULT, Termination};
use crate::record::{
    End, EndState, EndedBy, EventKind, FailureCode, InputState, ParkCause, Parked, Receipt,
    RejectCode, State, TimerKind, Usage,
};
use crate::reject::Rejection;
use crate::retry;
use crate::spec::MissingPolicy;
use crate::timers::Fact;

impl Machine<'_> {
    /// Writes the terminal record and stops every timer.
    pub(super) fn finish(
        &mut self,
        state: EndState,
        code: Option<FailureCode>,
        by: EndedBy,
        receipt: Receipt,
    ) -> Outcome {
        let retryable = code.as_ref().is_some_and(|code| {
            matches!(
                state,
                EndState::Failed | EndState::TimedOut | EndState::Lost
            ) && retry::is_retryable(code, self.attempt.retry_safe, None)
        });
        let end = End {
            state,
            message: code
                .as_ref()
                .filter(|_| !matches!(by, EndedBy::Daemon | EndedBy::Agent))
                .and_then(explain)
                .map(Arc::from),
            failure_code: code,
            retryable,
            user_message: None,
            by,
            cause_phase: self.attempt.phase,
            exit: None,
            receipt,
            killed_after_result: false,
            adopted_late: false,
            cleanup: None,
            at: self.now.wall,
        };
        self.set_end(end);
        Outcome::Applied
    }

    fn set_end(&mut self, end: End) {
        self.notes.push(EventKind::Ended {
            code: end.failure_code.clone(),
            retryable: end.retryable,
        });
        self.attempt.times.ended = Some(self.now.wall);
        self.attempt.state = State::Ended(end);
        self.close_open();
    }

    pub(super) fn park(&mut self, cause: ParkCause, receipt: Receipt) -> Outcome {
        self.notes.push(EventKind::Attention(cause.attention()));
        self.attempt.state = State::Parked(Parked {
            cause,
            since: self.now.wall,
            receipt,
        });
        self.close_open();
        Outcome::Applied
    }

    /// The lease ends here. Until the worker proves the death of its processes nobody succeeds it.
    pub(super) fn park_held(
        &mut self,
        cause: ParkCause,
        termination: Option<&Termination>,
    ) -> Outcome {
        let receipt = match termination {
            Some(termination) => {
                self.learn(termination);
                self.receipt_of(termination)
            }
            None if mutant!(ParkTakenForReceipt) => Receipt::NotNeeded,
            None => self.assumed_receipt(),
        };
        self.park(cause, receipt)
    }

    /// Nothing of it stays open: no tool, no question, no timer.
    fn close_open(&mut self) {
        self.attempt.tools.clear();
        for input in &mut self.attempt.inputs {
            if input.state.is_pending() {
                let answer = input.state.answer().cloned().map(bounds::received);
                input.state = InputState::Superseded(answer);
                input.payload = Arc::from([]);
            }
        }
        bounds::shrink_ended(self.attempt);
        self.tell(&Fact::Ended);
    }

    pub(super) fn end_mut(&mut self) -> Option<&mut End> {
        if let State::Ended(end) = &mut self.attempt.state {
            Some(end)
        } else {
            None
        }
    }

    pub(super) fn complete(&mut self, body: Completed) -> Outcome {
        self.learn(&body.termination);
        self.keep_usage(&body.usage, body.agent_session_id, body.final_offset);
        self.attempt.result = body.result;
        self.keep_receipts(body.artifacts);
        let receipt = self.receipt_of(&body.termination);
        self.finish(EndState::Completed, None, self.holder_says(), receipt);
        self.note_termination(&body.termination);
        if let Some(end) = self.end_mut() {
            end.killed_after_result = body.killed_after_result;
        }
        Outcome::Applied
    }

    /// A result that misses files: the contract says what becomes of it.
    pub(super) fn unmet(&mut self, mut body: Completed) -> Outcome {
        self.keep_receipts(std::mem::take(&mut body.artifacts));
        match contract::policy(self.spec) {
            MissingPolicy::Park if !mutant!(ParkRefuses) => self.park_unmet(body),
            MissingPolicy::Reject | MissingPolicy::Park => {
                Outcome::Refused(Rejection::ContractUnmet)
            }
            MissingPolicy::Fail => {
                let words = contract::words(&contract::unmet(self.spec, self.attempt));
                self.error(Errored::receipts_missing(body, words))
            }
        }
    }

    /// With its result, so that a person who sees that nothing is missing can let it count.
    fn park_unmet(&mut self, body: Completed) -> Outcome {
        self.learn(&body.termination);
        self.keep_usage(&body.usage, body.agent_session_id, body.final_offset);
        self.attempt.result = body.result;
        let receipt = self.receipt_of(&body.termination);
        self.park(ParkCause::ReceiptsMissing, receipt)
    }

    pub(super) fn keep_receipts(&mut self, found: Vec<FoundFile>) {
        self.attempt.artifacts = contract::seen(self.spec, found);
    }

    pub(super) fn error(&mut self, body: Errored) -> Outcome {
        self.learn(&body.termination);
        self.keep_usage(&body.usage, body.agent_session_id, body.final_offset);
        let receipt = self.receipt_of(&body.termination);
        let state = state_of(&body.code);
        if state == EndState::Lost {
            self.judge_loss();
        }
        self.finish(state, Some(body.code), self.holder_says(), receipt);
        self.note_termination(&body.termination);
        if let Some(end) = self.end_mut() {
            end.retryable &= body.retryable_hint != Some(false);
            end.message = body.message;
            end.user_message = body.user_message;
        }
        self.renote_end();
        Outcome::Applied
    }

    /// Whose word ends it, where its holder said so.
    fn holder_says(&self) -> EndedBy {
        match self.attempt.agent() {
            Some(_) => EndedBy::Agent,
            None => EndedBy::Daemon,
        }
    }

    /// The hint came after the note was made: the timeline must say what the record says.
    fn renote_end(&mut self) {
        let Some(retry) = self.end_mut().map(|end| end.retryable) else {
            return;
        };
        if let Some(EventKind::Ended { retryable, .. }) = self.notes.last_mut() {
            *retryable = retry;
        }
    }

    pub(super) fn canceled(&mut self, body: CanceledBody) -> Outcome {
        self.learn(&body.termination);
        self.keep_usage(&body.usage, None, body.final_offset);
        let receipt = self.receipt_of(&body.termination);
        self.finish(EndState::Canceled, None, self.holder_says(), receipt);
        self.note_termination(&body.termination);
        if let Some(end) = self.end_mut() {
            end.message = body.reason;
        }
        Outcome::Applied
    }

    pub(super) fn release(
        &mut self,
        reason: Option<Arc<str>>,
        termination: &Termination,
    ) -> Outcome {
        self.learn(termination);
        let receipt = self.receipt_of(termination);
        self.finish(EndState::Released, None, self.holder_says(), receipt);
        self.note_termination(termination);
        if let Some(end) = self.end_mut() {
            end.message = reason;
        }
        Outcome::Applied
    }

    /// Not started and never will be: the strongest receipt there is. Another daemon may take it, unless nobody can.
    pub(super) fn reject(&mut self, code: &RejectCode, message: Option<Arc<str>>) -> Outcome {
        self.notes.push(EventKind::Rejected {
            code: code.as_str().into(),
        });
        let receipt = if self.confirmed() {
            Receipt::Confirmed
        } else {
            Receipt::NotNeeded
        };
        let why = FailureCode::parse(code.as_str());
        let state = if code.is_about_the_task() {
            EndState::Failed
        } else {
            EndState::Released
        };
        self.finish(state, Some(why), EndedBy::Daemon, receipt);
        if let Some(end) = self.end_mut() {
            end.message = Some(message.unwrap_or_else(|| code.as_str().into()));
        }
        Outcome::Applied
    }

    /// The processes are gone and no result came with the word.
    pub(super) fn gone(&mut self, termination: &Termination) -> Outcome {
        self.learn(termination);
        let receipt = self.receipt_of(termination);
        let ttl_ms = self.attempt.lease.as_ref().map(|lease| lease.ttl_ms);
        let words = termination.loss.map(|loss| loss.words(ttl_ms));
        self.lose_with(FailureCode::DaemonLostAttempt, receipt);
        self.note_termination(termination);
        if let Some(end) = self.end_mut() {
            end.message = Some(words.map_or_else(|| NO_RESULT.into(), Into::into));
        }
        Outcome::Applied
    }

    pub(super) fn rebooted(&mut self) -> Outcome {
        let receipt = if self.confirmed() {
            Receipt::Confirmed
        } else {
            Receipt::NotNeeded
        };
        self.lose_with(FailureCode::DaemonLostAttempt, receipt)
    }

    pub(super) fn expire_lease(&mut self) -> Outcome {
        self.notes.push(EventKind::DeadlineExpired {
            timer: TimerKind::Lease,
        });
        self.lose(FailureCode::LeaseExpired)
    }

    pub(super) fn lose(&mut self, code: FailureCode) -> Outcome {
        let receipt = self.assumed_receipt();
        self.lose_with(code, receipt)
    }

    pub(super) fn lose_with(&mut self, code: FailureCode, receipt: Receipt) -> Outcome {
        self.judge_loss();
        self.finish(EndState::Lost, Some(code), EndedBy::Relay, receipt)
    }

    pub(super) fn judge_loss(&mut self) {
        self.attempt.retry_safe &=
            retry::loss_is_safe(self.confirmed(), self.attempt.prompt_written);
    }

    pub(super) fn assumed_receipt(&self) -> Receipt {
        if self.confirmed() {
            Receipt::Unconfirmed
        } else {
            Receipt::NotNeeded
        }
    }

    pub(super) fn receipt_of(&self, termination: &Termination) -> Receipt {
        if termination.group_empty {
            Receipt::Confirmed
        } else {
            self.assumed_receipt()
        }
    }

    /// The worker's word about the prompt counts only while no phase has said otherwise.
    pub(super) fn learn(&mut self, termination: &Termination) {
        if self.attempt.prompt_written.is_none() {
            self.attempt.prompt_written = termination.prompt_written;
        }
    }

    pub(super) fn note_termination(&mut self, termination: &Termination) {
        if let Some(end) = self.end_mut() {
            end.exit = termination.exit;
            end.cleanup.clone_from(&termination.cleanup);
        }
    }

    pub(super) fn keep_usage(
        &mut self,
        usage: &Usage,
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

/// Who canceled, as the record says it.
pub(super) fn canceled_by(operator: bool) -> (FailureCode, EndedBy) {
    if operator {
        (FailureCode::CanceledByOperator, EndedBy::Operator)
    } else {
        (FailureCode::CanceledByUser, EndedBy::Client)
    }
}

/// The failure code that a timer's expiry leaves behind.
pub(crate) fn code_of(timer: TimerKind) -> FailureCode {
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

/// What happened, in a sentence, where the relay decided the end.
fn explain(code: &FailureCode) -> Option<&'static str> {
    Some(match code {
        FailureCode::DeliveryFailed => "the offer could not be written to the daemon's stream",
        FailureCode::NotAccepted => "the daemon did not accept the offer in time",
        FailureCode::DaemonLostAttempt => "the daemon no longer holds this attempt",
        FailureCode::LeaseExpired => {
            "the holder did not renew the lease in time; it may be down or cut off"
        }
        FailureCode::ProcessStartTimeout => {
            "the agent's process did not start within process_start"
        }
        FailureCode::PromptWriteTimeout => "the prompt was not written within prompt_write",
        FailureCode::NoFirstEventTimeout => "the agent said nothing within first_event",
        FailureCode::NoVisibleEventTimeout => "the agent showed nothing within first_visible_event",
        FailureCode::StreamIdleTimeout => "the agent fell silent for longer than stream_idle",
        FailureCode::ToolIdleTimeout => "a tool call was silent for longer than tool_idle",
        FailureCode::UserInputTimeout => "nobody answered within user_input",
        FailureCode::TaskDeadlineExceeded => "the attempt ran longer than total",
        FailureCode::NoResult => "cleanup began and no result followed",
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

/// Whether a daemon's error code says that the attempt was lost rather than how it failed.
pub(crate) fn is_loss(code: &FailureCode) -> bool {
    state_of(code) == EndState::Lost
}

/// What a daemon's error code makes of the attempt.
fn state_of(code: &FailureCode) -> EndState {
    match code {
        FailureCode::ProcessStartTimeout
        | FailureCode::PromptWriteTimeout
        | FailureCode::NoFirstEventTimeout
        | FailureCode::NoVisibleEventTimeout
        | FailureCode::StreamIdleTimeout
        | FailureCode::ToolIdleTimeout
        | FailureCode::UserInputTimeout
        | FailureCode::TaskDeadlineExceeded => EndState::TimedOut,
        // The worker fenced itself: to the relay that is a loss.
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
