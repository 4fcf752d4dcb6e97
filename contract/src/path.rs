//! Which paths a contract may name: one spelling of a file beneath the workspace. The daemon's kernel has the last word
//! about where it leads; this refuses what could not lead anywhere else than out.

use std::fmt;

/// Required files of one contract.
pub const PATHS_MAX: usize = 64;
/// Length of one path.
pub const PATH_BYTES_MAX: usize = 1024;

/// How our credentials and lease tokens begin, and what must follow for a word to be one. A credential goes on with an id in
/// hexadecimal: without that it is the name of a button.
const TOKENS: [(&str, IsTokenByte); 2] = [
    ("btn_", |b| matches!(b, b'0'..=b'9' | b'a'..=b'f')),
    ("rlt_", |b| {
        b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')
    }),
];
type IsTokenByte = fn(&u8) -> bool;
const TOKEN_BYTES_MIN: usize = 16;

/// What is wrong with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathFault {
    Blank,
    TooLong,
    /// NUL, a line break or the like.
    ControlCharacter,
    /// Rooted, a drive, or spelled with backslashes.
    NotRelative,
    /// Empty parts, `.` or `..`: another spelling, or a way out.
    NotClean,
    /// It looks like a credential, which belongs into no record.
    Token,
}

impl PathFault {
    /// What to do about it.
    pub fn rule(self) -> &'static str {
        match self {
            Self::Blank => "give a path",
            Self::TooLong => "give a path of at most 1024 bytes",
            Self::ControlCharacter => "give the path without control characters",
            Self::NotRelative => {
                "give a path relative to the workspace, with '/' between its parts"
            }
            Self::NotClean => "give the path without empty parts, '.' and '..'",
            Self::Token => "give a path that holds no token",
        }
    }
}

impl fmt::Display for PathFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rule())
    }
}

impl std::error::Error for PathFault {}

/// Whether a contract may name this path. Nothing is cleaned up: `a/../b` is not `b` where `a` is a link.
pub fn check_path(path: &str) -> Result<(), PathFault> {
    if path.trim().is_empty() {
        return Err(PathFault::Blank);
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(PathFault::TooLong);
    }
    if path.chars().any(char::is_control) {
        return Err(PathFault::ControlCharacter);
    }
    if path.starts_with('/') || path.contains('\\') || is_drive(path) {
        return Err(PathFault::NotRelative);
    }
    if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(PathFault::NotClean);
    }
    if holds_token(path) {
        return Err(PathFault::Token);
    }
    Ok(())
}

fn is_drive(path: &str) -> bool {
    matches!(path.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic())
}

fn holds_token(path: &str) -> bool {
    TOKENS.iter().any(|(prefix, goes_on)| {
        path.match_indices(prefix).any(|(at, _)| {
            let body = &path.as_bytes()[at + prefix.len()..];
            body.iter().take_while(|b| goes_on(b)).count() >= TOKEN_BYTES_MIN
        })
    })
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordinary_paths_are_taken_and_everything_else_says_why() {
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
            ("", PathFault::Blank),
            (" \t ", PathFault::Blank),
            (&long, PathFault::TooLong),
            ("a\0b", PathFault::ControlCharacter),
            ("a\nb", PathFault::ControlCharacter),
            ("/etc/passwd", PathFault::NotRelative),
            ("\\\\host\\share", PathFault::NotRelative),
            ("\\windows", PathFault::NotRelative),
            ("C:/windows", PathFault::NotRelative),
            ("c:file", PathFault::NotRelative),
            ("a:b/c", PathFault::NotRelative),
            (".", PathFault::NotClean),
            ("..", PathFault::NotClean),
            ("../secret", PathFault::NotClean),
            ("a/../../b", PathFault::NotClean),
            ("a/./b", PathFault::NotClean),
            ("a//b", PathFault::NotClean),
            ("a/", PathFault::NotClean),
            ("out/btn_0123456789abcdefXY", PathFault::Token),
            ("rlt_AAAAAAAAAAAAAAAA/x", PathFault::Token),
        ];
        for (bad, why) in table {
            assert_eq!(check_path(bad), Err(why), "{bad:?}");
        }
        assert_eq!(check_path("btn_short"), Ok(()));
        assert_eq!(check_path(&"x".repeat(PATH_BYTES_MAX)), Ok(()));
    }

    proptest! {
        /// What is taken is a relative path of ordinary parts, for the standard library too.
        #[test]
        fn what_is_taken_stays_beneath_any_root(path in "[a-c.:/\\\\ \0\n]{0,12}") {
            if check_path(&path).is_ok() {
                let parts: Vec<_> = Path::new(&path).components().collect();
                prop_assert!(parts.iter().all(|part| matches!(part, Component::Normal(_))));
                prop_assert_eq!(parts.len(), path.split('/').count(), "one spelling");
                prop_assert!(Path::new("/root").join(&path).starts_with("/root"));
            }
        }

        /// A plain path is never refused, so the rule refuses nobody's work.
        #[test]
        fn plain_paths_are_always_taken(parts in prop::collection::vec("[a-z0-9_-]{1,12}", 1..8)) {
            let path = parts.join("/");
            let secret = path.contains("btn_") || path.contains("rlt_");
            prop_assume!(!secret);
            prop_assert_eq!(check_path(&path), Ok(()));
        }

        #[test]
        fn any_text_at_all_is_judged(path in ".{0,80}") {
            let _ = check_path(&path);
        }
    }
}
