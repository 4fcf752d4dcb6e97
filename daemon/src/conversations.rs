//! What this daemon knows of conversations: the agent's own id of each, so that the next turn can go on with it.
//!
//! Small and bounded: the oldest are forgotten. Names of people are nowhere in it; the relay's key is the name of a
//! file. Changes are handed to the thread that writes, ahead of the frame that tells the end of the turn.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::agents::{Tokens, TurnUsage};
use crate::whole_file;

/// Conversations that are remembered.
const KEPT: usize = 2_000;
const DIR: &str = "conversations";

/// Of one conversation of one tenant, made by the relay.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConversationKey(String);

impl ConversationKey {
    /// None without a conversation, and for what is no key.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let hex = || bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        (bytes.len() == 32).then(|| Self(hex()))
    }

    fn of_file(name: &str) -> Option<Self> {
        let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (name.len() == 64 && name.bytes().all(hex)).then(|| Self(name.to_owned()))
    }
}

impl fmt::Display for ConversationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A turn's place: which conversation, with which agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conversing {
    pub(crate) key: ConversationKey,
    pub(crate) agent: String,
}

/// What is known of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    agent: String,
    pub(crate) agent_session_id: String,
    /// By all its turns, as far as the agent said.
    pub(crate) used: Option<Tokens>,
    used_at_ms: u64,
}

#[cfg(test)]
impl Known {
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
pub(crate) struct Conversations {
    known: BTreeMap<ConversationKey, Known>,
    /// What the disk does not know yet; the newest form of each.
    news: BTreeMap<ConversationKey, Option<String>>,
}

impl Conversations {
    pub(crate) fn open(data_dir: &Path) -> io::Result<Self> {
        let mut conversations = Self::default();
        let dir = match fs::read_dir(data_dir.join(DIR)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(conversations),
            dir => dir?,
        };
        for entry in dir {
            let entry = entry?;
            let name = entry.file_name();
            let Some(key) = name.to_str().and_then(ConversationKey::of_file) else {
                continue;
            };
            let text = fs::read_to_string(entry.path());
            match text.map(|text| serde_json::from_str(&text)) {
                Ok(Ok(known)) => {
                    conversations.known.insert(key, known);
                }
                // As good as never heard of: the next turn begins anew.
                Ok(Err(_)) | Err(_) => {
                    warn!(conversation = %key, "a kept conversation cannot be read")
                }
            }
        }
        conversations.forget_oldest();
        Ok(conversations)
    }

    /// What the next turn of this agent can go on with.
    pub(crate) fn known(&self, conversing: &Conversing) -> Option<&Known> {
        let known = self.known.get(&conversing.key)?;
        (known.agent == conversing.agent).then_some(known)
    }

    /// A turn is over, and this is what the agent calls the conversation now.
    pub(crate) fn remember(
        &mut self,
        conversing: &Conversing,
        agent_session_id: &str,
        usage: Option<&TurnUsage>,
        now: SystemTime,
    ) {
        let before = match self.known(conversing) {
            Some(known) if known.agent_session_id == agent_session_id => known.used,
            Some(_) | None => Some(Tokens::default()),
        };
        // What a turn used that did not say so is counted with the next one that does.
        let this = usage.map(|usage| usage.tokens).unwrap_or_default();
        let used = before.map(|before| before.plus(this));
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let known = Known {
            agent: conversing.agent.clone(),
            agent_session_id: agent_session_id.to_owned(),
            used,
            used_at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        };
        let text = serde_json::to_string(&known).unwrap_or_default();
        self.known.insert(conversing.key.clone(), known);
        self.news.insert(conversing.key.clone(), Some(text));
        self.forget_oldest();
    }

    /// The agent does not know it any more.
    pub(crate) fn forget(&mut self, key: &ConversationKey) {
        if self.known.remove(key).is_some() {
            self.news.insert(key.clone(), None);
        }
    }

    fn forget_oldest(&mut self) {
        while self.known.len() > KEPT {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.used_at_ms);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                return;
            };
            self.forget(&key);
        }
    }

    pub(crate) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    pub(crate) fn take_news(&mut self) -> Option<Note> {
        let (key, text) = self.news.pop_first()?;
        Some(Note { key, text })
    }
}

/// One change for the disk.
#[derive(Debug)]
pub(crate) struct Note {
    key: ConversationKey,
    /// None: it is forgotten.
    text: Option<String>,
}

impl Note {
    pub(crate) fn write(&self, data_dir: &Path) -> io::Result<()> {
        let (dir, name) = (data_dir.join(DIR), self.key.to_string());
        match &self.text {
            Some(text) => {
                fs::create_dir_all(&dir)?;
                whole_file::write(&dir, &name, text)
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

    fn conversing(n: u64, agent: &str) -> Conversing {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        Conversing {
            key: ConversationKey::of(&bytes).unwrap(),
            agent: agent.to_owned(),
        }
    }

    fn at(n: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(n)
    }

    fn save(conversations: &mut Conversations, dir: &Path) {
        while let Some(note) = conversations.take_news() {
            note.write(dir).unwrap();
        }
    }

    #[test]
    fn a_conversation_is_known_to_its_own_agent_and_to_the_next_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let mut conversations = Conversations::open(dir.path()).unwrap();
        let (own, other) = (conversing(1, "a"), conversing(1, "b"));
        let usage = TurnUsage {
            tokens: Tokens {
                input: 3,
                ..Tokens::default()
            },
            ..TurnUsage::default()
        };
        for used in [Some(&usage), None, Some(&usage)] {
            conversations.remember(&own, "talk", used, at(1));
        }
        save(&mut conversations, dir.path());
        let conversations = Conversations::open(dir.path()).unwrap();
        let known = conversations.known(&own).unwrap();
        assert_eq!(known.agent_session_id, "talk");
        assert_eq!(known.used.unwrap().input, 6, "both turns");
        assert_eq!(conversations.known(&other), None, "another agent's id");
    }

    #[test]
    fn what_is_gone_is_forgotten_and_only_so_many_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut conversations = Conversations::open(dir.path()).unwrap();
        for n in 0..=KEPT as u64 {
            conversations.remember(&conversing(n, "a"), "talk", None, at(n));
        }
        assert_eq!(conversations.known(&conversing(0, "a")), None);
        let second = conversing(1, "a");
        assert!(conversations.known(&second).is_some());
        conversations.forget(&second.key);
        save(&mut conversations, dir.path());
        fs::write(dir.path().join(DIR).join("README"), "a person's").unwrap();
        let again = Conversations::open(dir.path()).unwrap();
        assert_eq!(again.known(&second), None);
        assert_eq!(again.known.len(), KEPT - 1);
        assert!(!again.has_news());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let mut conversations = Conversations::open(dir.path()).unwrap();
        let own = conversing(1, "a");
        conversations.remember(&own, "talk", None, at(1));
        save(&mut conversations, dir.path());
        let file = dir.path().join(DIR).join(own.key.to_string());
        fs::write(file, "{").unwrap();
        let conversations = Conversations::open(dir.path()).unwrap();
        assert_eq!(conversations.known(&own), None);
    }
}
