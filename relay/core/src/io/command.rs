//! Everything that can happen to the core: requests of clients and operators, facts from daemons, the passing of time.
//!
//! The shell has authenticated, decoded and checked sizes before one of these is built; the core checks meaning.
//! Where an input names a finished task, the shell loads that record first (`Finished`): the core holds live ones only.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::goal::parked_tasks::ParkedListCursor;
use crate::goal::progress::{BlockDraft, GoalReport, ProgressUpdate, SanitizedText};
use crate::ids::{
    AttemptId, DaemonId, DaemonRef, Incarnation, InputId, InstanceId, RequestId, SessionId, TaskId,
    TenantId, TenantScope, TokenId,
};
use crate::io::stored_lookup::{StoredLookup, TaskLookup};
use crate::operator::daemon_operation::OperateDaemon;
use crate::operator::task_operation::OperateTask;
use crate::record::{
    AgentRecord, AttentionCause, CallFingerprint, DaemonPlatform, InputDecision, LifecyclePhase,
    ProgressRecord, RejectCode, ResumeInstructions, TaskRecord, TimerKind, WorkspaceReport,
};
use crate::task::spec::TaskSpec;
use crate::time::WallTime;

pub(crate) use crate::io::attempt_report::NO_RESULT_MESSAGE;
pub use crate::io::attempt_report::{
    CanceledBody, CompletedBody, ErroredBody, LossReason, OutputActivity, OutputSignal,
    ProcessTermination,
};

#[derive(Debug)]
pub enum CoreCommand {
    Submit(SubmitTask),
    /// Submit and claim in one write. Without an idempotency key a lost reply would leave a lease behind, so there is one.
    Start {
        submit: SubmitTask,
        agent: AgentPrincipal,
        fingerprint: Option<Box<CallFingerprint>>,
    },
    /// An agent takes a queued task: this one, or the first that its scope may claim.
    Claim {
        request: RequestId,
        agent: AgentPrincipal,
        fingerprint: Option<Box<CallFingerprint>>,
        task: Option<TaskId>,
        finished: Option<FinishedTask>,
    },
    /// An agent takes a parked task over: attempt N+1 is leased to it, and the parked one is handed off.
    PickUp {
        request: RequestId,
        agent: AgentPrincipal,
        fingerprint: Option<Box<CallFingerprint>>,
        task: TaskId,
        /// The parked attempt that it saw.
        attempt: Option<AttemptId>,
        reason: Option<Arc<str>>,
        finished: Option<FinishedTask>,
    },
    /// What an agent says that holds a lease itself.
    AgentLeaseCall(Box<AgentLeaseCall>),
    /// Idempotent: a task that is finished or already being canceled answers unchanged.
    Cancel {
        request: RequestId,
        tenant: TenantId,
        task: TaskId,
        by: RequestActor,
        reason: Option<Arc<str>>,
        finished: Option<FinishedTask>,
    },
    /// An operator's word on one task: limited in number, and on record with what it found and left.
    Operate(Box<OperateTask>),
    /// Answers a permission request or question of a live attempt.
    Answer {
        request: RequestId,
        tenant: TenantId,
        task: TaskId,
        input: InputId,
        by: RequestActor,
        decision: InputDecision,
        payload: Arc<[u8]>,
        finished: Option<FinishedTask>,
    },
    /// Goal-level progress, from whoever watches or does the work.
    UpdateProgress {
        request: RequestId,
        tenant: TenantId,
        task: TaskId,
        update: Box<SanitizedText<ProgressUpdate>>,
        stored_progress: StoredLookup<Arc<ProgressRecord>>,
        finished: Option<FinishedTask>,
    },
    /// Parks an open task; what runs is told to stop.
    Block {
        request: RequestId,
        tenant: TenantId,
        task: TaskId,
        by: RequestActor,
        block: Box<SanitizedText<BlockDraft>>,
        stored_progress: StoredLookup<Arc<ProgressRecord>>,
        finished: Option<FinishedTask>,
    },
    /// Sends a parked task on. `attempt` is the one that the caller saw.
    Resume {
        request: RequestId,
        tenant: TenantId,
        task: TaskId,
        resume: Box<ResumeInstructions>,
        attempt: Option<AttemptId>,
        finished: Option<FinishedTask>,
    },
    /// Stops new dispatch for all or for one tenant; what runs goes on.
    PauseScheduler {
        request: RequestId,
        scope: TenantScope,
        by: RequestActor,
        reason: Arc<str>,
    },
    UnpauseScheduler {
        request: RequestId,
        scope: TenantScope,
        by: RequestActor,
        reason: Option<Arc<str>>,
    },
    /// Counts and ages of what the caller may see.
    SchedulerStatus {
        request: RequestId,
        scope: TenantScope,
    },
    /// After an import or an accepted loss: the old fleet is down, so what was inherited may be leased now.
    ReleaseInherited {
        request: RequestId,
        by: RequestActor,
        reason: Arc<str>,
    },
    /// An operator's word on one daemon.
    OperateDaemon(Box<OperateDaemon>),
    /// The daemon is gone for good: nothing of it stays on record but this word. Refused while it could come back to what
    /// it holds.
    ForgetDaemon {
        request: RequestId,
        scope: TenantScope,
        daemon: DaemonId,
        by: RequestActor,
        reason: Arc<str>,
    },
    /// A live task with what only the core knows: its armed deadlines and why it waits.
    Inspect {
        request: RequestId,
        tenant: TenantId,
        task: TaskId,
    },
    /// Tasks that wait for a person, newest first.
    ListParked {
        request: RequestId,
        tenant: TenantId,
        causes: Vec<AttentionCause>,
        /// Only those that agents of this scope may pick up.
        agent_scope: Option<Arc<str>>,
        after: Option<ParkedListCursor>,
        limit: usize,
    },
    /// Daemons that the caller may see, away ones too.
    ListDaemons {
        request: RequestId,
        scope: TenantScope,
    },
    /// One of them, by its id or by a name that only one has.
    FindDaemon {
        request: RequestId,
        scope: TenantScope,
        named: DaemonRef,
        /// With all that is shown of it, not only its id.
        shown: bool,
    },
    /// Retention wants finished tasks gone. Those of which something may still be said stay.
    RemoveFinished {
        request: RequestId,
        tasks: Vec<(TenantId, TaskId)>,
        /// What the store has of them, where they are finished.
        finished: Vec<RemovableTask>,
    },
    /// Retention wants daemons forgotten that were not seen for this long.
    ForgetDaemons {
        request: RequestId,
        unseen_ms: u64,
    },
    /// The shell has no room for what a new attempt would write, or has it again. Not stored: a start looks anew.
    SuspendDispatch {
        suspended: bool,
    },

    /// A daemon said Hello. Ids of sessions rise in the order in which the streams were opened.
    SessionOpened {
        session: SessionId,
        hello: Box<DaemonHello>,
    },
    SessionClosed {
        session: SessionId,
    },
    Heartbeat {
        session: SessionId,
        heartbeat: HeartbeatMessage,
    },
    Frame(Box<AttemptFrame>),
    /// Output arrived; coalesced by the session (at most every min(1 s, idle limit / 8) per attempt, trailing edge
    /// flushed; the first event, the first visible one and each tool's first output go at once).
    Activity(OutputActivity),
    /// A restart on purpose: renews the attempt for `granted_ms` (at most `Config::max_hold_ms`), committed before it
    /// is acknowledged.
    ExtendLeases {
        session: SessionId,
        request: u64,
        attempts: Vec<(AttemptId, LeaseToken)>,
        granted_ms: u64,
    },
    /// A Dispatch that was certainly never written to its stream.
    DeliveryFailed {
        session: SessionId,
        attempt: AttemptId,
    },
    /// Time passed. Early or extra ones are harmless.
    Tick,
}

/// Who asked, for the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestActor {
    /// Name of the credential.
    pub name: Arc<str>,
    /// The credential itself: names need not be unique.
    pub token: TokenId,
    pub operator: bool,
}

/// An agent principal: it holds leases itself, of tasks with its scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPrincipal {
    pub token: TokenId,
    /// Name of the credential.
    pub name: Arc<str>,
    pub tenant: TenantId,
    pub scope: Arc<str>,
}

/// One call about a lease that the caller holds. It carries the proof always: there is no stream that could stand for it.
#[derive(Debug)]
pub struct AgentLeaseCall {
    pub request: RequestId,
    pub agent: AgentPrincipal,
    pub task: TaskId,
    pub attempt: AttemptId,
    pub proof: LeaseToken,
    /// Present where the caller may have to say it again.
    pub fingerprint: Option<CallFingerprint>,
    pub verb: AgentLeaseVerb,
    /// What is stored of the task's progress.
    pub stored_progress: StoredLookup<Arc<ProgressRecord>>,
    pub finished: Option<FinishedTask>,
}

impl AgentLeaseVerb {
    /// Whether it needs what is stored of the task's progress.
    pub(crate) fn updates_progress(&self) -> bool {
        match self {
            AgentLeaseVerb::Goal(_) | AgentLeaseVerb::Complete(_, Some(_)) => true,
            AgentLeaseVerb::Renew
            | AgentLeaseVerb::Release { .. }
            | AgentLeaseVerb::Complete(_, None)
            | AgentLeaseVerb::Fail(_)
            | AgentLeaseVerb::Cancel { .. } => false,
        }
    }
}

/// The same words as a daemon's frames, and under the same rules.
#[derive(Clone, Debug)]
pub enum AgentLeaseVerb {
    Renew,
    Release {
        reason: Option<Arc<str>>,
    },
    /// With what is to be said of the task's progress at its end.
    Complete(CompletedBody, Option<SanitizedText<ProgressUpdate>>),
    Fail(ErroredBody),
    /// Progress, a checkpoint, or the block that parks the attempt.
    Goal(GoalReport),
    /// Ends the task from the holder's side, or confirms the cancel that `Renew` told of.
    Cancel {
        reason: Option<Arc<str>>,
    },
}

#[derive(Debug)]
pub struct SubmitTask {
    pub request: RequestId,
    /// Minted by the shell; unused if the key is already known.
    pub task: TaskId,
    pub spec: Arc<TaskSpec>,
    /// SHA-256 of the submission as sent; compared where an idempotency key repeats.
    pub digest: [u8; 32],
    /// What the store knows of this idempotency key.
    pub prior_submission: StoredLookup<PriorSubmission>,
}

#[derive(Debug)]
pub struct PriorSubmission {
    pub task: TaskId,
    pub digest: [u8; 32],
    /// The task's record, if it is finished.
    pub finished: Option<Arc<TaskRecord>>,
}

/// A finished task, loaded for an input that names it.
#[derive(Clone, Debug)]
pub struct FinishedTask {
    pub record: Arc<TaskRecord>,
    pub spec: Arc<TaskSpec>,
}

/// A finished task with what stands under other keys than its own.
#[derive(Clone, Debug)]
pub struct RemovableTask {
    pub record: Arc<TaskRecord>,
    pub idempotency_key: Option<String>,
    /// Names a long prompt that is stored beside the records; the core only hands it back.
    pub body: Option<[u8; 32]>,
}

/// The secret half of a lease. Lives in memory only; its `Debug` shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseToken(pub [u8; 32]);

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseToken(..)")
    }
}

/// A daemon's first word on a stream. `daemon` and `scope` come from its credential.
#[derive(Debug)]
pub struct DaemonHello {
    pub daemon: DaemonId,
    pub scope: TenantScope,
    /// The credential that its id is bound to.
    pub token: TokenId,
    pub instance: InstanceId,
    /// The kernel's boot id: another one than before ends all earlier attempts of that machine.
    pub boot_id: Arc<str>,
    pub name: Arc<str>,
    pub version: Arc<str>,
    pub platform: DaemonPlatform,
    pub slots: u32,
    pub labels: BTreeMap<String, String>,
    pub capabilities: Vec<String>,
    /// Also those that cannot run, each with its problem.
    pub agents: Vec<AgentRecord>,
    pub workspaces: Vec<String>,
    /// The daemon takes no new work.
    pub draining: bool,
    pub active: Vec<ActiveAttempt>,
}

/// One attempt that the daemon still has.
#[derive(Debug)]
pub struct ActiveAttempt {
    pub frame_ref: FrameRef,
    /// Absent where the daemon restarted and the shim has it.
    pub proof: Option<LeaseToken>,
    pub state: ActiveAttemptState,
    /// Newest number in the daemon's outbox.
    pub control_seq: u64,
    pub output_end: u64,
    /// What the shell found of its task, before the core's turn or in it.
    pub lookup: TaskLookup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActiveAttemptState {
    Running,
    /// Ended on its side; its terminal frame is not acknowledged yet.
    Finished,
    /// Its shim did not answer in time: it may run, so it is kept but not renewed.
    Unreachable,
}

#[derive(Debug)]
pub struct HeartbeatMessage {
    pub seq: u64,
    /// The newest answer that the daemon has read; none where it does not say.
    pub received_ack_seq: Option<u64>,
    pub renewals: Vec<(AttemptId, LeaseToken)>,
    pub free_slots: u32,
    pub draining: bool,
    /// Its machine could take no work now, whatever the task.
    pub unfit: bool,
    pub load: Option<MachineLoad>,
}

/// How a daemon's machine stands, by its own word; for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineLoad {
    pub memory_available_percent: Option<u32>,
    /// Load average over a minute, in thousandths.
    pub load_1m_milli: Option<u64>,
    pub disk_free_percent: Option<u32>,
    pub unacked_bytes: Option<u64>,
}

/// Whose frame it is. All of it must match: a stale or foreign one changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRef {
    pub task: TaskId,
    pub attempt: AttemptId,
    pub number: u32,
    pub incarnation: Incarnation,
}

#[derive(Debug)]
pub struct AttemptFrame {
    pub session: SessionId,
    pub frame_ref: FrameRef,
    /// From 1 within the attempt, without a gap.
    pub control_seq: u64,
    pub observed: WallTime,
    /// Live frames that change the lease carry it; frames replayed from a disk outbox do not.
    pub proof: Option<LeaseToken>,
    pub body: FrameBody,
    /// What the frame says about where the attempt runs, or what it left there.
    pub workspace: Option<Box<WorkspaceReport>>,
    pub finished: Option<FinishedTask>,
    /// What is stored of its task's progress, where the body adds to it.
    pub stored_progress: StoredLookup<Arc<ProgressRecord>>,
}

#[derive(Clone, Debug)]
pub enum FrameBody {
    /// The daemon will run it once LeaseConfirmed arrives.
    Accepted,
    /// The daemon has not started it and will not: counts as a receipt.
    Rejected {
        code: RejectCode,
        message: Option<Arc<str>>,
    },
    Started,
    /// A phase without data of its own. Terminal phases here are diagnostics: they end nothing.
    Phase {
        phase: LifecyclePhase,
        message: Option<Arc<str>>,
        /// Of cleanup_started: the deadline that the daemon ends it for.
        deadline: Option<TimerKind>,
    },
    ToolStarted {
        id: Arc<str>,
        name: Arc<str>,
    },
    ToolFinished {
        id: Arc<str>,
    },
    PermissionRequest {
        input: InputId,
        tool_name: Arc<str>,
        /// What the tool would be called with: what rules look at, and what an answer is bound to. Part of the payload.
        arguments: Arc<[u8]>,
        payload: Arc<[u8]>,
    },
    Question {
        input: InputId,
        payload: Arc<[u8]>,
    },
    InputWithdrawn {
        input: InputId,
    },
    /// The daemon has the answer of this input.
    InputReceived {
        input: InputId,
    },
    /// Progress, a checkpoint or a block.
    Goal(GoalReport),
    Completed(CompletedBody),
    Errored(ErroredBody),
    Canceled(CanceledBody),
    /// The daemon gives it back untouched or stopped on purpose; the task is queued again and nothing is counted.
    Released {
        reason: Option<Arc<str>>,
        termination: ProcessTermination,
    },
    /// The processes are gone; sent when no terminal frame says so.
    Receipt {
        termination: ProcessTermination,
    },
    /// A phase or body from a newer protocol: takes its number, is counted, changes nothing.
    Unknown,
}
