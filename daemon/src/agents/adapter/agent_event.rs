//! The words that every adapter has in common: whatever wire an agent speaks, it comes to these.

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};

use crate::agents::outcome::failure::TurnFailure;
use crate::agents::outcome::turn_usage::TurnUsage;

/// What an agent has said, or what has to be done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AgentEvent {
    Phase(TurnPhase),
    Output(AgentOutput),
    ToolStarted {
        id: String,
        name: String,
    },
    ToolFinished {
        id: String,
        failed: bool,
    },
    InputAsked(AgentInput),
    /// An answer is on its way to the agent.
    InputAnswered {
        key: InputKey,
    },
    /// The agent wants no answer any more.
    InputWithdrawn {
        key: InputKey,
        reason: String,
    },
    /// The agent's own id of its conversation, when it becomes known or changes.
    Conversation(String),
    /// To be written to the agent's stdin.
    Write(StdinMessage),
    /// Somebody has to look at these bytes that were no message; they are counted and skipped.
    Malformed {
        line: u64,
    },
    /// Some characters of this line were none; it was read without them.
    Repaired {
        line: u64,
    },
    /// A line was longer than [`super::line_splitter::LINE_MAX`] and was not read.
    LineCut {
        length: u64,
    },
    /// The turn is over. Once per prompt.
    Ended(TurnEnding),
}

/// Phases of a turn that only its wire can tell. Each once per turn, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum TurnPhase {
    PromptWritten,
    FirstEventSeen,
    FirstVisibleEventSeen,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentOutput {
    pub(crate) kind: OutputKind,
    /// A person would see it.
    pub(crate) visible: bool,
    pub(crate) text: String,
    pub(crate) tool: Option<String>,
}

/// Bytes for the agent's stdin, whole or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StdinMessage {
    /// Text in a snapshot: an array of numbers would be four times as long.
    #[serde(with = "text")]
    pub(crate) bytes: Vec<u8>,
    /// Nothing follows: stdin is closed behind it.
    pub(crate) last: bool,
}

impl StdinMessage {
    pub(crate) fn json_line(value: &serde_json::Value) -> Self {
        Self::text_line(value.to_string())
    }

    pub(crate) fn text_line(mut text: String) -> Self {
        text.push('\n');
        Self {
            bytes: text.into_bytes(),
            last: false,
        }
    }
}

/// Messages are text on every wire.
mod text {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&String::from_utf8_lossy(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        String::deserialize(from).map(String::into_bytes)
    }
}

/// The agent's own id of a request, unique among those that are open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct InputKey(pub(crate) String);

/// Something that the agent waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentInput {
    pub(crate) key: InputKey,
    pub(crate) tool_call_id: Option<String>,
    pub(crate) kind: AgentInputKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AgentInputKind {
    Permission(ToolPermission),
    /// Asked together, answered together.
    Questions(Vec<AgentQuestion>),
}

/// Leave to use a tool with exactly these arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolPermission {
    pub(crate) tool_name: String,
    /// What a person sees, and what the answer is bound to.
    pub(crate) arguments: String,
    /// SHA-256 of `arguments`.
    pub(crate) digest: [u8; 32],
    pub(crate) description: String,
    pub(crate) can_allow_for_attempt: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentQuestion {
    pub(crate) text: String,
    pub(crate) header: String,
    pub(crate) multi_select: bool,
    pub(crate) options: Vec<QuestionChoice>,
    pub(crate) allow_free_text: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QuestionChoice {
    pub(crate) label: String,
    pub(crate) description: String,
}

/// What somebody answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AgentInputAnswer {
    Allow {
        /// Not only this once, and not longer than the attempt.
        for_attempt: bool,
    },
    Deny {
        message: String,
    },
    /// One for each question, in their order.
    Replies(Vec<QuestionResponse>),
    /// Nobody did, in time.
    None,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QuestionResponse {
    pub(crate) labels: Vec<String>,
    pub(crate) text: String,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TurnEnding {
    pub(crate) outcome: TurnOutcome,
    /// Of this turn alone; absent when the agent does not say.
    pub(crate) usage: Option<TurnUsage>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TurnOutcome {
    /// The final text.
    Result(String),
    Failed(TurnFailure),
    /// It stopped because somebody told it to.
    Interrupted,
}

/// How the agent's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentExit {
    Code(i32),
    Signal(i32),
}
