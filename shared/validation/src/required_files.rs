//! Compares file receipts with the files that a completion contract requires. Every unmet
//! requirement is reported with its reason, so one rejection lists all of them.

use std::fmt;

/// One required file.
#[derive(Clone, Copy, Debug)]
pub struct RequiredFile<'a> {
    pub path: &'a str,
    pub min_size: Option<u64>,
    /// As lower-case hex.
    pub sha256: Option<&'a str>,
}

/// What was found at one path. The daemon opened it beneath the workspace root.
#[derive(Clone, Copy, Debug)]
pub struct FileReceipt<'a> {
    pub path: &'a str,
    pub exists: bool,
    /// A regular file.
    pub is_file: bool,
    pub size: u64,
    /// Absent if it was not computed.
    pub sha256: Option<&'a str>,
    /// Why the file was refused or could not be read completely.
    pub problem: Option<&'a str>,
}

/// A required file that is missing or does not meet its requirements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmetRequirement {
    /// Position in the contract's list, from 0.
    pub index: usize,
    pub path: String,
    pub reason: UnmetReason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnmetReason {
    /// The result has no receipt for this path.
    NoReceipt,
    Missing,
    NotAFile,
    /// The problem that the receipt reports.
    Problem(String),
    TooSmall {
        size: u64,
        least: u64,
    },
    NotHashed,
    OtherHash {
        found: String,
    },
}

impl fmt::Display for UnmetReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoReceipt => f.write_str("no receipt"),
            Self::Missing => f.write_str("missing"),
            Self::NotAFile => f.write_str("not a regular file"),
            Self::Problem(problem) => f.write_str(problem),
            Self::TooSmall { size, least } => {
                write!(f, "{size} bytes, at least {least} are required")
            }
            Self::NotHashed => f.write_str("its SHA-256 was not computed"),
            Self::OtherHash { found } => write!(f, "SHA-256 does not match, found {found}"),
        }
    }
}

impl fmt::Display for UnmetRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

/// All unmet requirements, in the order of the contract. If a path has several receipts, the
/// first one counts.
pub fn unmet_requirements<'a>(
    required: impl IntoIterator<Item = RequiredFile<'a>>,
    found: impl IntoIterator<Item = FileReceipt<'a>>,
) -> Vec<UnmetRequirement> {
    let found: Vec<FileReceipt<'a>> = found.into_iter().collect();
    let unmet = |(index, wanted): (usize, RequiredFile<'a>)| {
        let why = match found.iter().find(|found| found.path == wanted.path) {
            Some(found) => unmet_reason(&wanted, found)?,
            None => UnmetReason::NoReceipt,
        };
        let path = wanted.path.to_owned();
        Some(UnmetRequirement {
            index,
            path,
            reason: why,
        })
    };
    required.into_iter().enumerate().filter_map(unmet).collect()
}

fn unmet_reason(wanted: &RequiredFile<'_>, found: &FileReceipt<'_>) -> Option<UnmetReason> {
    if let Some(problem) = found.problem.filter(|problem| !problem.is_empty()) {
        return Some(UnmetReason::Problem(problem.to_owned()));
    }
    if !found.exists {
        return Some(UnmetReason::Missing);
    }
    if !found.is_file {
        return Some(UnmetReason::NotAFile);
    }
    if let Some(least) = wanted.min_size.filter(|least| found.size < *least) {
        let size = found.size;
        return Some(UnmetReason::TooSmall { size, least });
    }
    match (wanted.sha256, found.sha256) {
        (None, _) => None,
        (Some(wanted), Some(found)) if wanted == found => None,
        (Some(_), Some(found)) => Some(UnmetReason::OtherHash {
            found: found.to_owned(),
        }),
        (Some(_), None) => Some(UnmetReason::NotHashed),
    }
}

/// All unmet requirements in one sentence of at most `bytes` bytes. The count comes first, so
/// it is never cut off.
pub fn summarize_unmet(unmet: &[UnmetRequirement], bytes: usize) -> String {
    let all: Vec<String> = unmet.iter().map(UnmetRequirement::to_string).collect();
    let files = if all.len() == 1 {
        "file is"
    } else {
        "files are"
    };
    let mut summary = format!(
        "{} required {files} missing or wrong: {}",
        all.len(),
        all.join("; ")
    );
    if summary.len() > bytes {
        summary.truncate(summary.floor_char_boundary(bytes.saturating_sub(3)));
        summary.push('…');
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    fn required(path: &str) -> RequiredFile<'_> {
        RequiredFile {
            path,
            min_size: None,
            sha256: None,
        }
    }

    fn file(path: &str) -> FileReceipt<'_> {
        FileReceipt {
            path,
            exists: true,
            is_file: true,
            size: 5,
            sha256: Some(HASH),
            problem: None,
        }
    }

    fn only_reason(wanted: RequiredFile<'_>, found: FileReceipt<'_>) -> Option<UnmetReason> {
        unmet_requirements([wanted], [found])
            .pop()
            .map(|unmet| unmet.reason)
    }

    #[test]
    fn each_unmet_requirement_has_its_own_reason() {
        let sized = |least| RequiredFile {
            min_size: Some(least),
            ..required("f")
        };
        let hashed = |sha256| RequiredFile {
            sha256: Some(sha256),
            ..required("f")
        };
        let with = |change: fn(&mut FileReceipt<'static>)| {
            let mut found = file("f");
            change(&mut found);
            found
        };
        let too_small = UnmetReason::TooSmall { size: 5, least: 6 };
        let other = UnmetReason::OtherHash { found: HASH.into() };
        let problem = UnmetReason::Problem("it leads out of the workspace".into());
        let table = [
            (required("f"), file("f"), None),
            (sized(5), file("f"), None),
            (hashed(HASH), file("f"), None),
            (sized(6), file("f"), Some(too_small)),
            (hashed("00"), file("f"), Some(other)),
            (
                hashed(HASH),
                with(|f| f.sha256 = None),
                Some(UnmetReason::NotHashed),
            ),
            (
                required("f"),
                with(|f| f.is_file = false),
                Some(UnmetReason::NotAFile),
            ),
            (
                required("f"),
                with(|f| f.exists = false),
                Some(UnmetReason::Missing),
            ),
            (
                required("f"),
                with(|f| f.problem = Some("it leads out of the workspace")),
                Some(problem),
            ),
            (required("f"), file("g"), Some(UnmetReason::NoReceipt)),
        ];
        for (wanted, found, expected) in table {
            assert_eq!(only_reason(wanted, found), expected, "{wanted:?} {found:?}");
        }
    }

    #[test]
    fn all_unmet_requirements_are_listed_in_order() {
        let wanted = ["a", "b", "c", "d"].map(required);
        let mut gone = file("c");
        gone.exists = false;
        let unmet = unmet_requirements(wanted, [file("b"), gone, file("elsewhere")]);
        let named: Vec<(usize, &str)> = unmet.iter().map(|u| (u.index, &*u.path)).collect();
        assert_eq!(named, [(0, "a"), (2, "c"), (3, "d")]);
        assert_eq!(
            summarize_unmet(&unmet, 4096),
            "3 required files are missing or wrong: a: no receipt; c: missing; d: no receipt"
        );
        assert_eq!(
            summarize_unmet(&unmet[..1], 4096),
            "1 required file is missing or wrong: a: no receipt"
        );
    }

    #[test]
    fn the_first_of_two_receipts_for_a_path_counts() {
        let mut gone = file("f");
        gone.exists = false;
        assert_eq!(
            unmet_requirements([required("f")], [gone, file("f")]).len(),
            1
        );
        assert_eq!(
            unmet_requirements([required("f")], [file("f"), gone]).len(),
            0
        );
    }

    #[test]
    fn a_long_summary_is_cut_at_a_character_boundary() {
        let path = "ß".repeat(100);
        let unmet = unmet_requirements([required(&path)], []);
        for bytes in 60..90 {
            let summary = summarize_unmet(&unmet, bytes);
            assert!(
                summary.len() <= bytes && summary.ends_with('…'),
                "{summary}"
            );
        }
    }
}
