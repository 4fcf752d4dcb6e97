//! The paths that a completion contract may name: relative paths in one canonical spelling.
//! This check rejects paths that must leave the workspace. The daemon resolves links with the
//! kernel, which decides where a path really leads.

use std::fmt;

/// Number of required files in one contract.
pub const PATHS_MAX: usize = 64;
/// Length of one path in bytes.
pub const PATH_BYTES_MAX: usize = 1024;

/// Prefixes of Baton's credentials and lease tokens, with the bytes that may follow. A
/// credential continues with a hexadecimal id, which distinguishes it from names such as
/// `btn_primary`.
const TOKEN_PREFIXES: [(&str, IsTokenByte); 2] = [
    ("btn_", |b| matches!(b, b'0'..=b'9' | b'a'..=b'f')),
    ("rlt_", |b| {
        b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')
    }),
];
type IsTokenByte = fn(&u8) -> bool;
const TOKEN_BYTES_MIN: usize = 16;

/// Why a path is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidPath {
    Blank,
    TooLong,
    /// NUL, a line break or another control character.
    ControlCharacter,
    /// Absolute, a drive letter, or written with backslashes.
    NotRelative,
    /// Empty parts, `.` or `..`: a second spelling, or a path out of the workspace.
    NotClean,
    /// It looks like a credential, which must not be stored in a record.
    Token,
}

impl InvalidPath {
    /// What the user should do instead.
    pub fn fix_hint(self) -> &'static str {
        match self {
            Self::Blank => "give a path",
            Self::TooLong => "give a path of at most 1024 bytes",
            Self::ControlCharacter => "give the path without control characters",
            Self::NotRelative => {
                "give a path relative to the workspace, with '/' between its parts"
            }
            Self::NotClean => "give the path without empty parts, '.' and '..'",
            Self::Token => "give a path that contains no token",
        }
    }
}

impl fmt::Display for InvalidPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.fix_hint())
    }
}

impl std::error::Error for InvalidPath {}

/// Checks whether a contract may name this path. The path is not normalized, because `a/../b`
/// differs from `b` if `a` is a link.
pub fn check_path(path: &str) -> Result<(), InvalidPath> {
    if path.trim().is_empty() {
        return Err(InvalidPath::Blank);
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(InvalidPath::TooLong);
    }
    if path.chars().any(char::is_control) {
        return Err(InvalidPath::ControlCharacter);
    }
    if path.starts_with('/') || path.contains('\\') || is_drive(path) {
        return Err(InvalidPath::NotRelative);
    }
    if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(InvalidPath::NotClean);
    }
    if contains_token(path) {
        return Err(InvalidPath::Token);
    }
    Ok(())
}

fn is_drive(path: &str) -> bool {
    matches!(path.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic())
}

fn contains_token(path: &str) -> bool {
    TOKEN_PREFIXES.iter().any(|(prefix, is_token_byte)| {
        path.match_indices(prefix).any(|(at, _)| {
            let body = &path.as_bytes()[at + prefix.len()..];
            body.iter().take_while(|b| is_token_byte(b)).count() >= TOKEN_BYTES_MIN
        })
    })
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordinary_paths_are_accepted_and_others_get_a_reason() {
        for good in [
            "a",
            "out/report.md",
            "..a/b..",
            "dir/.hidden",
            "ä/ß c",
            "ab:c",
            "ui/btn_primary_outline_large.tsx",
        ] {
            assert_eq!(check_path(good), Ok(()), "{good}");
        }
        let long = "x".repeat(PATH_BYTES_MAX + 1);
        let table = [
            ("", InvalidPath::Blank),
            (" \t ", InvalidPath::Blank),
            (&long, InvalidPath::TooLong),
            ("a\0b", InvalidPath::ControlCharacter),
            ("a\nb", InvalidPath::ControlCharacter),
            ("/etc/passwd", InvalidPath::NotRelative),
            ("\\\\host\\share", InvalidPath::NotRelative),
            ("\\windows", InvalidPath::NotRelative),
            ("C:/windows", InvalidPath::NotRelative),
            ("c:file", InvalidPath::NotRelative),
            ("a:b/c", InvalidPath::NotRelative),
            (".", InvalidPath::NotClean),
            ("..", InvalidPath::NotClean),
            ("../secret", InvalidPath::NotClean),
            ("a/../../b", InvalidPath::NotClean),
            ("a/./b", InvalidPath::NotClean),
            ("a//b", InvalidPath::NotClean),
            ("a/", InvalidPath::NotClean),
            ("out/btn_0123456789abcdefXY", InvalidPath::Token),
            ("rlt_AAAAAAAAAAAAAAAA/x", InvalidPath::Token),
        ];
        for (bad, why) in table {
            assert_eq!(check_path(bad), Err(why), "{bad:?}");
        }
        assert_eq!(check_path("btn_short"), Ok(()));
        assert_eq!(check_path(&"x".repeat(PATH_BYTES_MAX)), Ok(()));
    }

    proptest! {
        /// An accepted path is relative and has only ordinary parts, also for the standard
        /// library.
        #[test]
        fn an_accepted_path_stays_beneath_any_root(path in "[a-c.:/\\\\ \0\n]{0,12}") {
            if check_path(&path).is_ok() {
                let parts: Vec<_> = Path::new(&path).components().collect();
                prop_assert!(parts.iter().all(|part| matches!(part, Component::Normal(_))));
                prop_assert_eq!(parts.len(), path.split('/').count(), "one spelling");
                prop_assert!(Path::new("/root").join(&path).starts_with("/root"));
            }
        }

        /// A plain path is never rejected, so the check blocks no legitimate contract.
        #[test]
        fn plain_paths_are_always_accepted(parts in prop::collection::vec("[a-z0-9_-]{1,12}", 1..8)) {
            let path = parts.join("/");
            let secret = path.contains("btn_") || path.contains("rlt_");
            prop_assume!(!secret);
            prop_assert_eq!(check_path(&path), Ok(()));
        }

        #[test]
        fn no_path_makes_the_check_panic(path in ".{0,80}") {
            let _ = check_path(&path);
        }
    }
}
