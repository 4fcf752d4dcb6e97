//! One attempt as stored: its state with the data that belongs to it, its lease, what it reached and how it ended.

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
    /// From 1, rising by one within the task.
    pub number: u32,
    pub state: AttemptState,
    /// Set by the offer and kept after the end, so that late frames can be judged.
    pub holder: Option<LeaseHolder>,
    pub lease: Option<LeaseRecord>,
    pub phase: Option<LifecyclePhase>,
    /// The furthest once-phase seen or implied.
    pub furthest_phase: Option<LifecyclePhase>,
    pub retry_safe: bool,
    /// `Some(false)` only from the worker's receipt: frames are missing precisely when leases expire.
    pub prompt_written: Option<bool>,
    pub open_tools: Vec<OpenTool>,
    pub inputs: Vec<InputRecord>,
    /// The newest control frame applied; replays up to here are dropped and acknowledged again.
    pub control_seq: u64,
    /// Number of the newest completion that was refused for want of files, so that whoever did not hear it can be told again.
    pub refused_completion_seq: Option<u64>,
    /// End of the output known to be stored, in bytes.
    pub output_end: u64,
    /// Named by the terminal frame.
    pub final_offset: Option<u64>,
    pub stage_times: StageTimes,
    /// Used-up time of its timers when this was written.
    pub budgets: Vec<TimerBudget>,
    /// The relay's uptime when `budgets` was written: what passed since is used up too. While it is queued, the
    /// uptime in which it was neither paused nor held; once it has ended, the uptime of its end.
    pub budgets_at_ms: u64,
    pub usage: TokenUsage,
    pub agent_session_id: Option<Arc<str>>,
    /// It begins a conversation anew, because the one before it could not be resumed.
    pub fresh_conversation: bool,
    pub result: Option<Arc<[u8]>>,
    /// What was seen with the newest completion, also a refused one.
    pub artifacts: Vec<ArtifactEvidence>,
    /// Where it ran and what it left there, as far as its daemon has said.
    pub workspace: Option<Box<WorkspaceReport>>,
    /// A terminal frame that came too late was kept as evidence (one is enough).
    pub has_late_terminal: bool,
    /// A person asked for it; a late result of its predecessor may not undo that.
    pub requested_by_person: bool,
    pub previous: Option<AttemptId>,
    pub successor: Option<AttemptId>,
    /// Who sent the task on from here, where it waited for a person.
    pub handed_off_to: Option<Arc<str>>,
    /// What a person had to say when it was made.
    pub resume: Option<Box<ResumeInstructions>>,
    pub span_id: [u8; 8],
}

impl AttemptRecord {
    /// A new one that waits for a daemon.
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

    /// The daemon that runs or ran it.
    pub fn daemon_holder(&self) -> Option<&DaemonHolder> {
        match self.holder.as_ref()? {
            LeaseHolder::Daemon(daemon) => Some(daemon),
            LeaseHolder::Agent(_) => None,
        }
    }

    /// The agent that holds or held its lease itself.
    pub fn agent_holder(&self) -> Option<&AgentHolder> {
        match self.holder.as_ref()? {
            LeaseHolder::Daemon(_) => None,
            LeaseHolder::Agent(agent) => Some(agent),
        }
    }
}

impl AttemptRecord {
    /// Control frames up to here may be acknowledged. A refused completion may not while it is the newest: it would count as
    /// told, and its holder might never hear that it was refused.
    pub(crate) fn ackable_seq(&self) -> u64 {
        let refused =
            self.refused_completion_seq == Some(self.control_seq) && !mutant!(RefusalForgotten);
        self.control_seq - u64::from(refused)
    }
}

/// The machine's state. Seventeen by name (`AttemptState`): the seven ends share one variant.
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
    /// The processes are being ended. `pending` is what it will end as; none when the daemon began on its own.
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

    /// What is known of the death of its processes; nothing while somebody holds it.
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

    /// Whether somebody holds a lease for it.
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

/// The flat names, for display and lists.
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

/// Who has the lease.
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

/// A worker machine. The boot id is the kernel's: a change of it proves that every process of before is gone.
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
    /// Its credential: no other one may speak for the attempt.
    pub token: TokenId,
    /// The credential's name.
    pub name: Arc<str>,
    /// The life of the relay's data in which it was leased; its calls carry no reference that could tell.
    pub incarnation: Incarnation,
    /// The call that it was leased by, if that had an id.
    pub granting_call: Option<CallFingerprint>,
    /// Its newest calls that were obeyed and had an id, oldest first.
    pub answered_calls: Vec<AnsweredCall>,
}

/// What tells a call from every other one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFingerprint {
    pub id: CallId,
    /// SHA-256 of the call as it was sent, with its proof.
    pub digest: [u8; 32],
}

/// A call that was obeyed. Its answer may have been lost, so it may come again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnsweredCall {
    pub fingerprint: CallFingerprint,
    /// The number of the checkpoint that it wrote.
    pub checkpoint: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// SHA-256 of the token; the token itself is never stored.
    pub token_hash: [u8; 32],
    pub ttl_ms: u64,
    /// The largest grant outstanding; boot and the successor rule count with this.
    pub granted_ms: u64,
    pub renewals: u64,
    /// LeaseConfirmed was decided, so a process may exist.
    pub confirmed: bool,
}

/// What an attempt that is being ended will end as; the first one stays.
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
    /// A timed out input of a task that parks instead of failing.
    Park,
    /// The daemon ends it for a deadline that it has seen pass, and has not said how it ended. Nothing is decided by it but
    /// what it ends as without a word.
    DaemonDeadline {
        timer: TimerKind,
    },
}

/// A parked attempt has no lease and no timer; it is listed with its age.
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
    /// The same as a fact about the task.
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

/// When each stage began, on the relay's wall clock; for display and spans.
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
    /// Notes when a once-phase was reached; the others have no stage of their own.
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

/// How much of one timer's limit is used up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerBudget {
    pub timer: TimerKind,
    /// For the timers that exist once per tool call.
    pub tool: Option<Arc<str>>,
    /// For the timers that exist once per input.
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
    /// A decimal number as the agent gave it.
    pub cost_usd: Option<Arc<str>>,
    pub duration_ms: u64,
}

/// The daemon's words about the directory that an attempt ran in: at its start, then at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceReport {
    pub path: Arc<str>,
    pub mode: Option<WorkspaceMode>,
    pub base_commit: Option<Arc<str>>,
    pub branch: Option<Arc<str>>,
    pub head_commit: Option<Arc<str>>,
    /// Of uncommitted changes; none where there are none.
    pub dirty_digest: Option<Arc<str>>,
    pub changed_files: u64,
    /// The directory is still there.
    pub is_retained: bool,
}

/// The daemon's evidence about one required file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactEvidence {
    /// Which file of the contract, from 0: the specification has its path.
    pub contract_index: u8,
    pub exists: bool,
    pub is_file: bool,
    pub size: u64,
    pub sha256: Option<Arc<str>>,
    pub modified: Option<WallTime>,
    /// Where links inside the root led; none where that is the path itself.
    pub resolved: Option<Arc<str>>,
    /// Why it was refused or could not be read.
    pub problem: Option<Arc<str>>,
}
