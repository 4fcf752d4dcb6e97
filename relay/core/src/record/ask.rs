//! Inputs as stored: what an agent asked a person, and what became of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::InputId;
use crate::time::Wall;

/// A permission request or a question; bound to its attempt, answered once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRecord {
    pub id: InputId,
    pub kind: InputKind,
    pub state: InputState,
    /// Opaque to the relay: the tool's input, or the question with its options, as the daemon sent it.
    pub payload: Arc<[u8]>,
    pub tool: Option<Arc<str>>,
    pub asked: Wall,
    /// SHA-256 of kind, tool and payload: an answer is bound to what was shown.
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
    Answered(Answer),
    /// The daemon has the answer.
    Received(Answer),
    Withdrawn,
    Expired,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub by: Arc<str>,
    pub at: Wall,
    /// For a permission: granted or not. A question has none.
    pub approved: Option<bool>,
    pub payload: Arc<[u8]>,
}
