//! Stored inputs: the requests of agents to people, and their outcome.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::InputId;
use crate::time::WallTime;

/// A permission request or a question. It belongs to one attempt and is answered once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRecord {
    pub id: InputId,
    pub kind: InputKind,
    pub state: InputState,
    /// Opaque to the relay: the tool input, or the question with its options, as sent by the
    /// daemon. Empty once the input is closed.
    pub payload: Arc<[u8]>,
    /// The tool that a permission request is about.
    pub tool_name: Option<Arc<str>>,
    pub asked: WallTime,
    /// SHA-256 of the tool's arguments, or of the question. It binds an answer to what was
    /// shown.
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
    /// Stored but not yet confirmed by the daemon; sent again after each reconnect.
    Answered(StoredAnswer),
    /// The daemon has confirmed the answer.
    Received(StoredAnswer),
    /// The agent withdrew it.
    Withdrawn,
    /// No answer came in time, which ended the attempt.
    Expired,
    /// The attempt ended first. An answer that was already given had not reached the agent.
    Superseded(Option<StoredAnswer>),
}

impl InputState {
    /// Whether the agent still waits for an answer.
    pub fn is_pending(&self) -> bool {
        match self {
            InputState::Open | InputState::Answered(_) => true,
            InputState::Received(_)
            | InputState::Withdrawn
            | InputState::Expired
            | InputState::Superseded(_) => false,
        }
    }

    /// The answer that was given, whether or not it reached the agent.
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
    /// The rule of the task that gave the answer, counted from 1.
    pub rule: Option<u32>,
    pub payload: Arc<[u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum InputDecision {
    /// The permission was granted.
    Allowed,
    /// The permission was refused.
    Denied,
    /// The question was answered.
    Replied,
    /// No answer came in time, and the agent continues without one.
    Expired,
}
