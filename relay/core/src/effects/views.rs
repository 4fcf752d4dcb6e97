//! What a caller is shown of the core's memory: tasks, the scheduler and daemons, with what is in no record.

use std::sync::Arc;

use crate::diagnose::Diagnosis;
use crate::id::{AttemptId, InputId, TaskId, TenantId};
use crate::input::MachineLoad;
use crate::record::{AttemptState, DaemonRecord, Pause, PauseChange, Phase, TaskRecord, TimerKind};
use crate::spec::TaskSpec;
use crate::time::Wall;

/// A live task with what is in no record.
#[derive(Debug)]
pub struct TaskView {
    pub record: Arc<TaskRecord>,
    pub spec: Arc<TaskSpec>,
    pub deadlines: Vec<DeadlineView>,
    /// Why it is not being run at this moment, as a code; none if it is.
    pub waits_for: Option<WaitsFor>,
    /// How long it waits at most, where time alone ends that.
    pub waits_ms: Option<u64>,
    /// Another task that has to end first: an earlier turn of its conversation.
    pub behind: Option<TaskId>,
    /// A need that no connected daemon meets, in words; none where some daemon could take it, now or later.
    pub unmet: Option<String>,
    /// The pause that keeps it from being dispatched, and whose it is.
    pub pause: Option<(Paused, Pause)>,
    pub diagnoses: Vec<Diagnosis>,
}

/// What a pause is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paused {
    Task,
    Tenant,
    Scheduler,
}

/// Counts and ages of what a caller may see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerView {
    pub paused: Option<Pause>,
    pub tenants: Vec<(TenantId, Pause)>,
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
    /// For display; none while it is paused.
    pub at: Option<Wall>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// No daemon has a free slot and may take it.
    Daemon,
    /// It is for agents to claim, and none has.
    Agent,
    Backoff,
    /// An earlier attempt may still run.
    Fence,
    /// Another task of its conversation runs.
    Conversation,
    Pause,
    Person,
    /// It was inherited, and later grants of it are unknown.
    Inheritance,
    /// The relay's disk is nearly full.
    Space,
}

impl WaitsFor {
    pub fn as_str(self) -> &'static str {
        match self {
            WaitsFor::Daemon => "daemon",
            WaitsFor::Agent => "agent",
            WaitsFor::Backoff => "backoff",
            WaitsFor::Fence => "fence",
            WaitsFor::Conversation => "conversation",
            WaitsFor::Pause => "pause",
            WaitsFor::Person => "person",
            WaitsFor::Inheritance => "inheritance",
            WaitsFor::Space => "space",
        }
    }
}

#[derive(Clone, Debug)]
pub struct DaemonView {
    pub record: Arc<DaemonRecord>,
    /// When its stream began and was last heard; none while it has no stream.
    pub connected: Option<Connected>,
    pub draining: bool,
    pub sick: bool,
    pub free_slots: u32,
    /// In a row.
    pub failures: u32,
    pub load: Option<MachineLoad>,
    pub held: Vec<HeldView>,
    /// When this was seen.
    pub now: Wall,
}

/// An attempt that a daemon holds, and what it is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldView {
    pub task: TaskId,
    pub attempt: AttemptId,
    pub number: u32,
    pub state: AttemptState,
    pub phase: Option<Phase>,
    pub agent: String,
    /// When it was offered.
    pub since: Option<Wall>,
    /// The tool that was started last and runs.
    pub tool: Option<Arc<str>>,
}

/// Since when a stream stands, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    pub since: Wall,
    pub heard: Wall,
    /// It has shown that it hears; before that it is offered nothing.
    pub greeted: bool,
}
