//! How much of everything a client may say. One truth: the relay refuses by these, and what a client is shown before it asks
//! (the schemas of agents' tools) is made from them.

use std::fmt;

/// How much text a field takes: bytes of UTF-8 where machines read it, characters where people do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextLimit {
    Bytes(usize),
    Chars(usize),
}

impl TextLimit {
    pub fn allows(self, text: &str) -> bool {
        match self {
            TextLimit::Bytes(limit) => text.len() <= limit,
            // A character has at most four bytes, so most texts need no counting.
            TextLimit::Chars(limit) => text.len() <= limit || text.chars().count() <= limit,
        }
    }

    /// The number, of whatever is counted. No text that fits has more characters.
    pub const fn limit(self) -> usize {
        match self {
            TextLimit::Bytes(limit) | TextLimit::Chars(limit) => limit,
        }
    }
}

impl fmt::Display for TextLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextLimit::Bytes(limit) => write!(f, "{limit} bytes"),
            TextLimit::Chars(limit) => write!(f, "{limit} characters"),
        }
    }
}

pub const PROMPT: TextLimit = TextLimit::Bytes(1024 * 1024);
pub const GOAL: TextLimit = TextLimit::Chars(4096);
/// Agent names and scopes, models, efforts, permission modes, daemon names.
pub const NAME: TextLimit = TextLimit::Bytes(256);
/// conversation_id, channel_id, an agent's own id of its conversation.
pub const EXTERNAL_ID: TextLimit = TextLimit::Bytes(256);
pub const REASON: TextLimit = TextLimit::Chars(2048);
/// What a holder says of a failure.
pub const MESSAGE: TextLimit = TextLimit::Chars(4096);
pub const IDEMPOTENCY_KEY: TextLimit = TextLimit::Bytes(256);
pub const SUCCESS_CRITERION: TextLimit = TextLimit::Chars(1024);
pub const SUMMARY: TextLimit = TextLimit::Chars(8192);
pub const CURSOR: TextLimit = TextLimit::Chars(2048);
/// A completed or failed item.
pub const ITEM: TextLimit = TextLimit::Chars(1024);
pub const ITEM_REASON: TextLimit = TextLimit::Chars(1024);
pub const EVIDENCE_KIND: TextLimit = TextLimit::Bytes(64);
pub const EVIDENCE_REF: TextLimit = TextLimit::Chars(2048);
pub const EVIDENCE_SUMMARY: TextLimit = TextLimit::Chars(1024);
pub const STATE_REF: TextLimit = TextLimit::Bytes(1024);
pub const PAGE_TOKEN: TextLimit = TextLimit::Bytes(512);

pub const MAX_LABELS: usize = 64;
pub const LABEL_KEY: TextLimit = TextLimit::Bytes(63);
pub const LABEL_VALUE: TextLimit = TextLimit::Bytes(256);
pub const MAX_SUCCESS_CRITERIA: usize = 50;
/// Items of one update; as many as a task keeps.
pub const MAX_ITEMS: usize = 500;
pub const MAX_EVIDENCE: usize = 50;
pub const MAX_STATE_REFS: usize = 64;
/// States, or causes, that a list is filtered by.
pub const MAX_FILTER_STATES: usize = 32;
pub const PAGE_MAX: u32 = 200;
/// The largest size that a required file may be asked to have. Larger numbers are no integers to some readers of JSON schemas.
pub const MAX_FILE_BYTES: u64 = 1 << 50;

/// The shortest lease, and the longest where a relay is not told otherwise.
pub const LEASE_TTL_MIN_MS: u64 = 5_000;
pub const LEASE_TTL_MAX_MS: u64 = 24 * 60 * 60 * 1_000;

/// 1 to 63 of A-Z, a-z, 0-9, '-', '_', '.' and '/'.
pub fn is_label_key(key: &str) -> bool {
    let body = |b: u8| b.is_ascii_alphanumeric() || b"-_./".contains(&b);
    !key.is_empty() && LABEL_KEY.allows(key) && key.bytes().all(body)
}

pub fn is_label_value(value: &str) -> bool {
    LABEL_VALUE.allows(value) && !value.chars().any(char::is_control)
}

/// Lower case, digits, `-`, `_` and `.`, beginning with a letter or digit: safe in keys, paths and shells.
pub fn is_name(name: &str) -> bool {
    let body = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b);
    let first = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    name.bytes().next().is_some_and(first) && name.bytes().all(body)
}

/// 64 digits in lower case.
pub fn is_sha256_hex(text: &str) -> bool {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == 64 && text.bytes().all(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_characters_are_counted_as_they_say() {
        assert!(TextLimit::Bytes(4).allows("éé") && !TextLimit::Bytes(3).allows("éé"));
        assert!(TextLimit::Chars(2).allows("éé") && !TextLimit::Chars(1).allows("éé"));
        assert_eq!(TextLimit::Bytes(3).to_string(), "3 bytes");
        assert_eq!(TextLimit::Chars(3).to_string(), "3 characters");
    }

    #[test]
    fn words_for_machines_have_one_spelling() {
        assert!(is_label_key("k8s.io/Zone_1") && !is_label_key("") && !is_label_key("a b"));
        assert!(is_label_value("") && is_label_value("a b") && !is_label_value("a\nb"));
        assert!(is_name("gpu-2.x_y") && !is_name("") && !is_name("-x") && !is_name("Upper"));
        assert!(is_sha256_hex(&"0a".repeat(32)) && !is_sha256_hex(&"0A".repeat(32)));
    }
}
