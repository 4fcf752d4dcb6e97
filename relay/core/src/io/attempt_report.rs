//! What a worker says when an attempt is over, what it knows of the end of its processes, and signs of life before it.

use std::sync::Arc;

use super::session_input::FrameRef;
use crate::goal::completion_contract::FoundArtifact;
use crate::ids::SessionId;
use crate::record::{FailureCode, ProcessExitStatus, TokenUsage};

/// What the worker knows of the processes' end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessTermination {
    pub exit: Option<ProcessExitStatus>,
    /// No process of the attempt is left.
    pub group_empty: bool,
    /// `Some(false)`: the prompt never reached the agent, so nothing can have happened.
    pub prompt_written: Option<bool>,
    /// What the cleanup did, in words.
    pub cleanup: Option<Arc<str>>,
    /// Why there is no result, where the worker knows.
    pub loss: Option<LossReason>,
}

/// What is said of an attempt without a result whose worker does not say why.
pub(crate) const NO_RESULT_MESSAGE: &str = "its processes are gone and told no result";

/// Why a worker ended an attempt without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    LeaseEnded,
    DaemonStopped,
    SupervisorDied,
}

impl LossReason {
    /// For whoever looks at the task; `ttl_ms` is of the lease that it had.
    pub fn description(self, ttl_ms: Option<u64>) -> String {
        match (self, ttl_ms) {
            (LossReason::LeaseEnded, Some(ttl_ms)) => format!(
                "its daemon ended it, because no relay renewed its lease of {} s in time",
                ttl_ms / 1_000
            ),
            (LossReason::LeaseEnded, None) => {
                "its daemon ended it, because no relay renewed its lease in time".to_owned()
            }
            (LossReason::DaemonStopped, _) => {
                "its daemon was stopped and ended what still ran".to_owned()
            }
            (LossReason::SupervisorDied, _) => {
                "the process that supervised it died without a report, \
                 or was stuck and was killed; what it had started was ended"
                    .to_owned()
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct CompletedBody {
    pub result: Option<Arc<[u8]>>,
    pub usage: TokenUsage,
    pub agent_session_id: Option<Arc<str>>,
    pub artifacts: Vec<FoundArtifact>,
    /// Bytes of output in all.
    pub final_offset: u64,
    /// How many of them the shell has neither stored nor recorded as cut.
    pub output_missing: u64,
    pub termination: ProcessTermination,
    /// There was a result, then a hang.
    pub killed_after_result: bool,
    /// The daemon's word that it saw the end before its local lease limit.
    pub ended_in_lease: bool,
}

#[derive(Clone, Debug)]
pub struct ErroredBody {
    pub code: FailureCode,
    /// Can only lower what the relay decides.
    pub retryable_hint: Option<bool>,
    pub message: Option<Arc<str>>,
    pub user_message: Option<Arc<str>>,
    pub usage: TokenUsage,
    pub agent_session_id: Option<Arc<str>>,
    pub final_offset: u64,
    pub termination: ProcessTermination,
    pub ended_in_lease: bool,
}

impl ErroredBody {
    /// What a result without its files comes to where the contract says that it fails.
    pub(crate) fn receipts_missing(result: CompletedBody, words: Arc<str>) -> Self {
        Self {
            code: FailureCode::ReceiptsMissing,
            retryable_hint: None,
            message: Some(Arc::clone(&words)),
            user_message: Some(words),
            usage: result.usage,
            agent_session_id: result.agent_session_id,
            final_offset: result.final_offset,
            termination: result.termination,
            ended_in_lease: result.ended_in_lease,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct CanceledBody {
    pub reason: Option<Arc<str>>,
    pub usage: TokenUsage,
    pub final_offset: u64,
    pub termination: ProcessTermination,
    pub ended_in_lease: bool,
}

#[derive(Clone, Debug)]
pub struct OutputActivity {
    pub session: SessionId,
    pub frame_ref: FrameRef,
    pub signal: OutputSignal,
    /// Tool calls that it belongs to; empty for the agent's own output.
    pub tools: Vec<Arc<str>>,
    pub output_end: u64,
}

/// What output says of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutputSignal {
    /// The agent had no prompt to work on when it said this.
    BeforePrompt,
    Event,
    /// Some of it was meant for people.
    VisibleEvent,
}
