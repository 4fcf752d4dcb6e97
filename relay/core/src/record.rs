//! What is stored of a task: one record with its attempts and timeline, written whole on each durable change.
//!
//! Records hold durations and consumed budgets, never a `Moment`: after a restart a moment means nothing. Wall
//! times are for display. Field order is the storage format (postcard), so a change of it needs a new schema number.

mod ask;
mod attempt;
mod audit;
mod code;
mod end;
mod fleet;
mod goal;
mod pauses;
mod timeline;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use ask::{Answer, Decision, InputKind, InputRecord, InputState};
pub use attempt::{
    AgentHolder, Artifact, AttemptRecord, AttemptState, Budget, CallMark, DaemonHolder, HeardCall,
    Holder, Lease, OpenTool, ParkCause, Parked, Pending, StageTimes, State, Usage, Workspace,
};
pub use audit::{
    Audit, DaemonChange, DaemonChangesRecord, DaemonOperation, Operation, PauseChange, Standing,
};
pub use code::{FailureCode, RejectCode};
pub use end::{End, EndState, EndedBy, Exit, Receipt};
pub use fleet::{
    AgentRecord, DaemonRecord, DrainMark, FenceRecord, Forgotten, ForgottenRecord,
    IdempotencyRecord, InheritedHold, Pause, Platform, Release, Runner, SchedulerRecord,
};
pub use goal::{CheckpointKind, CheckpointRecord, Evidence, FailedItem, ProgressRecord, Resume};
pub use pauses::{PausesRecord, TenantPause};
pub use timeline::{
    AUDITS_MAX, EventKind, Phase, TIMELINE_MAX, Timeline, TimelineEvent, TimerKind,
};

use crate::id::{AttemptId, CheckpointId, DaemonId, TaskId, TenantId};
use crate::time::Wall;

/// A task's changing half; the other half is its immutable `TaskSpec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRecord {
    pub tenant: TenantId,
    pub task: TaskId,
    /// Number of the newest timeline event. A quiet write (a consumed budget) leaves it as it is.
    pub revision: u64,
    /// Derived by `task::derive`, stored so that lists need not derive it again.
    pub state: TaskState,
    pub created: Wall,
    pub updated: Wall,
    pub ended: Option<Wall>,
    /// Oldest first; numbers rise by one.
    pub attempts: Vec<AttemptRecord>,
    pub cancel: Option<CancelRecord>,
    pub attention: Option<Attention>,
    pub retry: Option<RetryDue>,
    pub counters: Counters,
    pub paused: Option<Pause>,
    /// Why no further attempt follows the last one, if a rule decided that.
    pub retry_stop: Option<Arc<str>>,
    /// Checkpoints ever written; the newest one has this number.
    pub checkpoints: u64,
    /// The revision up to which the newest one tells.
    pub checkpointed: u64,
    pub timeline: Timeline,
    pub trace: TraceIds,
}

impl TaskRecord {
    pub fn newest(&self) -> Option<&AttemptRecord> {
        self.attempts.last()
    }

    pub fn attempt(&self, id: AttemptId) -> Option<&AttemptRecord> {
        self.attempts.iter().rev().find(|attempt| attempt.id == id)
    }
}

/// The nine states of a task; derived, never set by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TaskState {
    Pending,
    Queued,
    Running,
    NeedsAttention,
    Completed,
    Failed,
    Canceled,
    TimedOut,
    Lost,
}

impl TaskState {
    pub fn is_terminal(self) -> bool {
        use TaskState::{
            Canceled, Completed, Failed, Lost, NeedsAttention, Pending, Queued, Running, TimedOut,
        };
        match self {
            Pending | Queued | Running | NeedsAttention => false,
            Completed | Failed | Canceled | TimedOut | Lost => true,
        }
    }

    /// The stable name on every surface.
    pub fn as_str(self) -> &'static str {
        match self {
            TaskState::Pending => "pending",
            TaskState::Queued => "queued",
            TaskState::Running => "running",
            TaskState::NeedsAttention => "needs_attention",
            TaskState::Completed => "completed",
            TaskState::Failed => "failed",
            TaskState::Canceled => "canceled",
            TaskState::TimedOut => "timed_out",
            TaskState::Lost => "lost",
        }
    }
}

/// A cancel and how far it got: requested, delivered to the holder, confirmed dead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRecord {
    pub by: Arc<str>,
    pub operator: bool,
    pub reason: Option<Arc<str>>,
    /// The attempt it names, if one was open; a later attempt is never touched by it.
    pub attempt: Option<AttemptId>,
    pub requested: Wall,
    pub delivered: Option<Wall>,
    pub confirmed: Option<Wall>,
}

/// Why a person has to look. A task-level fact: the attempt may be parked or already lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attention {
    pub cause: AttentionCause,
    pub reason: Arc<str>,
    /// What would help, in the words of whoever blocked it.
    pub hint: Option<Arc<str>>,
    /// Written with the block.
    pub checkpoint: Option<CheckpointId>,
    pub since: Wall,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AttentionCause {
    Blocked,
    Starved,
    UnsafeLoss,
    Poison,
    InputTimeout,
    /// Required files are missing, and the contract parks.
    ReceiptsMissing,
}

impl AttentionCause {
    pub fn as_str(self) -> &'static str {
        match self {
            AttentionCause::Blocked => "blocked",
            AttentionCause::Starved => "starved",
            AttentionCause::UnsafeLoss => "unsafe_loss",
            AttentionCause::Poison => "poison",
            AttentionCause::InputTimeout => "input_timeout",
            AttentionCause::ReceiptsMissing => "receipts_missing",
        }
    }
}

/// A retry that waits for its backoff; at boot it waits for the remaining time again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryDue {
    pub remaining_ms: u64,
    /// For display.
    pub at: Wall,
}

/// What the retry rules count; attempts that ended released or handed_off count in none but `dispatches`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Attempts that ended failed or timed_out.
    pub failures: u32,
    /// Attempts that ended lost.
    pub losses: u32,
    /// Attempts ever offered to a daemon.
    pub dispatches: u32,
    /// Different daemons lost under it; two make it poison.
    pub daemons_lost: Vec<DaemonId>,
    /// Code and exit of the newest failure: the same pair twice in a row ends retries.
    pub last_failure: Option<(FailureCode, Option<Exit>)>,
}

/// Fixed at submit, so that a restart loses no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceIds {
    pub trace_id: [u8; 16],
    pub root_span: [u8; 8],
    /// The caller's span, from its traceparent.
    pub parent_span: Option<[u8; 8]>,
    pub sampled: bool,
}
