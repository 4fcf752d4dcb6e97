//! What the core wants done: writes that must become durable, and what may be sent once they are.

use std::fmt;
use std::sync::Arc;

use crate::goal::completion_contract::UnmetRequirement;
use crate::ids::{AttemptId, DaemonId, InputId, SessionId, TaskId, TenantId};
use crate::io::rejection::Rejection;
use crate::io::session_input::LeaseToken;
use crate::record::{
    CheckpointKind, CheckpointRecord, DaemonChangesRecord, DaemonRecord, FenceRecord,
    ForgottenDaemonsRecord, IdempotencyRecord, InputDecision, InputKind, PausesRecord,
    ProgressRecord, ResumeInstructions, SchedulerRecord, TaskRecord, TimelineEvent, TimerKind,
};
use crate::task::spec::{TaskSpec, TurnKind};
use crate::time::WallTime;

pub use crate::io::views::{
    ConnectionView, DaemonView, DeadlineView, HeldAttemptView, PauseLevel, SchedulerView, TaskView,
    WaitReason,
};

/// The answer to one input. Writes are one transaction, in order; sends keep their order per session and request.
#[derive(Debug, Default)]
pub struct Effects {
    pub changes: Vec<RecordChange>,
    pub deliveries: Vec<GatedDelivery>,
    /// For metrics: what was refused or odd, and why.
    pub metrics: Vec<CoreMetric>,
}

#[derive(Clone, Debug)]
pub enum RecordChange {
    /// Once per task, before anything else of it.
    PutSpec {
        task: TaskId,
        spec: Arc<TaskSpec>,
    },
    PutLive(Arc<TaskRecord>),
    /// The task ended (or its finished record changed): removes the live record.
    PutDone(Arc<TaskRecord>),
    /// A finished task became live again (an operator's retry): removes the done record.
    Reopen(Arc<TaskRecord>),
    PutIdempotency {
        tenant: TenantId,
        key: String,
        record: IdempotencyRecord,
    },
    PutDaemon(Arc<DaemonRecord>),
    PutScheduler(SchedulerRecord),
    PutFence(FenceRecord),
    DropFence(AttemptId),
    PutProgress(Arc<ProgressRecord>),
    PutCheckpoint(Arc<CheckpointRecord>),
    /// One that newer ones have pushed out.
    DropCheckpoint {
        tenant: TenantId,
        task: TaskId,
        number: u64,
    },
    /// Retention: everything of a finished task, with its idempotency key and its claim to a long body.
    RemoveTask {
        tenant: TenantId,
        task: TaskId,
        idempotency_key: Option<String>,
        body: Option<[u8; 32]>,
        /// The number of its newest checkpoint.
        checkpoints: u64,
    },
    /// Retention: a daemon that stayed away.
    DropDaemon(Arc<DaemonRecord>),
    PutForgotten(ForgottenDaemonsRecord),
    PutDaemonChanges(DaemonChangesRecord),
    PutPauses(PausesRecord),
}

impl RecordChange {
    /// It may be stored before the record that it belongs to, in an append of its own: both are long. A crash between the
    /// two leaves it ahead of its task, where nobody was told of it and the next one replaces it. What a block writes
    /// stays with its record.
    pub fn may_commit_early(&self) -> bool {
        match self {
            RecordChange::PutProgress(_) => true,
            RecordChange::PutCheckpoint(record) => record.kind == CheckpointKind::Progress,
            RecordChange::PutSpec { .. }
            | RecordChange::PutLive(_)
            | RecordChange::PutDone(_)
            | RecordChange::Reopen(_)
            | RecordChange::PutIdempotency { .. }
            | RecordChange::PutDaemon(_)
            | RecordChange::PutScheduler(_)
            | RecordChange::PutFence(_)
            | RecordChange::DropFence(_)
            | RecordChange::DropCheckpoint { .. }
            | RecordChange::RemoveTask { .. }
            | RecordChange::DropDaemon(_)
            | RecordChange::PutForgotten(_)
            | RecordChange::PutDaemonChanges(_)
            | RecordChange::PutPauses(_) => false,
        }
    }

    /// The task whose record it changes, if it is one of a task: the gate and the journal keep those together.
    pub fn task(&self) -> Option<TaskId> {
        match self {
            RecordChange::PutSpec { task, .. }
            | RecordChange::DropCheckpoint { task, .. }
            | RecordChange::RemoveTask { task, .. } => Some(*task),
            RecordChange::PutLive(record)
            | RecordChange::PutDone(record)
            | RecordChange::Reopen(record) => Some(record.task),
            RecordChange::PutIdempotency { record, .. } => Some(record.task),
            RecordChange::PutFence(record) => Some(record.task),
            RecordChange::PutProgress(record) => Some(record.task),
            RecordChange::PutCheckpoint(record) => Some(record.task),
            RecordChange::PutDaemon(_)
            | RecordChange::PutScheduler(_)
            | RecordChange::PutForgotten(_)
            | RecordChange::PutDaemonChanges(_)
            | RecordChange::PutPauses(_)
            | RecordChange::DropFence(_)
            | RecordChange::DropDaemon(_) => None,
        }
    }
}

#[derive(Debug)]
pub struct GatedDelivery<D = Delivery> {
    pub depends_on: CommitDependency,
    pub delivery: D,
}

/// Which uncommitted writes a send has to wait for. Those of the same `Effects` count as already handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitDependency {
    Nothing,
    /// The newest write of this task.
    Task(TaskId),
    /// Every write handed over so far.
    Everything,
}

impl CommitDependency {
    /// Waits for nothing where the gate is broken on purpose.
    pub(crate) fn unless_broken(self, broken: bool) -> Self {
        if broken {
            CommitDependency::Nothing
        } else {
            self
        }
    }
}

#[derive(Debug)]
pub enum Delivery {
    Reply(ReadyReply),
    ToSession {
        session: SessionId,
        message: DaemonMessage,
    },
    /// The stream must end; tell the daemon why, if it can still hear.
    CloseSession {
        session: SessionId,
        reason: CloseReason,
    },
    /// For watchers and telemetry: the record as written, and the events that are new in it.
    Published {
        record: Arc<TaskRecord>,
        spec: Arc<TaskSpec>,
        events: Vec<Arc<TimelineEvent>>,
    },
}

/// An outcome with the port that takes it. The shell sends it once it may; dropped, the caller
/// learns nothing.
pub struct ReadyReply(Box<dyn FnOnce() + Send>);

impl ReadyReply {
    pub(crate) fn new(send: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(send))
    }

    pub fn send(self) {
        (self.0)();
    }
}

impl fmt::Debug for ReadyReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadyReply(..)")
    }
}

/// A lease for an agent that holds it itself. The token is told here and never again.
#[derive(Debug)]
pub struct AgentLeaseGrant {
    pub to: AttemptRef,
    pub token: LeaseToken,
    /// Counted from the send of the call.
    pub granted_ms: u64,
    /// For display.
    pub expires_at: WallTime,
    pub renew_ms: u64,
    pub record: Arc<TaskRecord>,
    pub spec: Arc<TaskSpec>,
}

/// Messages to a daemon. The shell adds incarnation and epoch.
#[derive(Debug)]
pub enum DaemonMessage {
    Welcome {
        heartbeat_ms: u64,
        settlements: Vec<AttemptSettlement>,
    },
    HeartbeatAck {
        seq: u64,
        heartbeat_ms: u64,
        results: Vec<(AttemptId, LeaseRenewal)>,
    },
    ExtensionAck {
        request: u64,
        results: Vec<(AttemptId, LeaseRenewal)>,
    },
    /// Durable up to here.
    Ack {
        attempt: AttemptId,
        control_seq: u64,
    },
    Dispatch(Box<AttemptDispatch>),
    /// Only now may a process start. Counts from the send of TaskAccepted on the daemon's clock.
    LeaseConfirmed {
        to: AttemptRef,
        granted_ms: u64,
        expires_at: WallTime,
    },
    Cancel {
        to: AttemptRef,
        kind: CancelKind,
        reason: Option<Arc<str>>,
        grace_ms: u64,
    },
    Answer {
        to: AttemptRef,
        input: InputId,
        kind: InputKind,
        decision: InputDecision,
        payload: Arc<[u8]>,
        by: Arc<str>,
        /// What the answer is bound to.
        digest: [u8; 32],
    },
    /// Kill it and forget its frames: they will never count.
    Abandon {
        attempt: AttemptId,
        code: Rejection,
    },
    /// The frame changed nothing. Unless the code is `gap` or `output_gap`, its number is used up in this session.
    FrameRejected {
        attempt: AttemptId,
        control_seq: u64,
        code: Rejection,
        expected: Option<u64>,
        /// Of a completion: every file that it misses.
        unmet: Vec<UnmetRequirement>,
    },
    /// Take nothing new, or work again.
    Drain {
        withdrawn: bool,
    },
}

/// Names an attempt in a message to its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRef {
    pub task: TaskId,
    pub attempt: AttemptId,
    pub number: u32,
    pub conversation: Option<Arc<str>>,
    pub channel: Option<Arc<str>>,
    pub turn_kind: TurnKind,
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    pub sampled: bool,
}

#[derive(Debug)]
pub struct AttemptDispatch {
    pub to: AttemptRef,
    pub token: LeaseToken,
    pub spec: Arc<TaskSpec>,
    pub granted_ms: u64,
    /// For display.
    pub expires_at: WallTime,
    pub accept_ms: u64,
    pub total_ms: u64,
    pub previous: Option<AttemptId>,
    /// The newest checkpoint of the task, by number: it may be long.
    pub checkpoint: Option<u64>,
    /// What whoever sent it on had to say.
    pub resume: Option<Box<ResumeInstructions>>,
    /// The agent's own id of this conversation, from the newest attempt that told one.
    pub agent_session_id: Option<Arc<str>>,
    /// The conversation begins anew, whatever the daemon remembers of it.
    pub fresh_conversation: bool,
    /// What daemons keep a conversation under: the same for the same tenant and name, and telling neither.
    pub conversation_key: Option<[u8; 32]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptSettlement {
    pub attempt: AttemptId,
    pub verdict: SettlementVerdict,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettlementVerdict {
    /// Goes on; replay after `acked`. The grant counts from the send of Hello; none where it was not renewed.
    Keep { acked: u64, granted_ms: Option<u64> },
    /// Its end is still wanted: replay after `acked`, then forget it.
    Adopt { acked: u64 },
    /// `acked` where the attempt is this daemon's: its receipt is wanted, and nothing else of it.
    Kill { code: Rejection, acked: Option<u64> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseRenewal {
    Renewed {
        granted_ms: u64,
        expires_at: WallTime,
    },
    /// Kill it; send no terminal frame.
    Revoked { code: Rejection },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelKind {
    User,
    Operator,
    Deadline(TimerKind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// A newer stream of the same instance took over; nothing is said to the daemon.
    Replaced,
    /// Another instance of the same daemon connected.
    Superseded,
    /// Two heartbeats are missing.
    Silent,
    /// Its credential has as many daemons as it may, and none of them has been away for long.
    TooManyDaemons,
    /// It goes on sending and has not heard two answers.
    NotReceiving,
    /// An operator's word; it may come back at once.
    Disconnected,
}

/// Things worth a metric that no record tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreMetric {
    /// A frame that changed nothing, with the reason that the wire may not tell apart.
    FrameRejected(Rejection),
    /// Foreign on the wire looks like unknown; here it does not.
    ForeignAttempt {
        daemon: DaemonId,
    },
    PhaseRegression,
    UnknownFrame,
    StallCredit {
        away_ms: u64,
    },
    LateTerminal,
    AdoptedLate,
}
