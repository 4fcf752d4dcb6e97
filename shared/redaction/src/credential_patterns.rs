//! Regular expressions of credentials. The group `secret` is redacted (without one, the whole
//! match), `before` and `behind` stay around it, and `name` is the name of an after_equals value.

use std::sync::LazyLock;

use regex_lite::Regex;

/// One kind of credential.
pub(crate) struct CredentialPattern {
    /// In lower case. A text without any of them cannot contain this credential, so most texts
    /// skip the expression.
    pub(crate) keywords: &'static [&'static str],
    pub(crate) expression: Regex,
    /// Decides whether a match is a secret, from the value's name and the value without quotes.
    pub(crate) is_secret: fn(&str, &str) -> bool,
}

/// Names of secrets, with any prefix: `dbPassword`, `MYSQL_PASSWORD`, `x-api-key`, `jwtSecret`.
const SECRET_NAME_SUFFIXES: &str = "password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|\
    account[_-]?key|signing[_-]?key|encryption[_-]?key|\
    (?:access|refresh|session|auth|bearer|bot|api|github|gitlab|npm|slack|deploy|registry|vault)[_-]?token";
/// Names that also end other words, so they only match as a whole.
const WHOLE_SECRET_NAMES: &str =
    "pwd|id[_-]?token|cookie|credentials?|(?-i:[A-Z0-9_]*[A-Z0-9]_PASS)";

/// A value: in quotes, in escaped quotes (a string within a string), in quotes that were cut
/// off, or up to the end of the word.
const VALUE_EXPRESSION: &str = r#"(?:\\"(?:[^"\\]|\\\\(?:\\"|\\\\|[^"\\]))*\\"|\\+"[^"\\]*|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|"[^"\n]*|'[^'\n]*|[^\s,;&"'\\]+)"#;

const SECRET_NAME_KEYWORDS: &[&str] = &[
    "passw",
    "pwd",
    "_pass",
    "passphrase",
    "secret",
    "key",
    "token",
    "cookie",
    "credential",
];

pub(crate) static CREDENTIAL_PATTERNS: LazyLock<Vec<CredentialPattern>> = LazyLock::new(|| {
    let mut patterns = private_key_blocks();
    patterns.extend(issued_tokens());
    patterns.extend(protocol_secrets());
    patterns.extend(named_values());
    patterns
});

fn credential_pattern(
    keywords: &'static [&'static str],
    expression: &str,
    is_secret: fn(&str, &str) -> bool,
) -> CredentialPattern {
    CredentialPattern {
        keywords,
        expression: Regex::new(expression).expect("the expressions are constant and valid"),
        is_secret,
    }
}

fn always_secret(_: &str, _: &str) -> bool {
    true
}

/// A private key block, also one that was cut off.
fn private_key_blocks() -> Vec<CredentialPattern> {
    let expression = "-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----(?s:.*?)\
        (?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|$)";
    vec![credential_pattern(
        &["private key"],
        expression,
        always_secret,
    )]
}

/// Baton's own credentials, and those of common issuers.
fn issued_tokens() -> Vec<CredentialPattern> {
    vec![
        // A credential begins with a hexadecimal id. Without it, `btn_` is the name of a
        // button.
        credential_pattern(
            &["btn_"],
            r"\b(?<before>btn_)(?<secret>[0-9a-f]{16}[A-Za-z0-9_-]*)",
            always_secret,
        ),
        credential_pattern(
            &["rlt_"],
            r"\b(?<before>rlt_)(?<secret>[A-Za-z0-9_-]{16,})",
            always_secret,
        ),
        credential_pattern(
            &["eyj"],
            r"\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]*",
            always_secret,
        ),
        credential_pattern(
            &["akia", "asia"],
            r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
            always_secret,
        ),
        credential_pattern(&["sk-"], r"\bsk-[A-Za-z0-9_-]{20,}", |_, key| {
            has_digit(key)
        }),
        credential_pattern(
            &["_live_", "_test_"],
            r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
            always_secret,
        ),
        credential_pattern(
            &["gh", "github_pat_"],
            r"\b(?:gh[opsru]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})",
            always_secret,
        ),
        credential_pattern(
            &["gl"],
            r"\bgl(?:pat|ptt|rt|dt|ft|soat|cbt|imt|agent)-[A-Za-z0-9_-]{16,}",
            |_, token| has_digit(token),
        ),
        credential_pattern(
            &["xox", "xapp-"],
            r"\b(?:xox[abeprs](?:\.xox[bp])?|xapp)-[A-Za-z0-9-]{10,}",
            always_secret,
        ),
        credential_pattern(&["npm_"], r"\bnpm_[A-Za-z0-9]{30,}\b", always_secret),
        credential_pattern(
            &["aiza", "ya29."],
            r"\b(?:AIza[0-9A-Za-z_-]{30,}|ya29\.[0-9A-Za-z_-]{20,})",
            always_secret,
        ),
        credential_pattern(&["hf_"], r"\bhf_[A-Za-z0-9]{30,}\b", always_secret),
        credential_pattern(&["pypi-"], r"\bpypi-[A-Za-z0-9_-]{50,}", always_secret),
        credential_pattern(
            &["sg."],
            r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
            always_secret,
        ),
        credential_pattern(&["dop_v1_"], r"\bdop_v1_[0-9a-f]{32,}", always_secret),
    ]
}

/// Secrets whose position a protocol defines. The scheme and the user name stay.
fn protocol_secrets() -> Vec<CredentialPattern> {
    vec![
        credential_pattern(
            &["bearer"],
            r"(?i)\b(?<before>bearer\s+)(?<secret>[A-Za-z0-9._~+/=-]{8,})",
            |_, token| !is_plain_word(token),
        ),
        credential_pattern(
            &["authorization"],
            r#"(?i)\b(?<before>authorization\\*["']?\s*[:=]\s*\\*["']?(?:[a-z]+\s+)?)(?<secret>[A-Za-z0-9._~+/=-]{8,})"#,
            |_, token| !is_plain_word(token),
        ),
        credential_pattern(
            &["cookie"],
            r#"(?i)\b(?<before>(?:set-)?cookie\\*["']?\s*:\s*\\*["']?)(?<secret>[a-z0-9_.-]+=[^\r\n"'\\]+)"#,
            always_secret,
        ),
        // Also a connection string: postgres://user:password@host.
        credential_pattern(
            &["://"],
            r#"(?<before>[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@"'<>]*:)(?<secret>[^\s/"'<>]+)(?<behind>@)"#,
            always_secret,
        ),
        credential_pattern(
            &["@tcp(", "@unix("],
            r"(?<before>\b[A-Za-z0-9_.-]+:)(?<secret>[^\s/@:]+)(?<behind>@(?:tcp|unix)\()",
            always_secret,
        ),
    ]
}

/// Values that are after_equals to the name of a secret.
fn named_values() -> Vec<CredentialPattern> {
    let name = format!(
        "(?<name>(?:[a-z0-9]+[_.-])*(?:[a-z0-9]*(?:{SECRET_NAME_SUFFIXES})|{WHOLE_SECRET_NAMES}))"
    );
    let after_equals =
        format!(r#"(?i)(?<before>\b{name}\\*["']?\s*=>?\s*)(?<secret>{VALUE_EXPRESSION})"#);
    // The last part of a path is not the name of a value: `/etc/passwd: missing`.
    let after_colon = format!(
        r#"(?i)(?<before>(?:^|[^a-z0-9_/]){name}\\*["']?\s*:=?\s*)(?<secret>{VALUE_EXPRESSION})"#
    );
    vec![
        credential_pattern(SECRET_NAME_KEYWORDS, &after_equals, is_real_value),
        credential_pattern(SECRET_NAME_KEYWORDS, &after_colon, is_real_value),
    ]
}

/// Whether the value is a secret itself and not a flag, a count or a placeholder.
fn is_real_value(name: &str, value: &str) -> bool {
    const FLAG_WORDS: [&str; 10] = [
        "true",
        "false",
        "null",
        "none",
        "nil",
        "yes",
        "no",
        "undefined",
        "required",
        "optional",
    ];
    let name = name.to_ascii_lowercase();
    let is_count = name.ends_with("token") && value.bytes().all(|b| b.is_ascii_digit());
    // The shell variables PWD and OLDPWD.
    let is_directory = name.ends_with("pwd") && value.starts_with(['/', '~', '.']);
    let is_placeholder = value.bytes().all(|b| b == b'*') || value.starts_with("[redacted");
    !(is_count
        || is_directory
        || is_placeholder
        || FLAG_WORDS.contains(&value.to_ascii_lowercase().as_str()))
}

fn has_digit(text: &str) -> bool {
    text.bytes().any(|b| b.is_ascii_digit())
}

/// Whether the text is a short word of letters only, as in `Bearer authentication`.
fn is_plain_word(text: &str) -> bool {
    const LONGEST: usize = 20;
    let word = text.trim_end_matches(['.', '-']);
    word.len() < LONGEST && word.bytes().skip(1).all(|b| b.is_ascii_lowercase())
}
