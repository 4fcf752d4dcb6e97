//! Takes what looks like a credential out of words that people and agents write about their work.
//!
//! Only shapes that are credentials beyond doubt: a key's name must be a whole name, and nothing is taken for being long
//! and random, or trace ids, digests and token counts would go too.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use regex_lite::Regex;

const GONE: &str = "[redacted]";

/// One shape of a credential.
struct Shape {
    /// In lower case; without one of them the text has no such credential, which spares most texts the expression.
    marks: &'static [&'static str],
    expression: Regex,
    /// What stays of it; the rest goes.
    stays: &'static str,
}

static SHAPES: LazyLock<Vec<Shape>> = LazyLock::new(|| {
    let names = "password|passwd|pwd|passphrase|secret|client[_-]?secret|api[_-]?key|access[_-]?key|secret[_-]?key|\
                 private[_-]?key|(?:access|refresh|id|session|auth|bearer)[_-]?token|cookie|credentials?";
    let value = r#"(?:"[^"]*"|'[^']*'|[^\s,;&"']+)"#;
    let assigned = format!(r#"(?i)\b((?:[a-z0-9]+[_-])*(?:{names})["']?\s*=\s*){value}"#);
    // The last part of a path is no name of a value: /etc/passwd: missing.
    let told =
        format!(r#"(?i)((?:^|[^a-z0-9_/])(?:[a-z0-9]+[_-])*(?:{names})["']?\s*:\s*){value}"#);
    let shape = |marks, expression: &str, stays| Shape {
        marks,
        expression: Regex::new(expression).expect("the shapes are fixed"),
        stays,
    };
    vec![
        // A block of a private key, also one that was cut short.
        shape(
            &["private key-----"],
            "-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
            GONE,
        ),
        // Our own credentials, and what the usual issuers give out.
        shape(
            // A credential begins with an id in hexadecimal; without that it is the name of a button.
            &["btn_", "rlt_"],
            r"\b(?:(btn_)[0-9a-f]{16}[A-Za-z0-9_-]*|(rlt_)[A-Za-z0-9_-]{16,})",
            "${1}${2}[redacted]",
        ),
        shape(
            &["eyj"],
            r"\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]*",
            GONE,
        ),
        shape(&["akia", "asia"], r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b", GONE),
        shape(&["sk-"], r"\bsk-[A-Za-z0-9_-]{20,}", GONE),
        shape(
            &["gh", "xox"],
            r"\b(?:gh[opsru]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|xox[abprs]-[A-Za-z0-9-]{10,})",
            GONE,
        ),
        // The scheme and the name stay: they tell a reader what was here.
        shape(
            &["bearer"],
            r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}",
            "${1}[redacted]",
        ),
        shape(
            &["authorization"],
            r"(?i)\b(authorization\s*[:=]\s*(?:[a-z]+\s+)?)[A-Za-z0-9._~+/=-]{8,}",
            "${1}[redacted]",
        ),
        shape(&["="], &assigned, "${1}[redacted]"),
        shape(&[":"], &told, "${1}[redacted]"),
    ]
});

/// The words without credentials; borrowed where there are none.
pub fn without(words: &str) -> Cow<'_, str> {
    let lower = words.to_ascii_lowercase();
    let mut clean = Cow::Borrowed(words);
    for shape in SHAPES.iter() {
        let marked = shape.marks.iter().any(|mark| lower.contains(mark));
        if marked && shape.expression.is_match(&clean) {
            let gone = shape.expression.replace_all(&clean, shape.stays);
            clean = Cow::Owned(gone.into_owned());
        }
    }
    clean
}

/// In place; says whether something went.
pub fn remove(words: &mut Arc<str>) -> bool {
    match without(words) {
        Cow::Borrowed(_) => false,
        Cow::Owned(clean) => {
            let changed = *clean != **words;
            *words = clean.into();
            changed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_go_wherever_they_stand() {
        let jwt =
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U";
        for secret in [
            jwt,
            "AKIAIOSFODNN7EXAMPLE",
            "sk-ant-api03-0123456789abcdefghij",
            "ghp_0123456789abcdefghij0123",
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN PRIVATE KEY-----\ncut sho",
        ] {
            let words = format!("é before {secret} after");
            let clean = without(&words);
            assert!(!clean.contains(secret), "{clean}");
            assert!(clean.starts_with("é before [redacted]"), "{clean}");
        }
        for (words, clean) in [
            ("password=hunter2 next", "password=[redacted] next"),
            ("DB_PASSWORD: 'two words'; x", "DB_PASSWORD: [redacted]; x"),
            (r#"{"api_key": "abc"}"#, r#"{"api_key": [redacted]}"#),
            (
                "Authorization: Bearer abc.def.ghi",
                "Authorization: Bearer [redacted]",
            ),
            (
                "?access_token=xyz&page=2",
                "?access_token=[redacted]&page=2",
            ),
            ("btn_0123456789abcdefXY", "btn_[redacted]"),
            (
                "ui/btn_primary_outline_large.tsx",
                "ui/btn_primary_outline_large.tsx",
            ),
        ] {
            assert_eq!(without(words), clean);
        }
    }

    #[test]
    fn ids_digests_counts_and_names_stay() {
        for words in [
            "trace 4bf92f3577b34da6a3ce929d0e0e4736 span 00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "input_tokens=1234 output_tokens: 5, token count 17, tokens=9",
            "author: Ada, authority=x, secretary=yes, keyboard: de",
            "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10",
            "the password policy is in docs/passwords.md",
            "skill-set and sk-short",
            "out/etc/passwd: it leads out of the workspace",
        ] {
            assert!(
                matches!(without(words), Cow::Borrowed(_)),
                "{words}: {}",
                without(words)
            );
        }
    }

    #[test]
    fn what_was_cleaned_once_stays_as_it_is() {
        let once =
            without("password=hunter2 Bearer abcdefgh12 btn_0123456789abcdefXY").into_owned();
        assert_eq!(without(&once), once);
    }
}
