//! How providers and agents report failures: by an HTTP status or in a text.

use super::FailureClass;

/// Phrases of providers and agents for each class, in the order of precedence. Lower case.
const CLASS_PHRASES: [(FailureClass, &[&str]); 5] = [
    (
        FailureClass::ContextOverflow,
        &[
            "context_length",
            "context length",
            "contextwindowexceeded",
            "contextoverflow",
            "context overflow",
            "context exceeds",
            "context_window",
            "context window",
            "prompt is too long",
            "input is too long",
            "maximum context",
            "context limit",
            "input token count",
            "maximum number of tokens",
            "max_output_tokens",
            "too many tokens",
        ],
    ),
    (
        FailureClass::ProviderAuth,
        &[
            "authentication",
            "unauthorized",
            "forbidden",
            "have permission",
            "no permission",
            "not logged in",
            "please run /login",
            "invalid api key",
            "invalid x-api-key",
            "invalid_api_key",
            "incorrect api key",
            "api_key_invalid",
            "api key expired",
            "invalid_grant",
            "api key not valid",
            "permission_error",
            "oauth token",
            "oauth_org",
            "organization has been disabled",
            "account_on_hold",
            "login required",
            "missing environment variable",
            "invalid credential",
            "missing credential",
            "no credentials",
            "load credentials",
            "credentials have expired",
            "expired credential",
        ],
    ),
    (
        FailureClass::ProviderQuota,
        &[
            "rate_limit",
            "rate limit",
            "ratelimit",
            "quota",
            "usage limit",
            "usagelimit",
            "usage_limit",
            "hit your limit",
            "limit reached",
            "spending limit",
            "billing",
            "credit balance",
            "insufficient_funds",
            "insufficient credit",
            "out_of_credits",
            "budget",
            "too many requests",
            "resource_exhausted",
        ],
    ),
    (
        FailureClass::Refusal,
        &[
            "refusal",
            "content_policy",
            "content policy",
            "content_filter",
            "usage policy",
            "prohibited_content",
            "cyberpolicy",
            "policyviolation",
            "safety filter",
        ],
    ),
    (
        FailureClass::ProviderOverloaded,
        &[
            "overloaded",
            "server_error",
            "internalservererror",
            "internal server error",
            "high demand",
            "unavailable",
            "bad gateway",
            "gateway timeout",
            "connection refused",
            "connection_failed",
            "connectionfailed",
            "econnrefused",
            "econnreset",
            "enotfound",
            "etimedout",
            "eai_again",
            "connection error",
            "connection reset",
            "fetch failed",
            "socket hang up",
            "error sending request",
            "deadline exceeded",
            "stream disconnected",
            "streamdisconnected",
            "idle timeout",
            "timed out",
        ],
    ),
];

pub(super) fn class_of_status(status: u64) -> Option<FailureClass> {
    match status {
        401 | 403 => Some(FailureClass::ProviderAuth),
        402 | 429 => Some(FailureClass::ProviderQuota),
        413 => Some(FailureClass::ContextOverflow),
        408 | 500..=599 => Some(FailureClass::ProviderOverloaded),
        _ => None,
    }
}

pub(super) fn class_of_text(text: &str) -> Option<FailureClass> {
    let text = text.to_lowercase();
    let is_named = |phrases: &&[&str]| phrases.iter().any(|phrase| text.contains(phrase));
    let entry = CLASS_PHRASES.iter().find(|(_, phrases)| is_named(phrases));
    entry.map(|(class, _)| *class)
}

/// Whether a text is a provider's error. The agent's own text may also be about errors.
pub(crate) fn is_error_text(text: &str) -> bool {
    const BEGINNINGS: [&str; 6] = [
        "error",
        "api error",
        "exceeded retry limit",
        "unexpected status",
        "stream disconnected",
        "we\u{2019}re currently experiencing",
    ];
    let text = text.trim_start().to_lowercase();
    BEGINNINGS.iter().any(|phrase| text.starts_with(phrase))
}

/// An HTTP status named in a text: `unexpected status 401 Unauthorized`, `last status: 429`,
/// `API Error: 529`, `Request rejected (429)`, `HTTP 403`, `error code: 500`, `429
/// {"type":"error"`, `Internal error: 403 No permission`.
pub(super) fn status_in(text: &str) -> Option<u64> {
    let lower = text.to_lowercase();
    let phrases = [
        "status",
        "status code",
        "api error",
        "rejected",
        "http",
        "error code",
        "error:",
    ];
    let after = phrases.into_iter().flat_map(|phrase| {
        let matches = lower.match_indices(phrase);
        matches.map(|(at, phrase)| &lower[at + phrase.len()..])
    });
    let mut statuses = std::iter::once(lower.as_str())
        .chain(after)
        .filter_map(|after| {
            let after = after.trim_start_matches([':', ' ', '(', '=']);
            let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
            let ends = !after[digits.len()..].starts_with(|next: char| next.is_alphanumeric());
            (digits.len() == 3 && ends)
                .then(|| digits.parse().ok())
                .flatten()
        });
    statuses.next()
}

/// The class of the HTTP status that a text names, if any.
pub(crate) fn class_of_named_status(text: &str) -> Option<FailureClass> {
    status_in(text).and_then(class_of_status)
}
