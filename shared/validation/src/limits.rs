//! Limits of the fields that clients send. The relay rejects requests with these values, and
//! the schemas of the agents' tools are generated from them, so both agree.

use std::fmt;

/// The length limit of a text field: bytes of UTF-8 for fields that machines read, characters
/// for fields that people read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextLimit {
    Bytes(usize),
    Chars(usize),
}

impl TextLimit {
    pub fn allows(self, text: &str) -> bool {
        match self {
            TextLimit::Bytes(limit) => text.len() <= limit,
            // A text has at least as many bytes as characters, so most texts need no counting.
            TextLimit::Chars(limit) => text.len() <= limit || text.chars().count() <= limit,
        }
    }

    /// The number alone, without its unit. A text that fits never has more characters than
    /// this.
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
/// The message of a failure, as the holder reports it.
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
/// Items of one update. A task keeps the same number.
pub const MAX_ITEMS: usize = 500;
pub const MAX_EVIDENCE: usize = 50;
pub const MAX_STATE_REFS: usize = 64;
/// States or causes in the filter of a list.
pub const MAX_FILTER_STATES: usize = 32;
pub const PAGE_MAX: u32 = 200;
/// The largest minimum size that a required file may have. Some JSON schema readers cannot
/// represent larger numbers as integers.
pub const MAX_FILE_BYTES: u64 = 1 << 50;

/// The shortest lease, and the longest one unless the relay's configuration sets another.
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

/// Lower case letters, digits, `-`, `_` and `.`, beginning with a letter or digit. Such a name
/// is safe in keys, paths and shells.
pub fn is_name(name: &str) -> bool {
    let body = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b);
    let first = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    name.bytes().next().is_some_and(first) && name.bytes().all(body)
}

/// 64 hexadecimal digits in lower case.
pub fn is_sha256_hex(text: &str) -> bool {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == 64 && text.bytes().all(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_limits_count_bytes_or_characters() {
        assert!(TextLimit::Bytes(4).allows("éé") && !TextLimit::Bytes(3).allows("éé"));
        assert!(TextLimit::Chars(2).allows("éé") && !TextLimit::Chars(1).allows("éé"));
        assert_eq!(TextLimit::Bytes(3).to_string(), "3 bytes");
        assert_eq!(TextLimit::Chars(3).to_string(), "3 characters");
    }

    #[test]
    fn labels_names_and_hashes_are_checked() {
        assert!(is_label_key("k8s.io/Zone_1") && !is_label_key("") && !is_label_key("a b"));
        assert!(is_label_value("") && is_label_value("a b") && !is_label_value("a\nb"));
        assert!(is_name("gpu-2.x_y") && !is_name("") && !is_name("-x") && !is_name("Upper"));
        assert!(is_sha256_hex(&"0a".repeat(32)) && !is_sha256_hex(&"0A".repeat(32)));
    }
}
