//! Checks of request fields that need no lookup: length, range, name, path and enum value.
//!
//! Each check names the field as the proto spells it and fails with its own machine code. No value
//! is corrected silently. No check reads state, so a malformed request has no effect.

use baton_validation::limits as shared_limits;
use baton_validation::{InvalidPath, check_path};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::limits::{self, TextLimit};

/// A field that makes the request invalid, whatever the relay's state is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {why}")]
pub struct InvalidField {
    /// As the proto spells it, e.g. `spec.prompt`.
    pub field: String,
    pub why: InvalidReason,
}

/// What is wrong with a field. Each reason has its own machine code in `status.rs`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReason {
    #[error("is missing")]
    Missing,
    #[error("is blank")]
    Blank,
    #[error("is longer than {limit}")]
    TooLong { limit: TextLimit },
    #[error("has {items} items, more than {limit}")]
    TooMany { items: usize, limit: usize },
    #[error("is {value}, not within {low} to {high}")]
    OutOfRange { value: u64, low: u64, high: u64 },
    #[error("is not an id")]
    MalformedId,
    #[error("is not a valid name: {rule}")]
    MalformedName { rule: &'static str },
    #[error("has an invalid label: {rule}")]
    BadLabel { rule: &'static str },
    #[error("is not a valid path: {rule}")]
    BadPath { rule: &'static str },
    #[error("is not a SHA-256")]
    BadDigest,
    #[error("is not a valid time")]
    BadTime,
    #[error("contains a zero byte")]
    ZeroByte,
    /// Unknown values are refused, never replaced by a default.
    #[error("has the unknown value {number}")]
    UnknownEnumValue { number: i32 },
    #[error("cannot be combined with {with}")]
    Conflict { with: &'static str },
    #[error("contains a duplicate")]
    Duplicate,
    #[error("is not an answer that the question offers")]
    NotOffered,
    #[error("must be `once`: this agent cannot apply a permission to the whole attempt")]
    OnceOnly,
    /// Not issued by this relay to this tenant for this list.
    #[error("is not a page token of this list")]
    BadPageToken,
}

pub type ValidationResult<T> = Result<T, InvalidField>;

pub fn invalid_field(field: impl Into<String>, why: InvalidReason) -> InvalidField {
    InvalidField {
        field: field.into(),
        why,
    }
}

pub fn id<T: FromStr>(field: &str, text: &str) -> ValidationResult<T> {
    if text.is_empty() {
        return Err(invalid_field(field, InvalidReason::Missing));
    }
    text.parse()
        .map_err(|_| invalid_field(field, InvalidReason::MalformedId))
}

pub fn present<T>(field: &str, value: Option<T>) -> ValidationResult<T> {
    value.ok_or_else(|| invalid_field(field, InvalidReason::Missing))
}

/// The text may be empty. Zero bytes are refused because no argument, path or environment variable
/// can contain one.
pub fn text(field: &str, value: &str, limit: TextLimit) -> ValidationResult<()> {
    if !limit.allows(value) {
        return Err(invalid_field(field, InvalidReason::TooLong { limit }));
    }
    if value.contains('\0') {
        return Err(invalid_field(field, InvalidReason::ZeroByte));
    }
    Ok(())
}

pub fn not_blank(field: &str, value: &str, limit: TextLimit) -> ValidationResult<()> {
    text(field, value, limit)?;
    match value.trim() {
        "" if value.is_empty() => Err(invalid_field(field, InvalidReason::Missing)),
        "" => Err(invalid_field(field, InvalidReason::Blank)),
        _written => Ok(()),
    }
}

/// An empty text counts as absent; any other text must not be blank.
pub fn optional(field: &str, value: String, limit: TextLimit) -> ValidationResult<Option<String>> {
    if value.is_empty() {
        return Ok(None);
    }
    not_blank(field, &value, limit)?;
    Ok(Some(value))
}

pub fn count(field: &str, items: usize, limit: usize) -> ValidationResult<()> {
    if items > limit {
        return Err(invalid_field(
            field,
            InvalidReason::TooMany { items, limit },
        ));
    }
    Ok(())
}

pub fn in_range(field: &str, value: u64, range: &RangeInclusive<u64>) -> ValidationResult<u64> {
    if range.contains(&value) {
        return Ok(value);
    }
    let (low, high) = (*range.start(), *range.end());
    Err(invalid_field(
        field,
        InvalidReason::OutOfRange { value, low, high },
    ))
}

pub fn enumeration<E: TryFrom<i32>>(field: &str, number: i32) -> ValidationResult<E> {
    E::try_from(number)
        .map_err(|_| invalid_field(field, InvalidReason::UnknownEnumValue { number }))
}

/// Lower case, digits, `-`, `_` and `.`, beginning with a letter or digit: safe in keys, paths and
/// shells.
pub fn name(field: &str, value: &str, limit: TextLimit) -> ValidationResult<()> {
    not_blank(field, value, limit)?;
    let rule = "use a-z, 0-9, '-', '_' and '.', beginning with a letter or digit";
    shared_limits::is_name(value)
        .then_some(())
        .ok_or_else(|| invalid_field(field, InvalidReason::MalformedName { rule }))
}

/// A name that people choose (agents, tokens, daemons): anything without control characters.
pub fn title(field: &str, value: &str, limit: TextLimit) -> ValidationResult<()> {
    not_blank(field, value, limit)?;
    let rule = "use printable characters";
    if value.chars().any(char::is_control) {
        return Err(invalid_field(field, InvalidReason::MalformedName { rule }));
    }
    Ok(())
}

pub fn labels(
    field: &str,
    given: BTreeMap<String, String>,
) -> ValidationResult<BTreeMap<String, String>> {
    count(field, given.len(), limits::MAX_LABELS)?;
    for (key, value) in &given {
        label(field, key, value)?;
    }
    Ok(given.into_iter().collect())
}

fn label(field: &str, key: &str, value: &str) -> ValidationResult<()> {
    let bad = |rule| Err(invalid_field(field, InvalidReason::BadLabel { rule }));
    if !shared_limits::is_label_key(key) {
        return bad("a key has 1 to 63 of A-Z, a-z, 0-9, '-', '_', '.' and '/'");
    }
    if !shared_limits::is_label_value(value) {
        return bad("a value has at most 256 bytes and no control characters");
    }
    Ok(())
}

pub fn environment(
    field: &str,
    given: BTreeMap<String, String>,
) -> ValidationResult<BTreeMap<String, String>> {
    count(field, given.len(), limits::ENV_ITEMS)?;
    total(
        field,
        given.iter().map(|(k, v)| k.len() + v.len()),
        limits::ENV_BYTES,
    )?;
    for (key, value) in &given {
        let good = !key.is_empty()
            && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && !key.starts_with(|c: char| c.is_ascii_digit());
        let rule = "use A-Z, a-z, 0-9 and '_' in variable names, not beginning with a digit";
        if !good {
            return Err(invalid_field(field, InvalidReason::MalformedName { rule }));
        }
        text(field, value, TextLimit::Bytes(limits::ENV_BYTES))?;
    }
    Ok(given.into_iter().collect())
}

pub fn arguments(field: &str, argv: &[String]) -> ValidationResult<()> {
    count(field, argv.len(), limits::ARGV_ITEMS)?;
    total(field, argv.iter().map(String::len), limits::ARGV_BYTES)?;
    let Some(program) = argv.first() else {
        return Err(invalid_field(field, InvalidReason::Missing));
    };
    let limit = TextLimit::Bytes(limits::ARGV_BYTES);
    not_blank(field, program, limit)?;
    argv.iter()
        .try_for_each(|argument| text(field, argument, limit))
}

pub fn total(
    field: &str,
    sizes: impl Iterator<Item = usize>,
    limit: usize,
) -> ValidationResult<()> {
    if sizes.sum::<usize>() > limit {
        let limit = TextLimit::Bytes(limit);
        return Err(invalid_field(field, InvalidReason::TooLong { limit }));
    }
    Ok(())
}

/// A relative path below the workspace in its only valid spelling. The daemon resolves it again
/// with the kernel, because symbolic links are not visible here.
pub fn artifact_path(field: &str, path: &str) -> ValidationResult<()> {
    not_blank(field, path, limits::ARTIFACT_PATH)?;
    let bad = |fault: InvalidPath| {
        invalid_field(
            field,
            InvalidReason::BadPath {
                rule: fault.fix_hint(),
            },
        )
    };
    check_path(path).map_err(bad)
}

pub fn sha256_hex(field: &str, text: &str) -> ValidationResult<()> {
    shared_limits::is_sha256_hex(text)
        .then_some(())
        .ok_or_else(|| invalid_field(field, InvalidReason::BadDigest))
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use baton_core::ids::TaskId;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    const FEW: TextLimit = TextLimit::Bytes(4);

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).into(), (*v).into()))
            .collect()
    }

    #[test]
    fn valid_fields_pass() {
        id::<TaskId>("id", "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10").unwrap();
        not_blank("f", "Ünïcode ✓", TextLimit::Chars(9)).unwrap();
        assert_eq!(optional("f", String::new(), FEW), Ok(None));
        name("f", "gpu-2.x_y", limits::NAME).unwrap();
        labels("f", map(&[("team", "a b"), ("k8s.io/zone", "")])).unwrap();
        environment("f", map(&[("PATH", "/bin:/usr/bin"), ("_X1", "")])).unwrap();
        arguments("f", &["sh".into(), String::new()]).unwrap();
        artifact_path("f", "out/report.md").unwrap();
        sha256_hex("f", &"0a".repeat(32)).unwrap();
    }

    fn reason_of<T: std::fmt::Debug>(checked: ValidationResult<T>) -> InvalidReason {
        let fault = checked.expect_err("the check must fail");
        assert_eq!(fault.field, "f");
        fault.why
    }

    #[test]
    fn each_invalid_text_has_its_own_reason() {
        let long = "x".repeat(300);
        assert_eq!(reason_of(id::<TaskId>("f", "")), InvalidReason::Missing);
        for bad in [
            "0197C1DE-7A4E-7D61-9F3C-2F1F6F2C9A10",
            "../../etc/passwd",
            "0",
        ] {
            assert_eq!(
                reason_of(id::<TaskId>("f", bad)),
                InvalidReason::MalformedId
            );
        }
        assert_eq!(reason_of(not_blank("f", "", FEW)), InvalidReason::Missing);
        assert_eq!(
            reason_of(not_blank("f", " \t\n", FEW)),
            InvalidReason::Blank
        );
        assert_eq!(
            reason_of(not_blank("f", &long, FEW)),
            InvalidReason::TooLong { limit: FEW }
        );
        assert_eq!(reason_of(text("f", "a\0b", FEW)), InvalidReason::ZeroByte);
        for bad in ["Upper", "-x", "a b"] {
            assert!(matches!(
                reason_of(name("f", bad, limits::NAME)),
                InvalidReason::MalformedName { .. }
            ));
        }
        let escape = title("f", "a\x1b[2J", limits::NAME);
        assert!(matches!(
            reason_of(escape),
            InvalidReason::MalformedName { .. }
        ));
        for bad in ["/etc/passwd", "a/../../b", "C:\\x", "a//b", "."] {
            assert!(
                matches!(
                    reason_of(artifact_path("f", bad)),
                    InvalidReason::BadPath { .. }
                ),
                "{bad}"
            );
        }
        assert_eq!(reason_of(sha256_hex("f", "ABC")), InvalidReason::BadDigest);
    }

    #[test]
    fn each_invalid_number_and_collection_has_its_own_reason() {
        let (value, low, high) = (101, 0, 100);
        let range = InvalidReason::OutOfRange { value, low, high };
        assert_eq!(reason_of(in_range("f", value, &limits::PRIORITY)), range);
        for bad in [("bad key", "v"), ("", "v"), ("k", "a\nb")] {
            assert!(
                matches!(
                    reason_of(labels("f", map(&[bad]))),
                    InvalidReason::BadLabel { .. }
                ),
                "{bad:?}"
            );
        }
        let many = (0..65).map(|n| (n.to_string(), String::new())).collect();
        let (items, limit) = (65, 64);
        assert_eq!(
            reason_of(labels("f", many)),
            InvalidReason::TooMany { items, limit }
        );
        for bad in [("1X", ""), ("A=B", ""), ("", "")] {
            let shape = reason_of(environment("f", map(&[bad])));
            assert!(
                matches!(shape, InvalidReason::MalformedName { .. }),
                "{bad:?}"
            );
        }
        assert_eq!(reason_of(arguments("f", &[])), InvalidReason::Missing);
        assert_eq!(
            reason_of(arguments("f", &[" ".into()])),
            InvalidReason::Blank
        );
        let many = vec!["x".into(); 1025];
        assert!(matches!(
            reason_of(arguments("f", &many)),
            InvalidReason::TooMany { .. }
        ));
        let long = ["sh".into(), "x".repeat(limits::ARGV_BYTES)];
        assert!(matches!(
            reason_of(arguments("f", &long)),
            InvalidReason::TooLong { .. }
        ));
    }

    /// Builds valid and invalid paths from parts.
    fn path() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            4 => "[a-z0-9._ -]{1,8}",
            1 => Just(".".to_owned()),
            1 => Just("..".to_owned()),
            1 => Just(String::new()),
            1 => "\\PC{0,6}",
            1 => select(vec!["C:", "\\", "~", "a\\..\\b", "con", "a\0b"]).prop_map(str::to_owned),
        ];
        let parts = proptest::collection::vec(part, 0..6);
        (parts, any::<bool>()).prop_map(|(parts, rooted)| {
            let root = if rooted && parts.len() > 4 { "/" } else { "" };
            format!("{root}{}", parts.join("/"))
        })
    }

    /// The components after resolution as a kernel does it; none if the path leaves its directory.
    fn resolved(path: &str) -> Option<Vec<String>> {
        let mut components = Vec::new();
        for part in Path::new(path).components() {
            match part {
                Component::Normal(name) => components.push(name.to_string_lossy().into_owned()),
                Component::CurDir => {}
                Component::ParentDir => {
                    components.pop()?;
                }
                Component::RootDir | Component::Prefix(_) => return None,
            }
        }
        Some(components)
    }

    proptest! {
        #[test]
        fn a_valid_path_stays_below_the_workspace_and_is_normalized(path in path()) {
            if artifact_path("f", &path).is_ok() {
                let components = resolved(&path).expect("the path stays below the workspace");
                prop_assert!(components.join("/") == path, "not the only spelling");
                prop_assert!(!path.contains(['\0', '\\']));
            }
        }

        #[test]
        fn an_ordinary_path_passes(parts in proptest::collection::vec("[a-z0-9_-]{1,8}(\\.[a-z]{1,3})?", 1..6)) {
            prop_assert_eq!(artifact_path("f", &parts.join("/")), Ok(()));
        }
    }
}
