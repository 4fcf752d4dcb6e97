//! Inputs as stored: what an agent asked a person, and what became of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::InputId;
use crate::time::WallTime;

/// A permission request or a question; bound to its attempt, answered once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRecord {
    pub id: InputId,
    pub kind: InputKind,
    pub state: InputState,
    /// Opaque to the relay: the tool's input, or the question with its options, as the daemon sent it.
    /// Empty once it is closed.
    pub payload: Arc<[u8]>,
    /// Which tool a permission is for.
    pub tool_name: Option<Arc<str>>,
    pub asked: WallTime,
    /// SHA-256 of the tool's arguments, or of the question: an answer is bound to what was shown.
    pub digest: [u8; 32],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputKind {
    Permission,
    Question,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputState {
    Open,
    /// Stored, not yet confirmed by the daemon: sent again after each reconnect.
    Answered(StoredAnswer),
    /// The daemon has the answer.
    Received(StoredAnswer),
    /// The agent no longer wanted it.
    Withdrawn,
    /// Nobody answered in time, and that ended the attempt.
    Expired,
    /// The attempt ended first. An answer that was given had not reached the agent.
    Superseded(Option<StoredAnswer>),
}

impl InputState {
    /// Whether the agent still waits for it.
    pub fn is_pending(&self) -> bool {
        match self {
            InputState::Open | InputState::Answered(_) => true,
            InputState::Received(_)
            | InputState::Withdrawn
            | InputState::Expired
            | InputState::Superseded(_) => false,
        }
    }

    /// What somebody said to it, whatever became of that.
    pub fn answer(&self) -> Option<&StoredAnswer> {
        match self {
            InputState::Answered(answer)
            | InputState::Received(answer)
            | InputState::Superseded(Some(answer)) => Some(answer),
            InputState::Open
            | InputState::Withdrawn
            | InputState::Expired
            | InputState::Superseded(None) => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredAnswer {
    pub by: Arc<str>,
    pub at: WallTime,
    pub decision: InputDecision,
    /// The task's own rule that answered: its place, from 1.
    pub rule: Option<u32>,
    pub payload: Arc<[u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum InputDecision {
    /// A permission was given.
    Allowed,
    /// A permission was refused.
    Denied,
    /// A question was answered.
    Replied,
    /// Nobody answered in time, and the agent goes on without.
    Expired,
}
