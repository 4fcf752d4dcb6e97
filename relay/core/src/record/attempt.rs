//! One attempt as stored: its state with the data that belongs to it, its lease, what it reached and how it ended.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::AttentionCause;
use super::ask::InputRecord;
use super::end::{End, Receipt};
use super::goal::Resume;
use super::timeline::{Phase, TimerKind};
use crate::id::{AttemptId, CallId, DaemonId, Incarnation, InputId, InstanceId, TokenId};
use crate::spec::WorkspaceMode;
use crate::time::Wall;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    pub id: AttemptId,
    /// From 1, rising by one within the task.
    pub number: u32,
    pub state: State,
    /// Set by the offer and kept after the end, so that late frames can be judged.
    pub holder: Option<Holder>,
    pub lease: Option<Lease>,
    pub phase: Option<Phase>,
    /// The furthest once-phase seen or implied.
    pub reached: Option<Phase>,
    pub retry_safe: bool,
    /// `Some(false)` only from the worker's receipt: frames are missing precisely when leases expire.
    pub prompt_written: Option<bool>,
    pub tools: Vec<OpenTool>,
    pub inputs: Vec<InputRecord>,
    /// The newest control frame applied; replays up to here are dropped and acknowledged again.
    pub control_seq: u64,
    /// Number of the newest completion that was refused for want of files, so that whoever did not hear it can be told again.
    pub refused_seq: Option<u64>,
    /// End of the output known to be stored, in bytes.
    pub output_end: u64,
    /// Named by the terminal frame.
    pub final_offset: Option<u64>,
    pub times: StageTimes,
    /// Used-up time of its timers when this was written.
    pub budgets: Vec<Budget>,
    /// The relay's uptime when `budgets` was written: what passed since is used up too. While it is queued, the
    /// uptime in which it was neither paused nor held; once it has ended, the uptime of its end.
    pub budgets_at_ms: u64,
    pub usage: Usage,
    pub agent_session_id: Option<Arc<str>>,
    /// It begins a conversation anew, because the one before it could not be resumed.
    pub fresh: bool,
    pub result: Option<Arc<[u8]>>,
    /// What was seen with the newest completion, also a refused one.
    pub artifacts: Vec<Artifact>,
    /// Where it ran and what it left there, as far as its daemon has said.
    pub workspace: Option<Box<Workspace>>,
    /// A terminal frame that came too late was kept as evidence (one is enough).
    pub late_terminal: bool,
    /// A person asked for it; a late result of its predecessor may not undo that.
    pub asked: bool,
    pub previous: Option<AttemptId>,
    pub successor: Option<AttemptId>,
    /// Who sent the task on from here, where it waited for a person.
    pub handed_to: Option<Arc<str>>,
    /// What a person had to say when it was made.
    pub resume: Option<Box<Resume>>,
    pub span_id: [u8; 8],
}

impl AttemptRecord {
    /// A new one that waits for a daemon.
    pub(crate) fn queued(id: AttemptId, number: u32, span_id: [u8; 8], at: Wall) -> Self {
        Self {
            id,
            number,
            state: State::Queued,
            holder: None,
            lease: None,
            phase: None,
            reached: None,
            retry_safe: true,
            prompt_written: None,
            tools: Vec::new(),
            inputs: Vec::new(),
            control_seq: 0,
            refused_seq: None,
            output_end: 0,
            final_offset: None,
            times: StageTimes {
                queued: Some(at),
                ..StageTimes::default()
            },
            budgets: Vec::new(),
            budgets_at_ms: 0,
            usage: Usage::default(),
            agent_session_id: None,
            fresh: false,
            result: None,
            artifacts: Vec::new(),
            workspace: None,
            late_terminal: false,
            asked: false,
            previous: None,
            successor: None,
            handed_to: None,
            resume: None,
            span_id,
        }
    }

    /// The daemon that runs or ran it.
    pub fn daemon(&self) -> Option<&DaemonHolder> {
        match self.holder.as_ref()? {
            Holder::Daemon(daemon) => Some(daemon),
            Holder::Agent(_) => None,
        }
    }

    /// The agent that holds or held its lease itself.
    pub fn agent(&self) -> Option<&AgentHolder> {
        match self.holder.as_ref()? {
            Holder::Daemon(_) => None,
            Holder::Agent(agent) => Some(agent),
        }
    }
}

impl AttemptRecord {
    /// Control frames up to here may be acknowledged. A refused completion may not while it is the newest: it would count as
    /// told, and its holder might never hear that it was refused.
    pub(crate) fn acked_seq(&self) -> u64 {
        let refused = self.refused_seq == Some(self.control_seq) && !mutant!(RefusalForgotten);
        self.control_seq - u64::from(refused)
    }
}

/// The machine's state. Seventeen by name (`AttemptState`): the seven ends share one variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
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
        pending: Option<Pending>,
    },
    Parked(Parked),
    Ended(End),
}

impl State {
    pub fn name(&self) -> AttemptState {
        match self {
            State::Queued => AttemptState::Queued,
            State::Offered => AttemptState::Offered,
            State::Accepted => AttemptState::Accepted,
            State::Starting => AttemptState::Starting,
            State::Prompted => AttemptState::Prompted,
            State::Streaming => AttemptState::Streaming,
            State::ToolRunning => AttemptState::ToolRunning,
            State::WaitingInput => AttemptState::WaitingInput,
            State::CleaningUp { .. } => AttemptState::CleaningUp,
            State::Parked(_) => AttemptState::Parked,
            State::Ended(end) => end.state.name(),
        }
    }

    /// What is known of the death of its processes; nothing while somebody holds it.
    pub fn receipt(&self) -> Option<Receipt> {
        match self {
            State::Queued => Some(Receipt::NotNeeded),
            State::Parked(parked) => Some(parked.receipt),
            State::Ended(end) => Some(end.receipt),
            State::Offered
            | State::Accepted
            | State::Starting
            | State::Prompted
            | State::Streaming
            | State::ToolRunning
            | State::WaitingInput
            | State::CleaningUp { .. } => None,
        }
    }

    /// Whether somebody holds a lease for it.
    pub fn is_leased(&self) -> bool {
        match self {
            State::Offered
            | State::Accepted
            | State::Starting
            | State::Prompted
            | State::Streaming
            | State::ToolRunning
            | State::WaitingInput
            | State::CleaningUp { .. } => true,
            State::Queued | State::Parked(_) | State::Ended(_) => false,
        }
    }

    pub fn end(&self) -> Option<&End> {
        if let State::Ended(end) = self {
            Some(end)
        } else {
            None
        }
    }
}

/// The flat names, for display and lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AttemptState {
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

impl AttemptState {
    pub fn as_str(self) -> &'static str {
        match self {
            AttemptState::Queued => "queued",
            AttemptState::Offered => "offered",
            AttemptState::Accepted => "accepted",
            AttemptState::Starting => "starting",
            AttemptState::Prompted => "prompted",
            AttemptState::Streaming => "streaming",
            AttemptState::ToolRunning => "tool_running",
            AttemptState::WaitingInput => "waiting_input",
            AttemptState::CleaningUp => "cleaning_up",
            AttemptState::Parked => "parked",
            AttemptState::Completed => "completed",
            AttemptState::Failed => "failed",
            AttemptState::Canceled => "canceled",
            AttemptState::TimedOut => "timed_out",
            AttemptState::Lost => "lost",
            AttemptState::Released => "released",
            AttemptState::HandedOff => "handed_off",
        }
    }
}

/// Who has the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Holder {
    Daemon(DaemonHolder),
    Agent(AgentHolder),
}

impl Holder {
    pub fn name(&self) -> &Arc<str> {
        match self {
            Holder::Daemon(daemon) => &daemon.name,
            Holder::Agent(agent) => &agent.name,
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
    pub granted_by: Option<CallMark>,
    /// Its newest calls that were obeyed and had an id, oldest first.
    pub calls: Vec<HeardCall>,
}

/// What tells a call from every other one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallMark {
    pub id: CallId,
    /// SHA-256 of the call as it was sent, with its proof.
    pub digest: [u8; 32],
}

/// A call that was obeyed. Its answer may have been lost, so it may come again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeardCall {
    pub mark: CallMark,
    /// The number of the checkpoint that it wrote.
    pub checkpoint: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
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
pub enum Pending {
    Deadline {
        timer: TimerKind,
        tool: Option<Arc<str>>,
        phase: Option<Phase>,
    },
    Cancel {
        operator: bool,
    },
    /// A timed out input of a task that parks instead of failing.
    Park,
    /// The daemon ends it for a deadline that it has seen pass, and has not said how it ended. Nothing is decided by it but
    /// what it ends as without a word.
    OwnDeadline {
        timer: TimerKind,
    },
}

/// A parked attempt has no lease and no timer; it is listed with its age.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parked {
    pub cause: ParkCause,
    pub since: Wall,
    pub receipt: Receipt,
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
    pub fn attention(self) -> AttentionCause {
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
    pub queued: Option<Wall>,
    pub offered: Option<Wall>,
    pub accepted: Option<Wall>,
    pub started: Option<Wall>,
    pub agent_started: Option<Wall>,
    pub prompt_written: Option<Wall>,
    pub first_event: Option<Wall>,
    pub first_visible_event: Option<Wall>,
    pub cleanup_started: Option<Wall>,
    pub cleanup_finished: Option<Wall>,
    pub ended: Option<Wall>,
}

impl StageTimes {
    /// Notes when a once-phase was reached; the others have no stage of their own.
    pub(crate) fn reached(&mut self, phase: Phase, at: Wall) {
        let stage = match phase {
            Phase::Started => &mut self.started,
            Phase::AgentStarted => &mut self.agent_started,
            Phase::PromptWritten => &mut self.prompt_written,
            Phase::FirstEventSeen => &mut self.first_event,
            Phase::FirstVisibleEventSeen => &mut self.first_visible_event,
            Phase::CleanupStarted => &mut self.cleanup_started,
            Phase::CleanupFinished => &mut self.cleanup_finished,
            Phase::Accepted
            | Phase::Queued
            | Phase::Streaming
            | Phase::ToolStarted
            | Phase::ToolFinished
            | Phase::WaitingInput
            | Phase::InputReceived
            | Phase::Heartbeat
            | Phase::RetryScheduled
            | Phase::Completed
            | Phase::Failed
            | Phase::Canceled
            | Phase::TimedOut
            | Phase::Lost
            | Phase::Blocked
            | Phase::Checkpointed
            | Phase::Released => return,
        };
        *stage = Some(at);
    }
}

/// How much of one timer's limit is used up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
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
pub struct Usage {
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
pub struct Workspace {
    pub path: Arc<str>,
    pub mode: Option<WorkspaceMode>,
    pub base_commit: Option<Arc<str>>,
    pub branch: Option<Arc<str>>,
    pub head_commit: Option<Arc<str>>,
    /// Of uncommitted changes; none where there are none.
    pub dirty_digest: Option<Arc<str>>,
    pub changed_files: u64,
    /// The directory is still there.
    pub kept: bool,
}

/// The daemon's evidence about one required file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Which file of the contract, from 0: the specification has its path.
    pub required: u8,
    pub exists: bool,
    pub is_file: bool,
    pub size: u64,
    pub sha256: Option<Arc<str>>,
    pub modified: Option<Wall>,
    /// Where links inside the root led; none where that is the path itself.
    pub resolved: Option<Arc<str>>,
    /// Why it was refused or could not be read.
    pub problem: Option<Arc<str>>,
}
