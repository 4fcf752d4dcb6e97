//! Why a turn failed: the failure classes, their messages for users, and how a provider's error
//! is classified. Whether a failure may be retried is not decided here: the relay decides it
//! from the code.

mod class_phrases;
mod exit_failure;

use baton_proto::codes;
use serde::{Deserialize, Serialize};

pub(crate) use class_phrases::{class_of_named_status, is_error_text};
use class_phrases::{class_of_status, class_of_text, status_in};
pub(crate) use exit_failure::exit_failure;

/// One of the registered failure codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FailureClass {
    ProviderAuth,
    ProviderQuota,
    ProviderOverloaded,
    ProviderError,
    ContextOverflow,
    Refusal,
    ProviderMissing,
    BadCwd,
    SpawnFailed,
    AgentExit,
    NoResult,
    OutputInvalid,
    ResumeFailed,
    UnsupportedOption,
}

/// The user's message for a child that could not be started, by the failure code.
pub(crate) fn startup_user_message(code: &str) -> Option<&'static str> {
    let classes = [
        FailureClass::ProviderMissing,
        FailureClass::BadCwd,
        FailureClass::SpawnFailed,
    ];
    let mut messages = classes.into_iter().map(FailureClass::code_and_user_message);
    messages
        .find(|(known, _)| *known == code)
        .map(|(_, message)| message)
}

/// A failed turn: the class, which has a message for the user, and the details for the
/// operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TurnFailure {
    pub(crate) class: FailureClass,
    pub(crate) message: String,
}

/// Failure message for a response without which the turn cannot start.
pub(crate) const ANSWER_TOO_LONG: &str = "the agent's answer was too long to be read";

/// Characters of an agent's own message that are kept.
const MAX_MESSAGE_CHARS: usize = 2048;

impl TurnFailure {
    pub(crate) fn new(class: FailureClass, message: impl Into<String>) -> Self {
        let message: String = message.into();
        let message = match message.trim() {
            "" => class.code_and_user_message().1,
            text => text,
        };
        let message = message.chars().take(MAX_MESSAGE_CHARS).collect();
        Self { class, message }
    }

    pub(crate) fn code(&self) -> &'static str {
        self.class.code_and_user_message().0
    }

    pub(crate) fn user_message(&self) -> &'static str {
        self.class.code_and_user_message().1
    }
}

impl FailureClass {
    fn code_and_user_message(self) -> (&'static str, &'static str) {
        match self {
            Self::ProviderAuth => (
                codes::PROVIDER_AUTH,
                "The agent is not logged in to its model provider. Ask the operator of the daemon to renew its credentials.",
            ),
            Self::ProviderQuota => (
                codes::PROVIDER_QUOTA,
                "The agent's model provider refuses more work for now: a rate limit or budget is used up. Try again later.",
            ),
            Self::ProviderOverloaded => (
                codes::PROVIDER_OVERLOADED,
                "The agent's model provider is overloaded or cannot be reached. This usually passes by itself.",
            ),
            Self::ProviderError => (
                codes::PROVIDER_ERROR,
                "The agent's model provider answered with an error.",
            ),
            Self::ContextOverflow => (
                codes::CONTEXT_OVERFLOW,
                "The conversation is too long for the model. Start a new one, or request less at once.",
            ),
            Self::Refusal => (codes::REFUSAL, "The model declined to do this."),
            Self::ProviderMissing => (
                codes::PROVIDER_MISSING,
                "The program is not installed on the daemon's machine, or is missing from the working directory.",
            ),
            Self::BadCwd => (
                codes::BAD_CWD,
                "The working directory of the task cannot be used.",
            ),
            Self::SpawnFailed => (
                codes::SPAWN_FAILED,
                "The agent's program could not be started.",
            ),
            Self::AgentExit => (
                codes::AGENT_EXIT,
                "The agent's program ended before its work was done.",
            ),
            Self::NoResult => (codes::NO_RESULT, "The agent stopped without a result."),
            Self::OutputInvalid => (
                codes::OUTPUT_INVALID,
                "The agent sent a message that this version does not understand.",
            ),
            Self::ResumeFailed => (
                codes::RESUME_FAILED,
                "The agent no longer has the conversation that was to be resumed.",
            ),
            Self::UnsupportedOption => (
                codes::UNSUPPORTED_OPTION,
                "The agent does not support one of the options that the task requests.",
            ),
        }
    }
}

/// Classifies a provider's error: by its HTTP status if there is one, otherwise by its text.
pub(crate) fn provider_failure(status: Option<u64>, kind: &str, message: &str) -> TurnFailure {
    let by_status = status
        .or_else(|| status_in(message))
        .and_then(class_of_status);
    let by_text = || class_of_text(kind).or_else(|| class_of_text(message));
    let overflow = || by_text().filter(|class| *class == FailureClass::ContextOverflow);
    // A request that is too long has the status of any bad request, so the text is checked
    // first.
    let class = overflow()
        .or(by_status)
        .or_else(by_text)
        .unwrap_or(FailureClass::ProviderError);
    let message = if message.trim().is_empty() {
        kind
    } else {
        message
    };
    TurnFailure::new(class, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_decides_the_class_and_otherwise_the_text() {
        let class = |status, kind, message| provider_failure(status, kind, message).class;
        assert_eq!(class(Some(401), "", ""), FailureClass::ProviderAuth);
        assert_eq!(class(Some(529), "", ""), FailureClass::ProviderOverloaded);
        assert_eq!(
            class(None, "", "unexpected status 401 Unauthorized: no"),
            FailureClass::ProviderAuth
        );
        assert_eq!(
            class(
                None,
                "",
                "exceeded retry limit, last status: 429 Too Many Requests"
            ),
            FailureClass::ProviderQuota
        );
        assert_eq!(
            class(
                Some(400),
                "invalid_request_error",
                "prompt is too long: 9 tokens"
            ),
            FailureClass::ContextOverflow
        );
        assert_eq!(class(None, "rate_limit", "no"), FailureClass::ProviderQuota);
        assert_eq!(
            class(None, "", "something else"),
            FailureClass::ProviderError
        );
    }

    /// Messages as programs and providers have sent them.
    #[test]
    fn provider_messages_have_a_class() {
        use FailureClass::*;
        for (text, class) in [
            ("Not logged in · Please run /login", ProviderAuth),
            ("Invalid API key · Fix external API key", ProviderAuth),
            (
                "Failed to authenticate. API Error: 403 not allowed",
                ProviderAuth,
            ),
            (
                "Missing environment variable: `OPENAI_API_KEY`.",
                ProviderAuth,
            ),
            ("OAuth token has expired", ProviderAuth),
            ("This organization has been disabled.", ProviderAuth),
            (
                "exceeded retry limit, last status: 429 Too Many Requests",
                ProviderQuota,
            ),
            (
                "API Error: Request rejected (429) · This would exceed your rate limit",
                ProviderQuota,
            ),
            ("Credit balance is too low", ProviderQuota),
            (
                "You've hit your usage limit. Try again at 7 PM.",
                ProviderQuota,
            ),
            ("insufficient_quota", ProviderQuota),
            (
                "API Error: 529 Overloaded. This is a server-side issue",
                ProviderOverloaded,
            ),
            (
                "unexpected status 529 <unknown status code>: Overloaded",
                ProviderOverloaded,
            ),
            (
                "We\u{2019}re currently experiencing high demand",
                ProviderOverloaded,
            ),
            (
                "stream disconnected before completion: idle timeout waiting for SSE",
                ProviderOverloaded,
            ),
            (
                "API Error: Connection refused (ECONNREFUSED)",
                ProviderOverloaded,
            ),
            (
                "API Error: 400 prompt is too long: 210000 tokens > 200000 maximum",
                ContextOverflow,
            ),
            (
                "Your input exceeds the context window of this model",
                ContextOverflow,
            ),
        ] {
            assert_eq!(provider_failure(None, "", text).class, class, "{text}");
        }
    }

    /// Messages of other programs and their providers.
    #[test]
    fn messages_of_other_programs_have_a_class() {
        use FailureClass::*;
        for (text, class) in [
            (
                "The input token count (1200000) exceeds the maximum number of tokens allowed",
                ContextOverflow,
            ),
            ("401 Incorrect API key provided: sk-…", ProviderAuth),
            ("request failed with HTTP 403", ProviderAuth),
            ("Internal error: 403 No permission for this", ProviderAuth),
            (
                "Error: no answer (tried 5 times) Last error: 429 Slow down",
                ProviderQuota,
            ),
            ("PermissionDeniedError: Forbidden", ProviderAuth),
            (
                "Session too large to compact - context exceeds model limit",
                ContextOverflow,
            ),
            ("{\"errorName\":\"ContextOverflowError\"}", ContextOverflow),
            ("API key expired. Please renew the API key.", ProviderAuth),
            ("You've hit your limit · resets 10pm", ProviderQuota),
            ("429 {\"type\":\"error\"}", ProviderQuota),
            ("Request failed with status code 503", ProviderOverloaded),
            ("TypeError: fetch failed", ProviderOverloaded),
            ("getaddrinfo ENOTFOUND api.example.org", ProviderOverloaded),
            ("it appears to violate our Usage Policy", Refusal),
            ("the model gpt-0 does not exist", ProviderError),
            ("404 no such model", ProviderError),
            ("500ms is not a time", ProviderError),
        ] {
            assert_eq!(provider_failure(None, "", text).class, class, "{text}");
        }
    }

    #[test]
    fn every_class_has_its_own_code_and_a_user_message() {
        use FailureClass::*;
        let classes = [
            ProviderAuth,
            ProviderQuota,
            ProviderOverloaded,
            ProviderError,
            ContextOverflow,
            Refusal,
            ProviderMissing,
            BadCwd,
            SpawnFailed,
            AgentExit,
            NoResult,
            OutputInvalid,
            ResumeFailed,
            UnsupportedOption,
        ];
        let messages: std::collections::BTreeMap<&str, &str> =
            classes.map(FailureClass::code_and_user_message).into();
        assert_eq!(messages.len(), classes.len());
        for (code, message) in messages {
            assert!(
                message.ends_with('.') && !message.contains(code),
                "{code}: {message}"
            );
        }
        // An operator always gets a message.
        assert!(!TurnFailure::new(Refusal, " ").message.is_empty());
    }
}
