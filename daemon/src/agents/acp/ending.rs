//! The answer to the prompt: the end of the turn. A normal one is not always what it says.

use serde_json::Value;

use super::super::event::{AgentEvent, Outcome};
use super::super::failure::{Failure, FailureClass, is_error_text, provider_failure, told_status};
use super::super::usage::{Tokens, TurnUsage};
use super::super::wire::{METHOD_NOT_FOUND, text};
use super::{Acp, Request};

/// The agent wants to be logged in.
const AUTH_REQUIRED: i64 = -32000;
const NOT_FOUND: i64 = -32002;

impl Acp {
    pub(super) fn on_prompt_result(&mut self, result: &Value, out: &mut Vec<AgentEvent>) {
        let usage = self.usage(result);
        let outcome = self.outcome(result);
        self.turn.end(outcome, usage, out);
    }

    fn outcome(&self, result: &Value) -> Outcome {
        let failed = |class, message: &str| Outcome::Failed(Failure::new(class, message));
        match text(result, "/stopReason") {
            "end_turn" => match self.hidden_failure(result) {
                // Some end a turn that was broken off as any other.
                Some(failure)
                    if failure.class == FailureClass::NoResult && self.turn.was_interrupted() =>
                {
                    Outcome::Interrupted
                }
                Some(failure) => Outcome::Failed(failure),
                None => Outcome::Result(self.turn.words().to_owned()),
            },
            "cancelled" if self.turn.was_interrupted() => Outcome::Interrupted,
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
                let words = self.turn.words();
                let class = told_status(words).unwrap_or(FailureClass::Refusal);
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
    fn hidden_failure(&self, result: &Value) -> Option<Failure> {
        if self.beside.broken || self.tells_an_error_beside(result) {
            let message = match self.beside.last.as_deref().unwrap_or_default() {
                "" => "the agent's provider failed",
                last => last,
            };
            return Some(provider_failure(None, "", message));
        }
        let counted = self.counted(result).unwrap_or_default() != Tokens::default();
        let told = provider_failure(None, "", &self.beside.piece);
        let known = told.class != FailureClass::ProviderError;
        // Some answer with the provider's error in one piece, which no model does, and count nothing.
        if !counted && known && is_error_text(&self.beside.piece) {
            return Some(told);
        }
        // Some end a turn of which nothing came as if it were a short one.
        let nothing = !self.beside.agent_was_heard && self.turn.words().is_empty();
        let message = "the agent ended its turn without having said or done anything";
        (nothing && !counted).then(|| Failure::new(FailureClass::NoResult, message))
    }

    /// An error as a text of nobody, with nothing used. That alone could be an agent that counts nothing and names no
    /// messages, so the text has to be an error, and either the only one or a stranger among messages with names.
    fn tells_an_error_beside(&self, result: &Value) -> bool {
        let last = self.beside.last.as_deref().unwrap_or_default();
        let nothing_used = result.get("usage").is_some_and(Value::is_null);
        let stranger = self.beside.names_messages || !self.beside.agent_was_heard;
        nothing_used && stranger && is_error_text(last)
    }

    /// The tokens of this turn, where the agent counts them.
    fn counted(&self, result: &Value) -> Option<Tokens> {
        let quota = || {
            let count = result.pointer("/_meta/quota/token_count")?;
            let names = ["input_tokens", "output_tokens", "cached_tokens", ""];
            count
                .get("input_tokens")
                .map(|_| Tokens::read(count, names))
        };
        let said = result.get("usage").and_then(tokens);
        said.or_else(quota).or(self.beside.used)
    }

    fn usage(&self, result: &Value) -> Option<TurnUsage> {
        let tokens = self.counted(result);
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

    pub(super) fn on_error(&mut self, request: Request, error: &Value, out: &mut Vec<AgentEvent>) {
        if request == Request::OpenSession && self.opens_otherwise(error, out) {
            return;
        }
        let failure = failure_of(error);
        let known = failure.class != FailureClass::ProviderError;
        let session_is_unknown = match request {
            Request::OpenSession => self.opening.resume.is_some(),
            Request::Prompt => names_unknown_session(error),
            Request::Initialize | Request::Set | Request::Other => false,
        };
        match request {
            Request::OpenSession | Request::Prompt if session_is_unknown && !known => {
                let failure = Failure::new(FailureClass::ResumeFailed, failure.message);
                self.turn.fail(failure, out);
            }
            Request::Set => {
                let failure = Failure::new(FailureClass::UnsupportedOption, failure.message);
                self.turn.fail(failure, out);
            }
            Request::Prompt if self.turn.was_interrupted() => {
                let usage = self.usage(&Value::Null);
                self.turn.end(Outcome::Interrupted, usage, out);
            }
            Request::Prompt => {
                let usage = self.usage(&Value::Null);
                self.turn.end(Outcome::Failed(failure), usage, out);
            }
            Request::Initialize | Request::OpenSession => self.turn.fail(failure, out),
            Request::Other => {}
        }
    }
}

/// What the protocol calls usage.
pub(super) fn tokens(usage: &Value) -> Option<Tokens> {
    let names = [
        "inputTokens",
        "outputTokens",
        "cachedReadTokens",
        "cachedWriteTokens",
    ];
    let count = |name| usage.get(name).and_then(Value::as_u64);
    usage.is_object().then(|| {
        let thoughts = count("thoughtTokens").unwrap_or(0);
        Tokens::read(usage, names).adding_up_to(count("totalTokens"), thoughts)
    })
}

/// Some agents use the provider's status as the code.
fn failure_of(error: &Value) -> Failure {
    let code = error.get("code").and_then(Value::as_i64).unwrap_or(0);
    let said = text(error, "/message");
    let message = match details(error) {
        details if details.is_empty() || said.contains(&details) => said.to_owned(),
        details => format!("{said}: {details}"),
    };
    if code == AUTH_REQUIRED {
        return Failure::new(FailureClass::ProviderAuth, message);
    }
    let status = u64::try_from(code).ok();
    let status = status.filter(|code| (400..600).contains(code));
    provider_failure(status, text(error, "/data/errorKind"), &message)
}

/// What the protocol leaves to the agent: a text, an object with one in it, or whatever it is.
fn details(error: &Value) -> String {
    let data = error.get("data").unwrap_or(&Value::Null);
    let texts = ["", "/details", "/message", "/error", "/error/message"];
    let mut texts = texts.into_iter().map(|path| text(data, path));
    match texts.find(|words| !words.is_empty()) {
        Some(words) => words.to_owned(),
        None if data.is_null() => String::new(),
        None => data.to_string(),
    }
}

/// A prompt for a session that the agent does not have. Other things may not be found while it works.
fn names_unknown_session(error: &Value) -> bool {
    let code = error.get("code").and_then(Value::as_i64);
    let message = text(error, "/message").to_lowercase();
    let by_words = message.contains("session") && message.contains("not found");
    let by_words = by_words && code != Some(METHOD_NOT_FOUND);
    let not_found = code == Some(NOT_FOUND);
    by_words || not_found && !text(error, "/data/sessionId").is_empty()
}
