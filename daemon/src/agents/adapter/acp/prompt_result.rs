//! The answer to the prompt: the end of the turn. A normal one is not always what it says.

use serde_json::Value;

use super::super::agent_event::{AgentEvent, TurnOutcome};
use super::super::json_rpc::{METHOD_NOT_FOUND, text_at};
use super::{AcpAdapter, AcpRequest};
use crate::agents::outcome::failure::{
    FailureClass, TurnFailure, class_of_named_status, is_error_text, provider_failure,
};
use crate::agents::outcome::turn_usage::{TokenCounts, TurnUsage};

/// The agent wants to be logged in.
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
                // Some end a turn that was broken off as any other.
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
                "the agent canceled its turn, and nobody had asked it to",
            ),
            // Some say this of any request that failed, and why in words.
            "refusal" => {
                let words = self.turn.last_text();
                let class = class_of_named_status(words).unwrap_or(FailureClass::Refusal);
                failed(class, words)
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

    /// What makes a normal end none: an error of the provider that is told there only, or that nothing came before it.
    fn hidden_failure(&self, result: &Value) -> Option<TurnFailure> {
        if self.beside.broken || self.has_unowned_error_text(result) {
            let message = match self.beside.last.as_deref().unwrap_or_default() {
                "" => "the agent's provider failed",
                last => last,
            };
            return Some(provider_failure(None, "", message));
        }
        let counted = self.token_counts(result).unwrap_or_default() != TokenCounts::default();
        let told = provider_failure(None, "", &self.beside.piece);
        let known = told.class != FailureClass::ProviderError;
        // Some answer with the provider's error in one piece, which no model does, and count nothing.
        if !counted && known && is_error_text(&self.beside.piece) {
            return Some(told);
        }
        // Some end a turn of which nothing came as if it were a short one.
        let nothing = !self.beside.agent_was_heard && self.turn.last_text().is_empty();
        let message = "the agent ended its turn without having said or done anything";
        (nothing && !counted).then(|| TurnFailure::new(FailureClass::NoResult, message))
    }

    /// An error as a text of nobody, with nothing used. That alone could be an agent that counts nothing and names no
    /// messages, so the text has to be an error, and either the only one or a stranger among messages with names.
    fn has_unowned_error_text(&self, result: &Value) -> bool {
        let last = self.beside.last.as_deref().unwrap_or_default();
        let nothing_used = result.get("usage").is_some_and(Value::is_null);
        let stranger = self.beside.names_messages || !self.beside.agent_was_heard;
        nothing_used && stranger && is_error_text(last)
    }

    /// The tokens of this turn, where the agent counts them.
    fn token_counts(&self, result: &Value) -> Option<TokenCounts> {
        let quota = || {
            let count = result.pointer("/_meta/quota/token_count")?;
            let names = ["input_tokens", "output_tokens", "cached_tokens", ""];
            count
                .get("input_tokens")
                .map(|_| TokenCounts::from_json(count, names))
        };
        let said = result.get("usage").and_then(tokens);
        said.or_else(quota).or(self.beside.used)
    }

    fn usage(&self, result: &Value) -> Option<TurnUsage> {
        let tokens = self.token_counts(result);
        let cost = self.cost.zip(self.cost_before);
        // An agent that names no price has not used nothing.
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
        let known = failure.class != FailureClass::ProviderError;
        let session_is_unknown = match request {
            AcpRequest::OpenSession => self.opening.resume.is_some(),
            AcpRequest::Prompt => names_unknown_session(error),
            AcpRequest::Initialize | AcpRequest::Set | AcpRequest::Other => false,
        };
        match request {
            AcpRequest::OpenSession | AcpRequest::Prompt if session_is_unknown && !known => {
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

/// What the protocol calls usage.
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

/// Some agents use the provider's status as the code.
fn rpc_failure(error: &Value) -> TurnFailure {
    let code = error.get("code").and_then(Value::as_i64).unwrap_or(0);
    let said = text_at(error, "/message");
    let message = match error_details(error) {
        details if details.is_empty() || said.contains(&details) => said.to_owned(),
        details => format!("{said}: {details}"),
    };
    if code == AUTH_REQUIRED {
        return TurnFailure::new(FailureClass::ProviderAuth, message);
    }
    let status = u64::try_from(code).ok();
    let status = status.filter(|code| (400..600).contains(code));
    provider_failure(status, text_at(error, "/data/errorKind"), &message)
}

/// What the protocol leaves to the agent: a text, an object with one in it, or whatever it is.
fn error_details(error: &Value) -> String {
    let data = error.get("data").unwrap_or(&Value::Null);
    let texts = ["", "/details", "/message", "/error", "/error/message"];
    let mut texts = texts.into_iter().map(|path| text_at(data, path));
    match texts.find(|words| !words.is_empty()) {
        Some(words) => words.to_owned(),
        None if data.is_null() => String::new(),
        None => data.to_string(),
    }
}

/// A prompt for a session that the agent does not have. Other things may not be found while it works.
fn names_unknown_session(error: &Value) -> bool {
    let code = error.get("code").and_then(Value::as_i64);
    let message = text_at(error, "/message").to_lowercase();
    let by_words = message.contains("session") && message.contains("not found");
    let by_words = by_words && code != Some(METHOD_NOT_FOUND);
    let not_found = code == Some(NOT_FOUND);
    by_words || not_found && !text_at(error, "/data/sessionId").is_empty()
}
