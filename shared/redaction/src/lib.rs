//! Redacts credentials in text that people, agents and programs write about their work. Relay
//! and daemon use the same redactor.
//!
//! Only unmistakable patterns are redacted. The name of a key must match as a whole name, and a
//! value is never redacted for being long and random: that would remove trace ids, digests and
//! token counts.

mod credential_patterns;

use std::borrow::Cow;
use std::sync::Arc;

use regex_lite::Captures;

use credential_patterns::{CREDENTIAL_PATTERNS, CredentialPattern};

const REDACTED: &str = "[redacted]";

/// The text without credentials. Borrowed if it contains none.
pub fn redact(text: &str) -> Cow<'_, str> {
    let lower = text.to_ascii_lowercase();
    let mut clean = Cow::Borrowed(text);
    for pattern in CREDENTIAL_PATTERNS.iter() {
        let has_keyword = pattern
            .keywords
            .iter()
            .any(|keyword| lower.contains(keyword));
        if has_keyword && contains_secret(pattern, &clean) {
            let redacted = pattern
                .expression
                .replace_all(&clean, |found: &Captures<'_>| redact_match(pattern, found));
            clean = Cow::Owned(redacted.into_owned());
        }
    }
    clean
}

fn contains_secret(pattern: &CredentialPattern, text: &str) -> bool {
    let mut found = pattern.expression.captures_iter(text);
    found.any(|found| is_secret(pattern, &found))
}

fn is_secret(pattern: &CredentialPattern, found: &Captures<'_>) -> bool {
    let secret = found.name("secret").or_else(|| found.get(0));
    let name = found.name("name").map_or("", |name| name.as_str());
    secret.is_some_and(|secret| {
        let value = unquoted(secret.as_str());
        !value.is_empty() && value != REDACTED && (pattern.is_secret)(name, value)
    })
}

/// The text around the secret stays, so that a reader sees what was removed.
fn redact_match(pattern: &CredentialPattern, found: &Captures<'_>) -> String {
    if !is_secret(pattern, found) {
        return found[0].to_owned();
    }
    let part = |name| found.name(name).map_or("", |part| part.as_str());
    format!("{}{REDACTED}{}", part("before"), part("behind"))
}

fn unquoted(value: &str) -> &str {
    value.trim_matches(['"', '\'', '\\'])
}

/// Redacts in place and returns whether the text changed.
pub fn redact_in_place(text: &mut Arc<str>) -> bool {
    match redact(text) {
        Cow::Borrowed(_) => false,
        Cow::Owned(clean) => {
            let changed = *clean != **text;
            *text = clean.into();
            changed
        }
    }
}

#[cfg(test)]
mod tests;
