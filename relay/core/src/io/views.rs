//! Views of the core's memory for callers: tasks, the scheduler and daemons, with state that is
//! in no record.

use std::sync::Arc;

use crate::ids::{AttemptId, InputId, TaskId, TenantId};
use crate::io::session_input::MachineLoad;
use crate::record::{
    AttemptStateKind, DaemonRecord, LifecyclePhase, PauseChange, PauseMark, TaskRecord, TimerKind,
};
use crate::task::diagnosis::TaskDiagnosis;
use crate::task::spec::TaskSpec;
use crate::time::WallTime;

/// A live task with state that is in no record.
#[derive(Debug)]
pub struct TaskView {
    pub record: Arc<TaskRecord>,
    pub spec: Arc<TaskSpec>,
    pub deadlines: Vec<DeadlineView>,
    /// Why it does not run now, as a code; `None` if it runs.
    pub wait_reason: Option<WaitReason>,
    /// The longest remaining wait, if only time ends the wait.
    pub max_wait_ms: Option<u64>,
    /// Another task that must end first: an earlier turn of its conversation.
    pub waits_for_task: Option<TaskId>,
    /// A need that no connected daemon meets, as text; `None` if some daemon could take the
    /// task, now or later.
    pub unmet_need: Option<String>,
    /// The pause that prevents its dispatch, and the level of that pause.
    pub pause: Option<(PauseLevel, PauseMark)>,
    pub diagnoses: Vec<TaskDiagnosis>,
}

/// What a pause applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseLevel {
    Task,
    Tenant,
    Scheduler,
}

/// Counts and ages of tasks and daemons that the caller may see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerView {
    pub paused: Option<PauseMark>,
    pub tenants: Vec<(TenantId, PauseMark)>,
    /// Oldest first.
    pub changes: Vec<PauseChange>,
    pub open: u64,
    pub open_limit: u64,
    pub queued: u64,
    pub running: u64,
    pub pending: u64,
    pub needs_attention: u64,
    pub paused_tasks: u64,
    pub pending_inputs: u64,
    pub oldest_queued_ms: u64,
    pub daemons_online: u64,
    pub free_slots: u64,
    pub inherited: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlineView {
    pub timer: TimerKind,
    pub tool: Option<Arc<str>>,
    pub input: Option<InputId>,
    pub limit_ms: u64,
    pub remaining_ms: u64,
    /// For display; `None` while the timer is paused.
    pub at: Option<WallTime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// No daemon that may take it has a free slot.
    Daemon,
    /// It waits for an agent to claim it.
    Agent,
    Backoff,
    /// An earlier attempt may still run.
    Fence,
    /// Another task of its conversation runs.
    Conversation,
    Pause,
    Person,
    /// It was inherited, and grants made after the data was saved are unknown.
    Inheritance,
    /// The relay's disk is nearly full.
    DiskSpace,
}

impl WaitReason {
    pub fn as_str(self) -> &'static str {
        match self {
            WaitReason::Daemon => "daemon",
            WaitReason::Agent => "agent",
            WaitReason::Backoff => "backoff",
            WaitReason::Fence => "fence",
            WaitReason::Conversation => "conversation",
            WaitReason::Pause => "pause",
            WaitReason::Person => "person",
            WaitReason::Inheritance => "inheritance",
            WaitReason::DiskSpace => "space",
        }
    }
}

#[derive(Clone, Debug)]
pub struct DaemonView {
    pub record: Arc<DaemonRecord>,
    /// When its stream began and last received data; `None` without a stream.
    pub connected: Option<ConnectionView>,
    pub draining: bool,
    pub is_sick: bool,
    pub free_slots: u32,
    /// Failures in a row.
    pub consecutive_failures: u32,
    pub load: Option<MachineLoad>,
    pub held_attempts: Vec<HeldAttemptView>,
    /// The time of this view.
    pub viewed_at: WallTime,
}

/// An attempt that a daemon holds, and what it is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldAttemptView {
    pub task: TaskId,
    pub attempt: AttemptId,
    pub number: u32,
    pub state: AttemptStateKind,
    pub phase: Option<LifecyclePhase>,
    pub agent: String,
    /// When it was offered.
    pub since: Option<WallTime>,
    /// The running tool that was started last.
    pub tool: Option<Arc<str>>,
}

/// The times of a daemon's stream, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    pub since: WallTime,
    pub last_received: WallTime,
    /// The first heartbeat proved that the daemon receives; before that it gets no offers.
    pub heartbeat_seen: bool,
}
