//! The stored record of an attempt: its state, lease, progress and end.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::AttentionCause;
use super::attempt_end::{AttemptEnd, TerminationReceipt};
use super::input::InputRecord;
use super::progress::ResumeInstructions;
use super::timeline::{LifecyclePhase, TimerKind};
use crate::ids::{AttemptId, CallId, DaemonId, Incarnation, InputId, InstanceId, TokenId};
use crate::task::spec::WorkspaceMode;
use crate::time::WallTime;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    pub id: AttemptId,
    /// Counts from 1 without gaps within the task.
    pub number: u32,
    pub state: AttemptState,
    /// Set by the offer and retained after the end, so that late frames can be checked.
    pub holder: Option<LeaseHolder>,
    pub lease: Option<LeaseRecord>,
    pub phase: Option<LifecyclePhase>,
    /// The furthest one-time phase reported or implied.
    pub furthest_phase: Option<LifecyclePhase>,
    pub retry_safe: bool,
    /// `Some(false)` only from the worker's receipt: when a lease expires, frames are often
    /// missing, so their absence proves nothing.
    pub prompt_written: Option<bool>,
    pub open_tools: Vec<OpenTool>,
    pub inputs: Vec<InputRecord>,
    /// Number of the newest control frame applied. Replays up to it are dropped and
    /// acknowledged again.
    pub control_seq: u64,
    /// Number of the newest completion refused because of missing files. The refusal is sent
    /// again if the holder repeats that frame.
    pub refused_completion_seq: Option<u64>,
    /// End of the stored output, in bytes.
    pub output_end: u64,
    /// End of the output as reported by the terminal frame.
    pub final_offset: Option<u64>,
    pub stage_times: StageTimes,
    /// Consumed time of its timers at the time of this write.
    pub budgets: Vec<TimerBudget>,
    /// Uptime of the relay when `budgets` was written; the time since then is consumed too. For
    /// a queued attempt, only uptime without pause or suspension counts. For an ended attempt,
    /// the uptime at its end.
    pub budgets_at_ms: u64,
    pub usage: TokenUsage,
    pub agent_session_id: Option<Arc<str>>,
    /// It begins a new conversation because the previous one could not be resumed.
    pub fresh_conversation: bool,
    pub result: Option<Arc<[u8]>>,
    /// Evidence of the newest completion, even a refused one.
    pub artifacts: Vec<ArtifactEvidence>,
    /// The daemon's report of the workspace, as far as it has arrived.
    pub workspace: Option<Box<WorkspaceReport>>,
    /// A terminal frame that arrived too late was recorded as evidence; one is enough.
    pub has_late_terminal: bool,
    /// A person requested this attempt. A late result of its predecessor must not undo that.
    pub requested_by_person: bool,
    pub previous: Option<AttemptId>,
    pub successor: Option<AttemptId>,
    /// Who resumed the task after this attempt had waited for a person.
    pub handed_off_to: Option<Arc<str>>,
    /// The instructions of the person who resumed the task.
    pub resume: Option<Box<ResumeInstructions>>,
    pub span_id: [u8; 8],
}

impl AttemptRecord {
    /// A new attempt that waits for a daemon.
    pub(crate) fn queued(id: AttemptId, number: u32, span_id: [u8; 8], at: WallTime) -> Self {
        Self {
            id,
            number,
            state: AttemptState::Queued,
            holder: None,
            lease: None,
            phase: None,
            furthest_phase: None,
            retry_safe: true,
            prompt_written: None,
            open_tools: Vec::new(),
            inputs: Vec::new(),
            control_seq: 0,
            refused_completion_seq: None,
            output_end: 0,
            final_offset: None,
            stage_times: StageTimes {
                queued: Some(at),
                ..StageTimes::default()
            },
            budgets: Vec::new(),
            budgets_at_ms: 0,
            usage: TokenUsage::default(),
            agent_session_id: None,
            fresh_conversation: false,
            result: None,
            artifacts: Vec::new(),
            workspace: None,
            has_late_terminal: false,
            requested_by_person: false,
            previous: None,
            successor: None,
            handed_off_to: None,
            resume: None,
            span_id,
        }
    }

    /// The daemon that holds or held its lease.
    pub fn daemon_holder(&self) -> Option<&DaemonHolder> {
        match self.holder.as_ref()? {
            LeaseHolder::Daemon(daemon) => Some(daemon),
            LeaseHolder::Agent(_) => None,
        }
    }

    /// The agent that holds or held its lease without a daemon.
    pub fn agent_holder(&self) -> Option<&AgentHolder> {
        match self.holder.as_ref()? {
            LeaseHolder::Daemon(_) => None,
            LeaseHolder::Agent(agent) => Some(agent),
        }
    }
}

impl AttemptRecord {
    /// Control frames up to this number may be acknowledged. A refused completion that is the
    /// newest frame is excluded: once it is acknowledged, the holder might never learn of the
    /// refusal.
    pub(crate) fn ackable_seq(&self) -> u64 {
        let refused =
            self.refused_completion_seq == Some(self.control_seq) && !mutant!(RefusalForgotten);
        self.control_seq - u64::from(refused)
    }
}

/// The state of an attempt. It has seventeen names (`AttemptStateKind`), because the seven ends
/// share one variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttemptState {
    Queued,
    Offered,
    Accepted,
    Starting,
    Prompted,
    Streaming,
    ToolRunning,
    WaitingInput,
    /// The processes are being ended. `pending` is the end that will be recorded; absent when
    /// the daemon began cleanup on its own.
    CleaningUp {
        pending: Option<PendingEnd>,
    },
    Parked(ParkedState),
    Ended(AttemptEnd),
}

impl AttemptState {
    pub fn kind(&self) -> AttemptStateKind {
        match self {
            AttemptState::Queued => AttemptStateKind::Queued,
            AttemptState::Offered => AttemptStateKind::Offered,
            AttemptState::Accepted => AttemptStateKind::Accepted,
            AttemptState::Starting => AttemptStateKind::Starting,
            AttemptState::Prompted => AttemptStateKind::Prompted,
            AttemptState::Streaming => AttemptStateKind::Streaming,
            AttemptState::ToolRunning => AttemptStateKind::ToolRunning,
            AttemptState::WaitingInput => AttemptStateKind::WaitingInput,
            AttemptState::CleaningUp { .. } => AttemptStateKind::CleaningUp,
            AttemptState::Parked(_) => AttemptStateKind::Parked,
            AttemptState::Ended(end) => end.state.kind(),
        }
    }

    /// Whether its processes are known to be dead; absent while it is leased.
    pub fn receipt(&self) -> Option<TerminationReceipt> {
        match self {
            AttemptState::Queued => Some(TerminationReceipt::NotNeeded),
            AttemptState::Parked(parked) => Some(parked.receipt),
            AttemptState::Ended(end) => Some(end.receipt),
            AttemptState::Offered
            | AttemptState::Accepted
            | AttemptState::Starting
            | AttemptState::Prompted
            | AttemptState::Streaming
            | AttemptState::ToolRunning
            | AttemptState::WaitingInput
            | AttemptState::CleaningUp { .. } => None,
        }
    }

    /// Whether it has a lease.
    pub fn is_leased(&self) -> bool {
        match self {
            AttemptState::Offered
            | AttemptState::Accepted
            | AttemptState::Starting
            | AttemptState::Prompted
            | AttemptState::Streaming
            | AttemptState::ToolRunning
            | AttemptState::WaitingInput
            | AttemptState::CleaningUp { .. } => true,
            AttemptState::Queued | AttemptState::Parked(_) | AttemptState::Ended(_) => false,
        }
    }

    pub fn end(&self) -> Option<&AttemptEnd> {
        if let AttemptState::Ended(end) = self {
            Some(end)
        } else {
            None
        }
    }
}

/// The names of all states, for display and lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AttemptStateKind {
    Queued,
    Offered,
    Accepted,
    Starting,
    Prompted,
    Streaming,
    ToolRunning,
    WaitingInput,
    CleaningUp,
    Parked,
    Completed,
    Failed,
    Canceled,
    TimedOut,
    Lost,
    Released,
    HandedOff,
}

impl AttemptStateKind {
    pub fn as_str(self) -> &'static str {
        match self {
            AttemptStateKind::Queued => "queued",
            AttemptStateKind::Offered => "offered",
            AttemptStateKind::Accepted => "accepted",
            AttemptStateKind::Starting => "starting",
            AttemptStateKind::Prompted => "prompted",
            AttemptStateKind::Streaming => "streaming",
            AttemptStateKind::ToolRunning => "tool_running",
            AttemptStateKind::WaitingInput => "waiting_input",
            AttemptStateKind::CleaningUp => "cleaning_up",
            AttemptStateKind::Parked => "parked",
            AttemptStateKind::Completed => "completed",
            AttemptStateKind::Failed => "failed",
            AttemptStateKind::Canceled => "canceled",
            AttemptStateKind::TimedOut => "timed_out",
            AttemptStateKind::Lost => "lost",
            AttemptStateKind::Released => "released",
            AttemptStateKind::HandedOff => "handed_off",
        }
    }
}

/// The holder of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseHolder {
    Daemon(DaemonHolder),
    Agent(AgentHolder),
}

impl LeaseHolder {
    pub fn name(&self) -> &Arc<str> {
        match self {
            LeaseHolder::Daemon(daemon) => &daemon.name,
            LeaseHolder::Agent(agent) => &agent.name,
        }
    }
}

/// The daemon of a worker machine. The boot id comes from the kernel: a different one proves
/// that every earlier process is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonHolder {
    pub daemon: DaemonId,
    pub name: Arc<str>,
    pub instance: InstanceId,
    pub boot_id: Arc<str>,
}

/// An agent that works without a daemon and renews its lease itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentHolder {
    /// Its credential; no other one may send calls for the attempt.
    pub token: TokenId,
    /// The credential's name.
    pub name: Arc<str>,
    /// The incarnation of the relay's data in which it was leased. Calls of an agent carry no
    /// incarnation.
    pub incarnation: Incarnation,
    /// The call that obtained the lease, if it had an id.
    pub granting_call: Option<CallFingerprint>,
    /// Its newest accepted calls that had an id, oldest first.
    pub answered_calls: Vec<AnsweredCall>,
}

/// Identifies a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFingerprint {
    pub id: CallId,
    /// SHA-256 of the call as sent, including its proof.
    pub digest: [u8; 32],
}

/// An accepted call. Its reply may have been lost, so it may be sent again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnsweredCall {
    pub fingerprint: CallFingerprint,
    /// Number of the checkpoint that the call wrote.
    pub checkpoint: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// SHA-256 of the token; the token itself is never stored.
    pub token_hash: [u8; 32],
    pub ttl_ms: u64,
    /// The largest outstanding grant; boots and fences use it.
    pub granted_ms: u64,
    pub renewals: u64,
    /// LeaseConfirmed was decided, so a process may exist.
    pub confirmed: bool,
}

/// The end that an attempt in cleanup will get. The first one set stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PendingEnd {
    Deadline {
        timer: TimerKind,
        tool: Option<Arc<str>>,
        phase: Option<LifecyclePhase>,
    },
    Cancel {
        operator: bool,
    },
    /// An input timed out, and the task parks instead of failing.
    Park,
    /// The daemon ends it because of an expired deadline and has not reported the result. It
    /// only decides the end if no result is reported.
    DaemonDeadline {
        timer: TimerKind,
    },
}

/// A parked attempt has no lease and no timer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedState {
    pub cause: ParkCause,
    pub since: WallTime,
    pub receipt: TerminationReceipt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ParkCause {
    Starved,
    Blocked,
    InputTimeout,
    ReceiptsMissing,
}

impl ParkCause {
    /// The corresponding cause for the task.
    pub fn attention_cause(self) -> AttentionCause {
        match self {
            ParkCause::Starved => AttentionCause::Starved,
            ParkCause::Blocked => AttentionCause::Blocked,
            ParkCause::InputTimeout => AttentionCause::InputTimeout,
            ParkCause::ReceiptsMissing => AttentionCause::ReceiptsMissing,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenTool {
    pub id: Arc<str>,
    pub name: Arc<str>,
}

/// When each stage began, by the relay's wall clock; for display and spans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageTimes {
    pub queued: Option<WallTime>,
    pub offered: Option<WallTime>,
    pub accepted: Option<WallTime>,
    pub started: Option<WallTime>,
    pub agent_started: Option<WallTime>,
    pub prompt_written: Option<WallTime>,
    pub first_event: Option<WallTime>,
    pub first_visible_event: Option<WallTime>,
    pub cleanup_started: Option<WallTime>,
    pub cleanup_finished: Option<WallTime>,
    pub ended: Option<WallTime>,
}

impl StageTimes {
    /// Records when a one-time phase was reached; the other phases have no stage.
    pub(crate) fn record_phase(&mut self, phase: LifecyclePhase, at: WallTime) {
        let stage = match phase {
            LifecyclePhase::Started => &mut self.started,
            LifecyclePhase::AgentStarted => &mut self.agent_started,
            LifecyclePhase::PromptWritten => &mut self.prompt_written,
            LifecyclePhase::FirstEventSeen => &mut self.first_event,
            LifecyclePhase::FirstVisibleEventSeen => &mut self.first_visible_event,
            LifecyclePhase::CleanupStarted => &mut self.cleanup_started,
            LifecyclePhase::CleanupFinished => &mut self.cleanup_finished,
            LifecyclePhase::Accepted
            | LifecyclePhase::Queued
            | LifecyclePhase::Streaming
            | LifecyclePhase::ToolStarted
            | LifecyclePhase::ToolFinished
            | LifecyclePhase::WaitingInput
            | LifecyclePhase::InputReceived
            | LifecyclePhase::Heartbeat
            | LifecyclePhase::RetryScheduled
            | LifecyclePhase::Completed
            | LifecyclePhase::Failed
            | LifecyclePhase::Canceled
            | LifecyclePhase::TimedOut
            | LifecyclePhase::Lost
            | LifecyclePhase::Blocked
            | LifecyclePhase::Checkpointed
            | LifecyclePhase::Released => return,
        };
        *stage = Some(at);
    }
}

/// The consumed part of the limit of one timer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerBudget {
    pub timer: TimerKind,
    /// Set for timers that exist per tool call.
    pub tool: Option<Arc<str>>,
    /// Set for timers that exist per input.
    pub input: Option<InputId>,
    pub limit_ms: u64,
    pub consumed_ms: u64,
    pub paused: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    /// A decimal number as reported by the agent.
    pub cost_usd: Option<Arc<str>>,
    pub duration_ms: u64,
}

/// The daemon's report about the workspace of an attempt, sent at its start and at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceReport {
    pub path: Arc<str>,
    pub mode: Option<WorkspaceMode>,
    pub base_commit: Option<Arc<str>>,
    pub branch: Option<Arc<str>>,
    pub head_commit: Option<Arc<str>>,
    /// Digest of uncommitted changes; absent if there are none.
    pub dirty_digest: Option<Arc<str>>,
    pub changed_files: u64,
    /// The directory still exists.
    pub is_retained: bool,
}

/// The daemon's evidence about one required file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactEvidence {
    /// Index of the file in the contract, from 0. The spec contains its path.
    pub contract_index: u8,
    pub exists: bool,
    pub is_file: bool,
    pub size: u64,
    pub sha256: Option<Arc<str>>,
    pub modified: Option<WallTime>,
    /// The resolved path if links inside the root were followed; absent if it is the path
    /// itself.
    pub resolved: Option<Arc<str>>,
    /// Why it was refused or could not be read.
    pub problem: Option<Arc<str>>,
}
