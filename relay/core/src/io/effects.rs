//! Effects of the core: record changes that must become durable, and deliveries that may be
//! sent once they are.

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

/// The effects of one input. The changes are one transaction, in order; deliveries keep their
/// order per session and request.
#[derive(Debug, Default)]
pub struct Effects {
    pub changes: Vec<RecordChange>,
    pub deliveries: Vec<GatedDelivery>,
    /// Refused or unusual events, for metrics.
    pub metrics: Vec<CoreMetric>,
}

#[derive(Clone, Debug)]
pub enum RecordChange {
    /// Written once per task, before its other records.
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
    /// Removes a checkpoint that is older than the newest that are kept.
    DropCheckpoint {
        tenant: TenantId,
        task: TaskId,
        number: u64,
    },
    /// Retention: removes everything of a finished task, with its idempotency key and its
    /// reference to a long body.
    RemoveTask {
        tenant: TenantId,
        task: TaskId,
        idempotency_key: Option<String>,
        body: Option<[u8; 32]>,
        /// The number of its newest checkpoint.
        checkpoints: u64,
    },
    /// Retention: removes a daemon that was disconnected for long.
    DropDaemon(Arc<DaemonRecord>),
    PutForgotten(ForgottenDaemonsRecord),
    PutDaemonChanges(DaemonChangesRecord),
    PutPauses(PausesRecord),
}

impl RecordChange {
    /// Whether the change may be committed before its task record, in an append of its own,
    /// because both can be long. After a crash between the two it is ahead of its task; no
    /// reply has reported it, and the next update replaces it. The checkpoint of a block is
    /// committed together with its task record.
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

    /// The task that the change belongs to, if any: the gate and the journal keep changes of
    /// one task together.
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

/// The uncommitted writes that a delivery waits for. Those of the same `Effects` count as
/// handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitDependency {
    Nothing,
    /// The newest write of this task.
    Task(TaskId),
    /// Every write handed over so far.
    Everything,
}

impl CommitDependency {
    /// Waits for nothing if a mutant breaks the gate on purpose.
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
    /// Closes the stream. The reason is sent to the daemon if the stream still works.
    CloseSession {
        session: SessionId,
        reason: CloseReason,
    },
    /// For watchers and telemetry: the record as written, and its new events.
    Published {
        record: Arc<TaskRecord>,
        spec: Arc<TaskSpec>,
        events: Vec<Arc<TimelineEvent>>,
    },
}

/// An outcome with its reply port. The shell sends it when it may; if it is dropped, the caller
/// gets no reply.
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

/// A lease for an agent that holds it itself. The token is sent only here.
#[derive(Debug)]
pub struct AgentLeaseGrant {
    pub to: AttemptRef,
    pub token: LeaseToken,
    /// Counted from the sending of the call.
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
    /// Frames up to this number are durable.
    Ack {
        attempt: AttemptId,
        control_seq: u64,
    },
    Dispatch(Box<AttemptDispatch>),
    /// The daemon may start a process only after this. The time counts from the sending of
    /// TaskAccepted on the daemon's clock.
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
        /// The digest of the request that the answer is bound to.
        digest: [u8; 32],
    },
    /// Kill the attempt and delete its frames: they will never count.
    Abandon {
        attempt: AttemptId,
        code: Rejection,
    },
    /// The frame changed nothing. Unless the code is `gap` or `output_gap`, its number is
    /// consumed in this session.
    FrameRejected {
        attempt: AttemptId,
        control_seq: u64,
        code: Rejection,
        expected: Option<u64>,
        /// For a completion: every missing file.
        unmet: Vec<UnmetRequirement>,
    },
    /// Take no new work, or take work again.
    Drain {
        withdrawn: bool,
    },
}

/// Identifies an attempt in a message to its holder.
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
    /// The number of the task's newest checkpoint. The checkpoint itself may be long.
    pub checkpoint: Option<u64>,
    /// The instructions of the person who resumed the task.
    pub resume: Option<Box<ResumeInstructions>>,
    /// The agent's own id of this conversation, from the newest attempt that reported one.
    pub agent_session_id: Option<Arc<str>>,
    /// The conversation starts anew, even if the daemon has an earlier agent session of it.
    pub fresh_conversation: bool,
    /// The key under which daemons store a conversation: the same for the same tenant and name,
    /// without revealing either.
    pub conversation_key: Option<[u8; 32]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptSettlement {
    pub attempt: AttemptId,
    pub verdict: SettlementVerdict,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettlementVerdict {
    /// The attempt continues; replay after `acked`. The grant counts from the sending of Hello;
    /// `None` if the lease was not renewed.
    Keep { acked: u64, granted_ms: Option<u64> },
    /// The final frames are wanted: replay after `acked`, then delete the attempt.
    Adopt { acked: u64 },
    /// `acked` is present if the attempt belongs to this daemon: only its termination receipt
    /// is wanted.
    Kill { code: Rejection, acked: Option<u64> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseRenewal {
    Renewed {
        granted_ms: u64,
        expires_at: WallTime,
    },
    /// Kill the attempt; send no terminal frame.
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
    /// A newer stream of the same instance took over. No message is sent to the daemon.
    Replaced,
    /// Another instance of the same daemon connected.
    Superseded,
    /// Two heartbeats are missing.
    Silent,
    /// The credential has reached its limit of daemons, and none of them has been disconnected
    /// for long.
    TooManyDaemons,
    /// The daemon keeps sending but has not confirmed answers for two heartbeats.
    NotReceiving,
    /// An operator disconnected it; it may reconnect at once.
    Disconnected,
}

/// Events for metrics that no record contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreMetric {
    /// A frame that changed nothing, with the exact reason, which the wire does not always
    /// reveal.
    FrameRejected(Rejection),
    /// A frame for another daemon's attempt. On the wire it looks like an unknown attempt.
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
