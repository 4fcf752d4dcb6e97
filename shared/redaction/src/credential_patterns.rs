//! What credentials look like. An expression names the part that goes `secret` (without one, all of it goes), what stays
//! around it `before` and `behind`, and the name of a value `name`.

use std::sync::LazyLock;

use regex_lite::Regex;

/// One shape of a credential.
pub(crate) struct CredentialPattern {
    /// In lower case; without one of them the text has no such credential, which spares most texts the expression.
    pub(crate) keywords: &'static [&'static str],
    pub(crate) expression: Regex,
    /// Of what the expression finds: by the name of a value and the value, without its quotes.
    pub(crate) is_secret: fn(&str, &str) -> bool,
}

/// Names of secrets, whatever stands before them: `dbPassword`, `MYSQL_PASSWORD`, `x-api-key`, `jwtSecret`.
const SECRET_NAME_SUFFIXES: &str = "password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|\
    account[_-]?key|signing[_-]?key|encryption[_-]?key|\
    (?:access|refresh|session|auth|bearer|bot|api|github|gitlab|npm|slack|deploy|registry|vault)[_-]?token";
/// Names that are the end of another word as well.
const WHOLE_SECRET_NAMES: &str =
    "pwd|id[_-]?token|cookie|credentials?|(?-i:[A-Z0-9_]*[A-Z0-9]_PASS)";

/// A value: in quotes, in quotes that a string within a string escapes, in quotes that were cut off, or up to what ends a word.
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
    let mut shapes = private_key_blocks();
    shapes.extend(issued_tokens());
    shapes.extend(protocol_secrets());
    shapes.extend(named_values());
    shapes
});

fn credential_pattern(
    marks: &'static [&'static str],
    expression: &str,
    is_secret: fn(&str, &str) -> bool,
) -> CredentialPattern {
    CredentialPattern {
        keywords: marks,
        expression: Regex::new(expression).expect("the shapes are fixed"),
        is_secret,
    }
}

fn always_secret(_: &str, _: &str) -> bool {
    true
}

/// A block of a private key, also one that was cut short.
fn private_key_blocks() -> Vec<CredentialPattern> {
    let expression = "-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----(?s:.*?)\
        (?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|$)";
    vec![credential_pattern(
        &["private key"],
        expression,
        always_secret,
    )]
}

/// Our own credentials, and what the usual issuers give out.
fn issued_tokens() -> Vec<CredentialPattern> {
    vec![
        // A credential begins with an id in hexadecimal; without that it is the name of a button.
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

/// Where the protocol says that a secret comes next. The scheme and the user stay.
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

/// A value under a secret's name.
fn named_values() -> Vec<CredentialPattern> {
    let name = format!(
        "(?<name>(?:[a-z0-9]+[_.-])*(?:[a-z0-9]*(?:{SECRET_NAME_SUFFIXES})|{WHOLE_SECRET_NAMES}))"
    );
    let assigned =
        format!(r#"(?i)(?<before>\b{name}\\*["']?\s*=>?\s*)(?<secret>{VALUE_EXPRESSION})"#);
    // The last part of a path is no name of a value: /etc/passwd: missing.
    let told = format!(
        r#"(?i)(?<before>(?:^|[^a-z0-9_/]){name}\\*["']?\s*:=?\s*)(?<secret>{VALUE_EXPRESSION})"#
    );
    vec![
        credential_pattern(SECRET_NAME_KEYWORDS, &assigned, is_real_value),
        credential_pattern(SECRET_NAME_KEYWORDS, &told, is_real_value),
    ]
}

/// Whether a value is more than the word that there is one, or how many.
fn is_real_value(name: &str, value: &str) -> bool {
    const SAID: [&str; 10] = [
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
    let counted = name.ends_with("token") && value.bytes().all(|b| b.is_ascii_digit());
    // The variable of a shell.
    let place = name.ends_with("pwd") && value.starts_with(['/', '~', '.']);
    let hidden = value.bytes().all(|b| b == b'*') || value.starts_with("[redacted");
    !(counted || place || hidden || SAID.contains(&value.to_ascii_lowercase().as_str()))
}

fn has_digit(text: &str) -> bool {
    text.bytes().any(|b| b.is_ascii_digit())
}

/// `Bearer authentication`: letters only, and no more than a word has.
fn is_plain_word(text: &str) -> bool {
    const LONGEST: usize = 20;
    let word = text.trim_end_matches(['.', '-']);
    word.len() < LONGEST && word.bytes().skip(1).all(|b| b.is_ascii_lowercase())
}
