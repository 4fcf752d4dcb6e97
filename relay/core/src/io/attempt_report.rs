//! Reports of a worker about an attempt: its end, the end of its processes, and output activity
//! before it.

use std::sync::Arc;

use super::session_input::FrameRef;
use crate::goal::completion_contract::FoundArtifact;
use crate::ids::SessionId;
use crate::record::{FailureCode, ProcessExitStatus, TokenUsage};

/// What the worker reports about the end of the processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessTermination {
    pub exit: Option<ProcessExitStatus>,
    /// No process of the attempt is left.
    pub group_empty: bool,
    /// `Some(false)`: the prompt never reached the agent, so the agent cannot have done
    /// anything.
    pub prompt_written: Option<bool>,
    /// A description of the cleanup.
    pub cleanup: Option<Arc<str>>,
    /// Why there is no result, if the worker reports a reason.
    pub loss: Option<LossReason>,
}

/// The message of an attempt without a result whose worker reports no reason.
pub(crate) const NO_RESULT_MESSAGE: &str = "its processes ended without reporting a result";

/// Why a worker ended an attempt without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    LeaseEnded,
    DaemonStopped,
    SupervisorDied,
}

impl LossReason {
    /// A description for people; `ttl_ms` is the TTL of the attempt's lease.
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
    /// Total bytes of output.
    pub final_offset: u64,
    /// How many of these bytes the shell has neither stored nor recorded as cut.
    pub output_missing: u64,
    pub termination: ProcessTermination,
    /// The agent reported a result and then hung.
    pub killed_after_result: bool,
    /// The daemon reports that it saw the end before its local lease limit.
    pub ended_in_lease: bool,
}

#[derive(Clone, Debug)]
pub struct ErroredBody {
    pub code: FailureCode,
    /// Can forbid a retry that the relay would make, but cannot cause one.
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
    /// The failure of a completion without its required files, if the contract asks for it.
    pub(crate) fn receipts_missing(result: CompletedBody, unmet_summary: Arc<str>) -> Self {
        Self {
            code: FailureCode::ReceiptsMissing,
            retryable_hint: None,
            message: Some(Arc::clone(&unmet_summary)),
            user_message: Some(unmet_summary),
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
    /// Tool calls that the output belongs to; empty for the agent's own output.
    pub tools: Vec<Arc<str>>,
    pub output_end: u64,
}

/// What kind of activity the output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutputSignal {
    /// Output before the agent got its prompt.
    BeforePrompt,
    Event,
    /// Part of the output is visible to people.
    VisibleEvent,
}
