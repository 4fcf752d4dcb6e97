//! The stored records. A task has one record with its attempts and timeline, written whole on
//! each durable change.
//!
//! Records contain durations and consumed budgets, never a `MonotonicTime`, which is
//! meaningless after a restart. Wall times are for display. Field order is the storage format
//! (postcard), so changing it needs a new schema number.

mod attempt;
mod attempt_end;
mod audit;
mod failure_code;
mod fleet;
mod input;
mod pause;
mod progress;
mod timeline;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use attempt::{
    AgentHolder, AnsweredCall, ArtifactEvidence, AttemptRecord, AttemptState, AttemptStateKind,
    CallFingerprint, DaemonHolder, LeaseHolder, LeaseRecord, OpenTool, ParkCause, ParkedState,
    PendingEnd, StageTimes, TimerBudget, TokenUsage, WorkspaceReport,
};
pub use attempt_end::{AttemptEnd, EndState, EndedBy, ProcessExitStatus, TerminationReceipt};
pub use audit::{
    AuditedOperation, DaemonChange, DaemonChangesRecord, DaemonCondition, DaemonOperation,
    OperatorAudit, PauseChange,
};
pub use failure_code::{FailureCode, RejectCode};
pub use fleet::{
    AgentRecord, DaemonPlatform, DaemonRecord, DrainMark, FenceRecord, ForgottenDaemon,
    ForgottenDaemonsRecord, IdempotencyRecord, InheritedSuspension, PauseMark, PossibleRunner,
    SchedulerRecord, SuspensionRelease,
};
pub use input::{InputDecision, InputKind, InputRecord, InputState, StoredAnswer};
pub use pause::{PausesRecord, TenantPause};
pub use progress::{
    CheckpointKind, CheckpointRecord, EvidenceItem, FailedItem, ProgressRecord, ResumeInstructions,
};
pub use timeline::{
    AUDITS_MAX, LifecyclePhase, TIMELINE_MAX, TaskTimeline, TimelineEvent, TimelineEventKind,
    TimerKind,
};

use crate::ids::{AttemptId, CheckpointId, DaemonId, TaskId, TenantId};
use crate::time::WallTime;

/// The changing part of a task; the immutable part is its `TaskSpec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRecord {
    pub tenant: TenantId,
    pub task: TaskId,
    /// Number of the newest timeline event. A write without an event (a consumed budget) does
    /// not change it.
    pub revision: u64,
    /// Derived by `task_state::derive_task_state`, and stored so that lists need not derive it
    /// again.
    pub state: TaskState,
    pub created: WallTime,
    pub updated: WallTime,
    pub ended: Option<WallTime>,
    /// Oldest first; numbers rise by one.
    pub attempts: Vec<AttemptRecord>,
    pub cancel: Option<CancelRecord>,
    pub attention: Option<TaskAttention>,
    pub retry: Option<RetryDue>,
    pub counters: RetryCounters,
    pub paused: Option<PauseMark>,
    /// Why no further attempt follows the last one, if a rule decided so.
    pub retry_stop_reason: Option<Arc<str>>,
    /// Number of checkpoints ever written, which is also the number of the newest one.
    pub checkpoint_count: u64,
    /// The newest revision that the newest checkpoint covers.
    pub checkpointed_revision: u64,
    pub timeline: TaskTimeline,
    pub trace: TraceIds,
}

impl TaskRecord {
    pub fn newest_attempt(&self) -> Option<&AttemptRecord> {
        self.attempts.last()
    }

    pub fn attempt(&self, id: AttemptId) -> Option<&AttemptRecord> {
        self.attempts.iter().rev().find(|attempt| attempt.id == id)
    }
}

/// The nine states of a task. Derived, never set directly.
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

    /// The stable name in every interface.
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

/// A cancel and its progress: requested, delivered to the holder, processes confirmed dead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRecord {
    pub by: Arc<str>,
    pub operator: bool,
    pub reason: Option<Arc<str>>,
    /// The attempt that the cancel applies to, if one was open. It never affects a later
    /// attempt.
    pub attempt: Option<AttemptId>,
    pub requested: WallTime,
    pub delivered: Option<WallTime>,
    pub confirmed: Option<WallTime>,
}

/// Why a person has to act. It belongs to the task, because the attempt may be parked or
/// already lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskAttention {
    pub cause: AttentionCause,
    pub reason: Arc<str>,
    /// What would help, as stated by the agent or client that blocked the task.
    pub hint: Option<Arc<str>>,
    /// The checkpoint written with the block.
    pub checkpoint: Option<CheckpointId>,
    pub since: WallTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AttentionCause {
    Blocked,
    Starved,
    UnsafeLoss,
    Poison,
    InputTimeout,
    /// Required files are missing, and the contract says to park.
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

/// A retry that waits for its backoff. A boot continues with the remaining time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryDue {
    pub remaining_ms: u64,
    /// For display.
    pub at: WallTime,
}

/// The counters of the retry rules. Attempts that ended released or handed_off count only in
/// `dispatches`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryCounters {
    /// Attempts that ended failed or timed_out.
    pub failures: u32,
    /// Attempts that ended lost.
    pub losses: u32,
    /// Attempts offered to a daemon.
    pub dispatches: u32,
    /// The different daemons that were lost while running the task; two of them make it poison.
    pub daemons_lost: Vec<DaemonId>,
    /// Code and exit status of the newest failure. The same pair twice in a row stops retries.
    pub last_failure: Option<(FailureCode, Option<ProcessExitStatus>)>,
}

/// Trace ids, fixed at submit so that a restart loses no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceIds {
    pub trace_id: [u8; 16],
    pub root_span: [u8; 8],
    /// The caller's span, from its traceparent.
    pub parent_span: Option<[u8; 8]>,
    pub sampled: bool,
}
