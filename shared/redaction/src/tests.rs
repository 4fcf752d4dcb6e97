//! Both directions: every credential is redacted in any context, and everything else stays
//! unchanged.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

#[test]
fn credentials_are_redacted_in_any_text() {
    let jwt =
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U";
    for secret in [
        jwt,
        "AKIAIOSFODNN7EXAMPLE",
        "sk-ant-api03-0123456789abcdefghij",
        "sk-proj-0123456789abcdefghij",
        "sk_live_0123456789abcdefghij",
        "ghp_0123456789abcdefghij0123",
        "github_pat_11AAAAAAA0aaaaaaaaaaaa_bbbbbbbbbbbb",
        "glpat-abcdefghij0123456789",
        "xoxb-1234567890-abcdefghij",
        "xapp-1-A0123456789-abcdef",
        "npm_abcdefghijklmnopqrstuvwxyz0123456789",
        "AIzaSyA0123456789abcdefghijklmnopqrstuv",
        "hf_abcdefghijklmnopqrstuvwxyz01234567",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
        r"-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nlQ\n-----END PGP PRIVATE KEY BLOCK-----",
        "-----BEGIN PRIVATE KEY-----\ncut sho",
    ] {
        let text = format!("é before {secret} after");
        let clean = redact(&text);
        assert!(!clean.contains(secret), "{clean}");
        assert!(clean.starts_with("é before [redacted]"), "{clean}");
    }
}

#[test]
fn text_around_a_credential_stays() {
    for (text, clean) in [
        ("password=hunter2 next", "password=[redacted] next"),
        ("DB_PASSWORD: 'two text'; x", "DB_PASSWORD: [redacted]; x"),
        ("dbPassword: hunter2, x", "dbPassword: [redacted], x"),
        ("DB_PASS=hunter2", "DB_PASS=[redacted]"),
        (
            "MYSQL_ROOT_PASSWORD=a b",
            "MYSQL_ROOT_PASSWORD=[redacted] b",
        ),
        ("export NPM_TOKEN=abcdef", "export NPM_TOKEN=[redacted]"),
        ("client_secret => 'x'", "client_secret => [redacted]"),
        (r#"{"api_key": "abc"}"#, r#"{"api_key": [redacted]}"#),
        (r#"{"pass\"word": "x"}"#, r#"{"pass\"word": "x"}"#),
        (
            r#"{"password": "a\"b", "n": 1}"#,
            r#"{"password": [redacted], "n": 1}"#,
        ),
        (
            r#"{"body": "{\"password\":\"hunter2\",\"n\":1}"}"#,
            r#"{"body": "{\"password\":[redacted],\"n\":1}"}"#,
        ),
        (
            r#""{\"clientSecret\": \"a\\\"b\", \"n\": 1}""#,
            r#""{\"clientSecret\": [redacted], \"n\": 1}""#,
        ),
        (r#"{"password": "cut sho"#, r#"{"password": [redacted]"#),
        (
            "Authorization: Bearer abc.def.ghi",
            "Authorization: Bearer [redacted]",
        ),
        (
            r#"{"Authorization": "Basic dXNlcjpwYXNz"}"#,
            r#"{"Authorization": "Basic [redacted]"}"#,
        ),
        ("Cookie: a=b; sid=c\nnext", "Cookie: [redacted]\nnext"),
        (
            "?access_token=xyz&page=2",
            "?access_token=[redacted]&page=2",
        ),
        (
            "clone https://ada:hunter2@example.com/x.git now",
            "clone https://ada:[redacted]@example.com/x.git now",
        ),
        (
            "postgres://u:p@ss@db:5432/x",
            "postgres://u:[redacted]@db:5432/x",
        ),
        ("redis://:hunter2@cache/0", "redis://:[redacted]@cache/0"),
        (
            "ada:hunter2@tcp(db:3306)/x",
            "ada:[redacted]@tcp(db:3306)/x",
        ),
        (
            "Server=db;User Id=sa;Password=hunter2;Encrypt=true",
            "Server=db;User Id=sa;Password=[redacted];Encrypt=true",
        ),
        (
            "AccountName=a;AccountKey=YWJj+/==;EndpointSuffix=x",
            "AccountName=a;AccountKey=[redacted];EndpointSuffix=x",
        ),
        ("btn_0123456789abcdefXY", "btn_[redacted]"),
        ("rlt_AAAAAAAAAAAAAAAAAAAA\nend", "rlt_[redacted]\nend"),
    ] {
        assert_eq!(redact(text), clean);
    }
}

#[test]
fn ids_digests_counts_and_names_stay() {
    for text in [
        "trace 4bf92f3577b34da6a3ce929d0e0e4736 span 00f067aa0ba902b7",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "input_tokens=1234 output_tokens: 5, token count 17, tokens=9",
        r#"{"input_tokens": 123, "cache_read_input_tokens": 4}"#,
        "next_page_token=abc, page_token: def, cancel_token: x",
        "session_token: 12",
        "author: Ada, authority=x, secretary=yes, keyboard: de, primary_key: id, monkey=1",
        "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10",
        "the password policy is in docs/passwords.md",
        "hasPassword: true, requirePassword=false, password: null, api_key: \"\"",
        "skill-set and sk-short and sk-learn-contrib-models-and-more",
        "npm_config_user_agent npm_lifecycle_event=test",
        "glide-path and ghost_writer and xoxo-kisses",
        "PWD=/home/ada/work OLDPWD=/tmp",
        "Bearer authentication, bearer tokens and a standard-bearer",
        "git@github.com:ada/x.git ssh://git@example.com/x https://example.com:8080/a@b",
        "http://example.com/?q=a:b@c see 12:30@noon",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        "out/etc/passwd: it leads out of the workspace",
        "ui/btn_primary_outline_large.tsx, btn_0123, btn_short",
        "password=******** secret: [redacted]",
    ] {
        assert!(
            matches!(redact(text), Cow::Borrowed(_)),
            "{text}: {}",
            redact(text)
        );
    }
}

#[test]
fn redacting_twice_changes_nothing() {
    let once = redact(
        "password=hunter2 Bearer abcdefgh12 btn_0123456789abcdefXY https://a:b@c/ {\"secret\":\"x\"}",
    );
    let once = once.into_owned();
    assert_eq!(redact(&once), once);
}

/// Names of secrets in every spelling.
fn secret_name() -> impl Strategy<Value = String> {
    let stem = select(vec![
        "password",
        "passwd",
        "passphrase",
        "secret",
        "client_secret",
        "api_key",
        "access_key",
        "private_key",
        "auth_token",
        "refresh_token",
    ]);
    let prefix = select(vec!["", "db", "my_app", "x"]);
    (prefix, stem, 0..4_u8).prop_map(|(prefix, stem, spelling)| match spelling {
        0 if prefix.is_empty() => stem.to_owned(),
        0 => format!("{prefix}_{stem}"),
        1 if prefix.is_empty() => stem.to_uppercase(),
        1 => format!("{prefix}_{stem}").to_uppercase(),
        2 => format!("{prefix}-{stem}")
            .replace('_', "-")
            .trim_start_matches('-')
            .to_owned(),
        _ => camel(&format!("{prefix}_{stem}")),
    })
}

fn camel(name: &str) -> String {
    let mut parts = name.split('_').filter(|part| !part.is_empty());
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |name, part| {
        let (head, tail) = part.split_at(1);
        name + &head.to_uppercase() + tail
    })
}

/// A name and its value in one of several syntaxes.
fn place_secret(name: &str, value: &str, how: u8) -> String {
    match how {
        0 => format!("{name}={value}"),
        1 => format!("{name}: {value}"),
        2 => format!("{name} = \"{value}\""),
        3 => format!("{{\"{name}\":\"{value}\"}}"),
        4 => format!(r#"{{\"{name}\":\"{value}\"}}"#),
        5 => format!(r#"{{\"{name}\": \"{value}\", \"n\": 1}}"#),
        6 => format!("{name}: '{value}'"),
        _ => format!("?{name}={value}&page=2"),
    }
}

/// Words, numbers, ids and digests as reports contain them.
fn ordinary_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,12}",
        "[A-Z][a-z]{1,8}",
        "[0-9]{1,6}",
        "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-9[0-9a-f]{3}-[0-9a-f]{12}",
        "[0-9a-f]{32}",
        "[0-9a-f]{40}",
        "sha256:[0-9a-f]{64}",
        "00-[0-9a-f]{32}-[0-9a-f]{16}-01",
        "(input|output|cache_read|total)_tokens(: |=)[0-9]{1,7}",
        "(duration|attempt|exit_code|bytes)(: |=)[0-9]{1,7}",
        "[a-z]{1,6}/[a-z]{1,6}\\.(rs|md|tsx)",
        "https://[a-z]{3,8}\\.example/[a-z0-9]{1,8}",
        "btn_[a-z]{1,10}_[g-z]{1,10}",
    ]
}

proptest! {
    #[test]
    fn a_value_named_as_a_secret_is_redacted_in_any_syntax(
        name in secret_name(),
        value in "[A-Za-z0-9+/!#%]{4,12}[G-Z][0-9]{4}x",
        how in 0..8_u8,
        before in ordinary_text(),
    ) {
        let text = format!("{before} {} end", place_secret(&name, &value, how));
        let clean = redact(&text);
        prop_assert!(!clean.contains(&value), "{text} -> {clean}");
        prop_assert!(clean.contains(&name) && clean.starts_with(&before), "{clean}");
        prop_assert!(clean.ends_with(" end"), "{clean}");
        prop_assert_eq!(redact(&clean), clean.clone());
    }

    #[test]
    fn a_password_in_a_url_is_redacted(
        scheme in select(vec!["https", "postgres", "amqp", "mongodb+srv", "redis"]),
        user in "[a-z]{0,6}",
        value in "[A-Za-z0-9!#%:.-]{3,12}[G-Z][0-9]{3}x",
    ) {
        let text = format!("see {scheme}://{user}:{value}@db.example:5432/x?y=1 end");
        let clean = redact(&text);
        let left = format!("see {scheme}://{user}:[redacted]@db.example:5432/x?y=1 end");
        prop_assert_eq!(clean, left);
    }

    #[test]
    fn ordinary_text_stays(parts in proptest::collection::vec(ordinary_text(), 1..12)) {
        let text = parts.join(" ");
        let clean = redact(&text);
        prop_assert!(matches!(clean, Cow::Borrowed(_)), "{text} -> {clean}");
    }

    #[test]
    fn redaction_of_any_text_is_idempotent(text in "\\PC{0,64}(password|Bearer |\\\\\"secret\\\\\":|://a:)\\PC{0,64}") {
        let once = redact(&text).into_owned();
        prop_assert_eq!(redact(&once), once.clone());
    }
}
