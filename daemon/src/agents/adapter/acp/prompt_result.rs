//! The response to the prompt, which ends the turn. A turn that ends normally may still have
//! failed.

use serde_json::Value;

use super::super::agent_event::{AgentEvent, TurnOutcome};
use super::super::json_rpc::{METHOD_NOT_FOUND, text_at};
use super::{AcpAdapter, AcpRequest};
use crate::agents::outcome::failure::{
    FailureClass, TurnFailure, class_of_named_status, is_error_text, provider_failure,
};
use crate::agents::outcome::turn_usage::{TokenCounts, TurnUsage};

/// The agent requires a login.
const AUTH_REQUIRED: i64 = -32000;
const NOT_FOUND: i64 = -32002;

impl AcpAdapter {
    pub(super) fn on_prompt_result(&mut self, result: &Value, out: &mut Vec<AgentEvent>) {
        let usage = self.usage(result);
        let outcome = self.outcome(result);
        self.turn.end_turn(outcome, usage, out);
    }

    fn outcome(&self, result: &Value) -> TurnOutcome {
        let failed = |class, message: &str| TurnOutcome::Failed(TurnFailure::new(class, message));
        match text_at(result, "/stopReason") {
            "end_turn" => match self.hidden_failure(result) {
                // Some agents end an interrupted turn like any other.
                Some(failure)
                    if failure.class == FailureClass::NoResult && self.turn.was_interrupted() =>
                {
                    TurnOutcome::Interrupted
                }
                Some(failure) => TurnOutcome::Failed(failure),
                None => TurnOutcome::Result(self.turn.last_text().to_owned()),
            },
            "cancelled" if self.turn.was_interrupted() => TurnOutcome::Interrupted,
            "cancelled" if self.denied => failed(
                FailureClass::NoResult,
                "the agent ended its turn because a permission was denied",
            ),
            "cancelled" => failed(
                FailureClass::NoResult,
                "the agent canceled its turn without a request to do so",
            ),
            // Some agents use this reason for every failed request, with the cause in the text.
            "refusal" => {
                let text = self.turn.last_text();
                let class = class_of_named_status(text).unwrap_or(FailureClass::Refusal);
                failed(class, text)
            }
            "max_tokens" => failed(
                FailureClass::ContextOverflow,
                "the agent reached the model's limit of tokens",
            ),
            "max_turn_requests" => failed(
                FailureClass::NoResult,
                "the agent reached its limit of requests in one turn",
            ),
            other => {
                let message = format!("the agent ended its turn with the reason {other:?}");
                failed(FailureClass::OutputInvalid, &message)
            }
        }
    }

    /// A failure of a turn that ended normally: a provider error that was sent as text, or no
    /// output at all.
    fn hidden_failure(&self, result: &Value) -> Option<TurnFailure> {
        if self.program_signals.broken || self.has_unowned_error_text(result) {
            let message = match self.program_signals.last.as_deref().unwrap_or_default() {
                "" => "the agent's provider failed",
                last => last,
            };
            return Some(provider_failure(None, "", message));
        }
        let has_usage = self.token_counts(result).unwrap_or_default() != TokenCounts::default();
        let failure = provider_failure(None, "", &self.program_signals.piece);
        let is_classified = failure.class != FailureClass::ProviderError;
        // Some agents send the provider's error as the whole answer in one piece, which a model
        // does not do, and report no usage.
        if !has_usage && is_classified && is_error_text(&self.program_signals.piece) {
            return Some(failure);
        }
        // Some agents end a turn without any output as if it were a short one.
        let has_no_output =
            !self.program_signals.agent_was_active && self.turn.last_text().is_empty();
        let message = "the agent ended its turn without any output or tool call";
        (has_no_output && !has_usage).then(|| TurnFailure::new(FailureClass::NoResult, message))
    }

    /// An error text that belongs to no message, with nothing used. An agent that reports no
    /// usage and no message ids looks the same, so the text must also look like an error, and
    /// be either the only text or the only one without an id.
    fn has_unowned_error_text(&self, result: &Value) -> bool {
        let last = self.program_signals.last.as_deref().unwrap_or_default();
        let nothing_used = result.get("usage").is_some_and(Value::is_null);
        let is_unowned =
            self.program_signals.names_messages || !self.program_signals.agent_was_active;
        nothing_used && is_unowned && is_error_text(last)
    }

    /// Tokens of this turn, if the agent reports them.
    fn token_counts(&self, result: &Value) -> Option<TokenCounts> {
        let quota = || {
            let count = result.pointer("/_meta/quota/token_count")?;
            let names = ["input_tokens", "output_tokens", "cached_tokens", ""];
            count
                .get("input_tokens")
                .map(|_| TokenCounts::from_json(count, names))
        };
        let reported = result.get("usage").and_then(tokens);
        reported.or_else(quota).or(self.program_signals.used)
    }

    fn usage(&self, result: &Value) -> Option<TurnUsage> {
        let tokens = self.token_counts(result);
        let cost = self.cost.zip(self.cost_before);
        // A cost of zero means that the agent reports no cost.
        let cost = cost
            .map(|(now, before)| now.since(before))
            .filter(|cost| *cost != Default::default());
        if tokens.is_none() && cost.is_none() {
            return None;
        }
        Some(TurnUsage {
            tokens: tokens.unwrap_or_default(),
            cost,
            model: self.model.clone(),
            turns: 0,
        })
    }

    pub(super) fn on_error(
        &mut self,
        request: AcpRequest,
        error: &Value,
        out: &mut Vec<AgentEvent>,
    ) {
        if request == AcpRequest::OpenSession && self.retry_with_load(error, out) {
            return;
        }
        let failure = rpc_failure(error);
        let is_classified = failure.class != FailureClass::ProviderError;
        let session_is_unknown = match request {
            AcpRequest::OpenSession => self.opening.resume.is_some(),
            AcpRequest::Prompt => names_unknown_session(error),
            AcpRequest::Initialize | AcpRequest::Set | AcpRequest::Other => false,
        };
        match request {
            AcpRequest::OpenSession | AcpRequest::Prompt
                if session_is_unknown && !is_classified =>
            {
                let failure = TurnFailure::new(FailureClass::ResumeFailed, failure.message);
                self.turn.fail_turn(failure, out);
            }
            AcpRequest::Set => {
                let failure = TurnFailure::new(FailureClass::UnsupportedOption, failure.message);
                self.turn.fail_turn(failure, out);
            }
            AcpRequest::Prompt if self.turn.was_interrupted() => {
                let usage = self.usage(&Value::Null);
                self.turn.end_turn(TurnOutcome::Interrupted, usage, out);
            }
            AcpRequest::Prompt => {
                let usage = self.usage(&Value::Null);
                self.turn.end_turn(TurnOutcome::Failed(failure), usage, out);
            }
            AcpRequest::Initialize | AcpRequest::OpenSession => self.turn.fail_turn(failure, out),
            AcpRequest::Other => {}
        }
    }
}

/// Token counts in the protocol's format.
pub(super) fn tokens(usage: &Value) -> Option<TokenCounts> {
    let names = [
        "inputTokens",
        "outputTokens",
        "cachedReadTokens",
        "cachedWriteTokens",
    ];
    let count = |name| usage.get(name).and_then(Value::as_u64);
    usage.is_object().then(|| {
        let thoughts = count("thoughtTokens").unwrap_or(0);
        TokenCounts::from_json(usage, names).fitted_to_total(count("totalTokens"), thoughts)
    })
}

/// Some agents use the provider's HTTP status as the error code.
fn rpc_failure(error: &Value) -> TurnFailure {
    let code = error.get("code").and_then(Value::as_i64).unwrap_or(0);
    let text = text_at(error, "/message");
    let message = match error_details(error) {
        details if details.is_empty() || text.contains(&details) => text.to_owned(),
        details => format!("{text}: {details}"),
    };
    if code == AUTH_REQUIRED {
        return TurnFailure::new(FailureClass::ProviderAuth, message);
    }
    let status = u64::try_from(code).ok();
    let status = status.filter(|code| (400..600).contains(code));
    provider_failure(status, text_at(error, "/data/errorKind"), &message)
}

/// The error's `data`, which the protocol leaves to the agent: a text, an object with a text in
/// it, or any other value.
fn error_details(error: &Value) -> String {
    let data = error.get("data").unwrap_or(&Value::Null);
    let texts = ["", "/details", "/message", "/error", "/error/message"];
    let mut texts = texts.into_iter().map(|path| text_at(data, path));
    match texts.find(|text| !text.is_empty()) {
        Some(text) => text.to_owned(),
        None if data.is_null() => String::new(),
        None => data.to_string(),
    }
}

/// A prompt for a session that the agent does not have. Other "not found" errors may come from
/// its work.
fn names_unknown_session(error: &Value) -> bool {
    let code = error.get("code").and_then(Value::as_i64);
    let message = text_at(error, "/message").to_lowercase();
    let by_text = message.contains("session") && message.contains("not found");
    let by_text = by_text && code != Some(METHOD_NOT_FOUND);
    let not_found = code == Some(NOT_FOUND);
    by_text || not_found && !text_at(error, "/data/sessionId").is_empty()
}
