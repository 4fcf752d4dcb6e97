//! Bounded memory of an adapter beyond one line. It is part of every snapshot, so it must not
//! grow with the length of an attempt: each type has a limit and drops the oldest entries
//! first.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Number of ids that are remembered. An older id counts as new.
const MAX_IDS: usize = 256;

/// Ids of ended or seen things. Stored as digests, because the agent chooses the length of an
/// id.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RecentIds(VecDeque<u64>);

impl RecentIds {
    /// True if the id is new.
    pub(crate) fn insert(&mut self, id: &str) -> bool {
        if self.contains(id) {
            return false;
        }
        if self.0.len() == MAX_IDS {
            self.0.pop_front();
        }
        self.0.push_back(digest(id));
        true
    }

    pub(crate) fn contains(&self, id: &str) -> bool {
        self.0.contains(&digest(id))
    }

    /// True if the id was present.
    pub(crate) fn remove(&mut self, id: &str) -> bool {
        let before = self.0.len();
        let removed = digest(id);
        self.0.retain(|kept| *kept != removed);
        self.0.len() < before
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

fn digest(id: &str) -> u64 {
    let digest = Sha256::digest(id.as_bytes());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest[..8]);
    u64::from_be_bytes(bytes)
}

/// Number of texts that are kept, and their total size.
const MAX_TEXTS: usize = 32;
const MAX_TEXT_BYTES: usize = 512 * 1024;

/// Descriptions of open items, as the agent sent them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RecentTexts {
    kept: VecDeque<(String, String)>,
    /// An entry was dropped, so a missing item may have had a text.
    forgot: bool,
}

/// Result of a lookup.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RecalledText<'a> {
    Text(&'a str),
    /// No text was ever stored.
    NeverSeen,
    /// A text may have been stored and dropped since.
    Forgotten,
}

impl RecentTexts {
    /// The value for a stored state that has no such field.
    pub(crate) fn lost() -> Self {
        Self {
            forgot: true,
            ..Self::default()
        }
    }

    pub(crate) fn insert(&mut self, id: &str, text: String) {
        self.remove(id);
        self.kept.push_back((id.to_owned(), text));
        let size = |kept: &VecDeque<(String, String)>| -> usize {
            kept.iter().map(|(id, text)| id.len() + text.len()).sum()
        };
        while self.kept.len() > MAX_TEXTS || size(&self.kept) > MAX_TEXT_BYTES {
            self.kept.pop_front();
            self.forgot = true;
        }
    }

    pub(crate) fn remove(&mut self, id: &str) {
        self.kept.retain(|(kept, _)| kept != id);
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn get(&self, id: &str) -> RecalledText<'_> {
        match self.kept.iter().find(|(kept, _)| kept == id) {
            Some((_, text)) => RecalledText::Text(text),
            None if self.forgot => RecalledText::Forgotten,
            None => RecalledText::NeverSeen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_ids_are_forgotten_first() {
        let mut ids = RecentIds::default();
        for number in 0..=MAX_IDS {
            assert!(ids.insert(&number.to_string()));
        }
        assert!(!ids.contains("0") && ids.contains("1"));
        assert!(!ids.insert("1"), "the id was already inserted");
        assert!(ids.remove("1") && !ids.remove("1"));
        let long = "x".repeat(1 << 20);
        ids.insert(&long);
        assert!(ids.contains(&long));
        assert!(serde_json::to_string(&ids).unwrap().len() < 32 * MAX_IDS);
    }

    #[test]
    fn a_forgotten_text_differs_from_one_never_seen() {
        let mut texts = RecentTexts::default();
        assert_eq!(texts.get("a"), RecalledText::NeverSeen);
        texts.insert("a", "ls".to_owned());
        texts.insert("a", "ls -a".to_owned());
        assert_eq!(texts.get("a"), RecalledText::Text("ls -a"));
        for number in 0..MAX_TEXTS {
            texts.insert(&number.to_string(), "x".to_owned());
        }
        assert_eq!(texts.get("a"), RecalledText::Forgotten);
        assert_eq!(texts.get("0"), RecalledText::Text("x"));
        texts.insert("long", "x".repeat(MAX_TEXT_BYTES + 1));
        assert_eq!(texts.get("long"), RecalledText::Forgotten);
        texts.clear();
        assert_eq!(texts.get("a"), RecalledText::NeverSeen);
    }
}
