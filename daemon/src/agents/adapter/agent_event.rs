//! Events and inputs that all adapters have in common, independent of the agent's wire.

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};

use crate::agents::outcome::failure::TurnFailure;
use crate::agents::outcome::turn_usage::TurnUsage;

/// Something that an agent sent, or that has to be done because of it.
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
    /// An answer was written to the agent.
    InputAnswered {
        key: InputKey,
    },
    /// The agent no longer waits for an answer.
    InputWithdrawn {
        key: InputKey,
        reason: String,
    },
    /// The agent's own id of its conversation, when it becomes known or changes.
    Conversation(String),
    /// A message to write to the agent's stdin.
    Write(StdinMessage),
    /// A line that is not a message. It is counted and skipped.
    Malformed {
        line: u64,
    },
    /// A line with invalid characters. It was read with replacement characters.
    Repaired {
        line: u64,
    },
    /// A line longer than [`super::line_splitter::MAX_LINE_BYTES`], which was not read.
    LineCut {
        length: u64,
    },
    /// The turn ended. Sent once per prompt.
    Ended(TurnEnding),
}

/// Phases of a turn that only its wire reveals. Each occurs once per turn, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum TurnPhase {
    PromptWritten,
    FirstEventSeen,
    FirstVisibleEventSeen,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentOutput {
    pub(crate) kind: OutputKind,
    /// Whether a person would see it.
    pub(crate) visible: bool,
    pub(crate) text: String,
    pub(crate) tool: Option<String>,
}

/// Bytes for the agent's stdin, written completely or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StdinMessage {
    /// Serialized as text: an array of numbers would be four times as long.
    #[serde(with = "text")]
    pub(crate) bytes: Vec<u8>,
    /// Nothing follows: stdin is closed after it.
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

/// Serializes messages as text, which they are on every wire.
mod text {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&String::from_utf8_lossy(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        String::deserialize(from).map(String::into_bytes)
    }
}

/// The agent's own id of a request, unique among the open requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct InputKey(pub(crate) String);

/// A permission or question that the agent waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentInput {
    pub(crate) key: InputKey,
    pub(crate) tool_call_id: Option<String>,
    pub(crate) kind: AgentInputKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AgentInputKind {
    Permission(ToolPermission),
    /// Questions that are asked together and answered together.
    Questions(Vec<AgentQuestion>),
}

/// A request to use a tool with exactly these arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolPermission {
    pub(crate) tool_name: String,
    /// What a person is shown. The answer is bound to it.
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

/// The answer to an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AgentInputAnswer {
    Allow {
        /// Allowed for the rest of the attempt, not only once.
        for_attempt: bool,
    },
    Deny {
        message: String,
    },
    /// One response per question, in the same order.
    Replies(Vec<QuestionResponse>),
    /// No answer came in time.
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
    /// Usage of this turn alone; absent when the agent does not report it.
    pub(crate) usage: Option<TurnUsage>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TurnOutcome {
    /// The final text.
    Result(String),
    Failed(TurnFailure),
    /// It was stopped on request.
    Interrupted,
}

/// How the agent's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentExit {
    Code(i32),
    Signal(i32),
}
