//! A search for secrets in all encodings over everything that a test leaves behind.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Searches for several secrets in all encodings in one pass, because a TRACE log is long.
pub(crate) struct SecretSearch {
    spellings: Vec<Vec<u8>>,
    /// Whether any spelling begins with these two bytes.
    first_two_bytes: Vec<bool>,
}

impl SecretSearch {
    pub(crate) fn for_secrets(secrets: &[Vec<u8>]) -> Self {
        assert!(!secrets.is_empty(), "no secret to search for");
        let spellings: Vec<Vec<u8>> = secrets
            .iter()
            .flat_map(|one| secret_spellings(one))
            .collect();
        let mut first_two_bytes = vec![false; 1 << 16];
        for one in &spellings {
            first_two_bytes[usize::from(u16::from_be_bytes([one[0], one[1]]))] = true;
        }
        Self {
            spellings,
            first_two_bytes,
        }
    }

    fn is_found_in(&self, bytes: &[u8]) -> bool {
        let mut begin = bytes.windows(2).enumerate();
        begin.any(|(at, two)| {
            let is_candidate =
                self.first_two_bytes[usize::from(u16::from_be_bytes([two[0], two[1]]))];
            is_candidate
                && self
                    .spellings
                    .iter()
                    .any(|one| bytes[at..].starts_with(one))
        })
    }

    /// The locations whose bytes contain any of the secrets.
    pub(crate) fn locations_with_secret<'a>(
        &self,
        locations: &'a [(String, Vec<u8>)],
    ) -> BTreeSet<&'a str> {
        let found = locations
            .iter()
            .filter(|(_, bytes)| self.is_found_in(bytes));
        found.map(|(location, _)| location.as_str()).collect()
    }
}

/// A secret in every encoding in which it could leak.
fn secret_spellings(secret: &[u8]) -> Vec<Vec<u8>> {
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    vec![
        secret.to_vec(),
        hex.to_uppercase().into(),
        hex.into(),
        STANDARD_NO_PAD.encode(secret).into(),
        URL_SAFE_NO_PAD.encode(secret).into(),
        // As a list of numbers, like the Debug output of bytes.
        format!("{secret:?}").trim_matches(['[', ']']).into(),
    ]
}

/// The content of all files below a directory, each with its path.
pub(crate) fn files_below(root: &Path) -> Vec<(String, Vec<u8>)> {
    let (mut found, mut pending) = (Vec::new(), vec![PathBuf::from(root)]);
    while let Some(path) = pending.pop() {
        if let Ok(entries) = std::fs::read_dir(&path) {
            pending.extend(entries.flatten().map(|entry| entry.path()));
        } else if path.is_file()
            && let Ok(bytes) = std::fs::read(&path)
        {
            found.push((path.to_string_lossy().into_owned(), bytes));
        }
    }
    found
}
