//! Takes what looks like a credential out of words that people, agents and programs write about their work. One redactor for
//! relay and daemon.
//!
//! Only shapes that are credentials beyond doubt: a key's name must be a whole name, and nothing is taken for being long
//! and random, or trace ids, digests and token counts would go too.

mod credential_patterns;

use std::borrow::Cow;
use std::sync::Arc;

use regex_lite::Captures;

use credential_patterns::{CREDENTIAL_PATTERNS, CredentialPattern};

const REDACTED: &str = "[redacted]";

/// The words without credentials; borrowed where there are none.
pub fn redact(words: &str) -> Cow<'_, str> {
    let lower = words.to_ascii_lowercase();
    let mut clean = Cow::Borrowed(words);
    for shape in CREDENTIAL_PATTERNS.iter() {
        let marked = shape.keywords.iter().any(|mark| lower.contains(mark));
        if marked && contains_secret(shape, &clean) {
            let gone = shape
                .expression
                .replace_all(&clean, |found: &Captures<'_>| redact_match(shape, found));
            clean = Cow::Owned(gone.into_owned());
        }
    }
    clean
}

fn contains_secret(shape: &CredentialPattern, words: &str) -> bool {
    let mut found = shape.expression.captures_iter(words);
    found.any(|found| is_secret(shape, &found))
}

fn is_secret(shape: &CredentialPattern, found: &Captures<'_>) -> bool {
    let secret = found.name("secret").or_else(|| found.get(0));
    let name = found.name("name").map_or("", |name| name.as_str());
    secret.is_some_and(|secret| {
        let value = unquoted(secret.as_str());
        !value.is_empty() && value != REDACTED && (shape.is_secret)(name, value)
    })
}

/// What stood before and behind the secret stays: it tells a reader what was here.
fn redact_match(shape: &CredentialPattern, found: &Captures<'_>) -> String {
    if !is_secret(shape, found) {
        return found[0].to_owned();
    }
    let part = |name| found.name(name).map_or("", |part| part.as_str());
    format!("{}{REDACTED}{}", part("before"), part("behind"))
}

fn unquoted(value: &str) -> &str {
    value.trim_matches(['"', '\'', '\\'])
}

/// In place; says whether something went.
pub fn redact_in_place(words: &mut Arc<str>) -> bool {
    match redact(words) {
        Cow::Borrowed(_) => false,
        Cow::Owned(clean) => {
            let changed = *clean != **words;
            *words = clean.into();
            changed
        }
    }
}

#[cfg(test)]
mod tests;
