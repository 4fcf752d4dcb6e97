//! The conversations of this daemon: the agent's own id of each, so that the next turn can
//! continue it.
//!
//! Small and bounded: the oldest are dropped. It contains no names of people; the file name is
//! the relay's key. Changes are passed to the writer thread before the frame that reports the
//! end of the turn.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::agents::{TokenCounts, TurnUsage};
use crate::storage::atomic_file;

/// The most conversations that are stored.
const CONVERSATIONS_MAX: usize = 2_000;
const CONVERSATIONS_DIR: &str = "conversations";

/// The key of one conversation of one tenant, created by the relay.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConversationFileKey(String);

impl ConversationFileKey {
    /// `None` without a conversation, and for bytes that are not a key.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let hex = || bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        (bytes.len() == 32).then(|| Self(hex()))
    }

    fn from_file_name(name: &str) -> Option<Self> {
        let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (name.len() == 64 && name.bytes().all(hex)).then(|| Self(name.to_owned()))
    }
}

impl fmt::Display for ConversationFileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A conversation and the agent of its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConversationTurn {
    pub(crate) key: ConversationFileKey,
    pub(crate) agent: String,
}

/// A stored conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownConversation {
    agent: String,
    pub(crate) agent_session_id: String,
    /// The tokens of all its turns, as far as the agent reported them.
    pub(crate) used: Option<TokenCounts>,
    used_at_ms: u64,
}

#[cfg(test)]
impl KnownConversation {
    pub(crate) fn example(agent_session_id: &str) -> Self {
        Self {
            agent: "agent".to_owned(),
            agent_session_id: agent_session_id.to_owned(),
            used: None,
            used_at_ms: 0,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ConversationStore {
    by_key: BTreeMap<ConversationFileKey, KnownConversation>,
    /// Changes that are not on the disk yet; the latest of each conversation.
    unsaved: BTreeMap<ConversationFileKey, Option<String>>,
}

impl ConversationStore {
    pub(crate) fn open(data_dir: &Path) -> io::Result<Self> {
        let mut conversations = Self::default();
        let dir = match fs::read_dir(data_dir.join(CONVERSATIONS_DIR)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(conversations),
            dir => dir?,
        };
        for entry in dir {
            let entry = entry?;
            let name = entry.file_name();
            let Some(key) = name.to_str().and_then(ConversationFileKey::from_file_name) else {
                continue;
            };
            let text = fs::read_to_string(entry.path());
            match text.map(|text| serde_json::from_str(&text)) {
                Ok(Ok(known)) => {
                    conversations.by_key.insert(key, known);
                }
                // Treated as unknown: the next turn begins a new conversation.
                Ok(Err(_)) | Err(_) => {
                    warn!(conversation = %key, "a stored conversation cannot be read")
                }
            }
        }
        conversations.remove_oldest();
        Ok(conversations)
    }

    /// The conversation that the next turn of this agent can continue.
    pub(crate) fn find(&self, conversing: &ConversationTurn) -> Option<&KnownConversation> {
        let known = self.by_key.get(&conversing.key)?;
        (known.agent == conversing.agent).then_some(known)
    }

    /// A turn has ended with this agent session id.
    pub(crate) fn record_turn(
        &mut self,
        conversing: &ConversationTurn,
        agent_session_id: &str,
        usage: Option<&TurnUsage>,
        now: SystemTime,
    ) {
        let before = match self.find(conversing) {
            Some(known) if known.agent_session_id == agent_session_id => known.used,
            Some(_) | None => Some(TokenCounts::default()),
        };
        // Usage that a turn did not report is counted with the next one that does.
        let this = usage.map(|usage| usage.tokens).unwrap_or_default();
        let used = before.map(|before| before.plus(this));
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let known = KnownConversation {
            agent: conversing.agent.clone(),
            agent_session_id: agent_session_id.to_owned(),
            used,
            used_at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        };
        let text = serde_json::to_string(&known).unwrap_or_default();
        self.by_key.insert(conversing.key.clone(), known);
        self.unsaved.insert(conversing.key.clone(), Some(text));
        self.remove_oldest();
    }

    /// The agent cannot resume the conversation any more.
    pub(crate) fn remove(&mut self, key: &ConversationFileKey) {
        if self.by_key.remove(key).is_some() {
            self.unsaved.insert(key.clone(), None);
        }
    }

    fn remove_oldest(&mut self) {
        while self.by_key.len() > CONVERSATIONS_MAX {
            let oldest = self.by_key.iter().min_by_key(|(_, known)| known.used_at_ms);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                return;
            };
            self.remove(&key);
        }
    }

    pub(crate) fn has_unsaved(&self) -> bool {
        !self.unsaved.is_empty()
    }

    pub(crate) fn take_unsaved(&mut self) -> Option<ConversationChange> {
        let (key, text) = self.unsaved.pop_first()?;
        Some(ConversationChange { key, text })
    }
}

/// One change for the disk.
#[derive(Debug)]
pub(crate) struct ConversationChange {
    key: ConversationFileKey,
    /// `None`: the conversation is removed.
    text: Option<String>,
}

impl ConversationChange {
    pub(crate) fn write(&self, data_dir: &Path) -> io::Result<()> {
        let (dir, name) = (data_dir.join(CONVERSATIONS_DIR), self.key.to_string());
        match &self.text {
            Some(text) => {
                fs::create_dir_all(&dir)?;
                atomic_file::write(&dir, &name, text)
            }
            None => match fs::remove_file(dir.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn conversing(n: u64, agent: &str) -> ConversationTurn {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        ConversationTurn {
            key: ConversationFileKey::from_bytes(&bytes).unwrap(),
            agent: agent.to_owned(),
        }
    }

    fn at(n: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(n)
    }

    fn save(conversations: &mut ConversationStore, dir: &Path) {
        while let Some(note) = conversations.take_unsaved() {
            note.write(dir).unwrap();
        }
    }

    #[test]
    fn a_conversation_is_known_to_its_own_agent_and_to_the_next_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let mut conversations = ConversationStore::open(dir.path()).unwrap();
        let (own, other) = (conversing(1, "a"), conversing(1, "b"));
        let usage = TurnUsage {
            tokens: TokenCounts {
                input: 3,
                ..TokenCounts::default()
            },
            ..TurnUsage::default()
        };
        for used in [Some(&usage), None, Some(&usage)] {
            conversations.record_turn(&own, "talk", used, at(1));
        }
        save(&mut conversations, dir.path());
        let conversations = ConversationStore::open(dir.path()).unwrap();
        let known = conversations.find(&own).unwrap();
        assert_eq!(known.agent_session_id, "talk");
        assert_eq!(known.used.unwrap().input, 6, "both turns");
        assert_eq!(conversations.find(&other), None, "another agent's id");
    }

    #[test]
    fn removed_conversations_are_dropped_and_their_number_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut conversations = ConversationStore::open(dir.path()).unwrap();
        for n in 0..=CONVERSATIONS_MAX as u64 {
            conversations.record_turn(&conversing(n, "a"), "talk", None, at(n));
        }
        assert_eq!(conversations.find(&conversing(0, "a")), None);
        let second = conversing(1, "a");
        assert!(conversations.find(&second).is_some());
        conversations.remove(&second.key);
        save(&mut conversations, dir.path());
        fs::write(
            dir.path().join(CONVERSATIONS_DIR).join("README"),
            "a person's",
        )
        .unwrap();
        let again = ConversationStore::open(dir.path()).unwrap();
        assert_eq!(again.find(&second), None);
        assert_eq!(again.by_key.len(), CONVERSATIONS_MAX - 1);
        assert!(!again.has_unsaved());
    }

    #[test]
    fn an_unreadable_conversation_file_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let mut conversations = ConversationStore::open(dir.path()).unwrap();
        let own = conversing(1, "a");
        conversations.record_turn(&own, "talk", None, at(1));
        save(&mut conversations, dir.path());
        let file = dir.path().join(CONVERSATIONS_DIR).join(own.key.to_string());
        fs::write(file, "{").unwrap();
        let conversations = ConversationStore::open(dir.path()).unwrap();
        assert_eq!(conversations.find(&own), None);
    }
}
