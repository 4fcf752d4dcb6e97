//! What the core wants done: writes that must become durable, and what may be sent once they are.

mod views;

use std::sync::Arc;

use crate::contract::Unmet;
use crate::id::{AttemptId, DaemonId, InputId, RequestId, SessionId, TaskId, TenantId};
use crate::input::LeaseToken;
use crate::record::{
    CheckpointKind, CheckpointRecord, DaemonChangesRecord, DaemonRecord, Decision, FenceRecord,
    ForgottenRecord, IdempotencyRecord, InputKind, PausesRecord, ProgressRecord, Resume,
    SchedulerRecord, TaskRecord, TimelineEvent, TimerKind,
};
use crate::reject::Rejection;
use crate::spec::{TaskSpec, TurnKind};
use crate::time::Wall;

pub use views::{
    Connected, DaemonView, DeadlineView, HeldView, Paused, SchedulerView, TaskView, WaitsFor,
};

/// The answer to one input. Writes are one transaction, in order; sends keep their order per session and request.
#[derive(Debug, Default)]
pub struct Effects {
    pub writes: Vec<Write>,
    pub sends: Vec<Outgoing>,
    /// For metrics: what was refused or odd, and why.
    pub counts: Vec<Count>,
}

#[derive(Clone, Debug)]
pub enum Write {
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
    PutForgotten(ForgottenRecord),
    PutDaemonChanges(DaemonChangesRecord),
    PutPauses(PausesRecord),
}

impl Write {
    /// It may be stored before the record that it belongs to, in an append of its own: both are long. A crash between the
    /// two leaves it ahead of its task, where nobody was told of it and the next one replaces it. What a block writes
    /// stays with its record.
    pub fn goes_ahead(&self) -> bool {
        match self {
            Write::PutProgress(_) => true,
            Write::PutCheckpoint(record) => record.kind == CheckpointKind::Progress,
            Write::PutSpec { .. }
            | Write::PutLive(_)
            | Write::PutDone(_)
            | Write::Reopen(_)
            | Write::PutIdempotency { .. }
            | Write::PutDaemon(_)
            | Write::PutScheduler(_)
            | Write::PutFence(_)
            | Write::DropFence(_)
            | Write::DropCheckpoint { .. }
            | Write::RemoveTask { .. }
            | Write::DropDaemon(_)
            | Write::PutForgotten(_)
            | Write::PutDaemonChanges(_)
            | Write::PutPauses(_) => false,
        }
    }

    /// The task whose record it changes, if it is one of a task: the gate and the journal keep those together.
    pub fn task(&self) -> Option<TaskId> {
        match self {
            Write::PutSpec { task, .. }
            | Write::DropCheckpoint { task, .. }
            | Write::RemoveTask { task, .. } => Some(*task),
            Write::PutLive(record) | Write::PutDone(record) | Write::Reopen(record) => {
                Some(record.task)
            }
            Write::PutIdempotency { record, .. } => Some(record.task),
            Write::PutFence(record) => Some(record.task),
            Write::PutProgress(record) => Some(record.task),
            Write::PutCheckpoint(record) => Some(record.task),
            Write::PutDaemon(_)
            | Write::PutScheduler(_)
            | Write::PutForgotten(_)
            | Write::PutDaemonChanges(_)
            | Write::PutPauses(_)
            | Write::DropFence(_)
            | Write::DropDaemon(_) => None,
        }
    }
}

#[derive(Debug)]
pub struct Outgoing {
    pub after: After,
    pub send: Send,
}

/// Which uncommitted writes a send has to wait for. Those of the same `Effects` count as already handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Nothing,
    /// The newest write of this task.
    Task(TaskId),
    /// Every write handed over so far.
    Everything,
}

impl After {
    /// Waits for nothing where the gate is broken on purpose.
    pub(crate) fn unless(self, broken: bool) -> Self {
        if broken { After::Nothing } else { self }
    }
}

#[derive(Debug)]
pub enum Send {
    Reply {
        request: RequestId,
        outcome: Result<Reply, Rejection>,
    },
    ToSession {
        session: SessionId,
        message: Downstream,
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

#[derive(Debug)]
pub enum Reply {
    /// `created` is false where the idempotency key was known.
    Submitted {
        record: Arc<TaskRecord>,
        created: bool,
    },
    /// The task after the request; unchanged where it had no work to do.
    Task(Arc<TaskRecord>),
    /// It had ended when the request's turn came, and is unchanged. Nobody else can tell: it may have ended a moment before.
    Finished(Arc<TaskRecord>),
    /// An agent has the lease; none where there was nothing to claim.
    Granted(Option<Box<Grant>>),
    Renewed {
        granted_ms: u64,
        expires_at: Wall,
        /// Somebody wants it canceled: stop, then say so.
        cancel_requested: bool,
    },
    /// The call was obeyed before, and is not obeyed again. The task as it is now, and the number of the checkpoint that the
    /// call wrote.
    Repeated {
        record: Arc<TaskRecord>,
        checkpoint: Option<u64>,
    },
    Inspected(Box<TaskView>),
    /// The task after an update, and its progress.
    Progressed {
        record: Arc<TaskRecord>,
        progress: Arc<ProgressRecord>,
    },
    /// The task after a checkpoint, and that.
    Checkpointed {
        record: Arc<TaskRecord>,
        checkpoint: Arc<CheckpointRecord>,
    },
    /// Tasks that wait for a person.
    Parked(Vec<(Arc<TaskRecord>, Arc<TaskSpec>)>),
    Daemons(Vec<DaemonView>),
    Daemon(Box<DaemonView>),
    FoundDaemon(DaemonId),
    /// How many open tasks were held until now.
    Released {
        tasks: u64,
    },
    /// The tasks that retention removed.
    Removed(Vec<TaskId>),
    /// How many daemons retention forgot.
    Forgotten(usize),
    Done,
    /// It was so before; nothing was changed.
    Already,
    Scheduler(Box<SchedulerView>),
}

/// A lease for an agent that holds it itself. The token is told here and never again.
#[derive(Debug)]
pub struct Grant {
    pub to: AttemptRef,
    pub token: LeaseToken,
    /// Counted from the send of the call.
    pub granted_ms: u64,
    /// For display.
    pub expires_at: Wall,
    pub renew_ms: u64,
    pub record: Arc<TaskRecord>,
    pub spec: Arc<TaskSpec>,
}

/// Messages to a daemon. The shell adds incarnation and epoch.
#[derive(Debug)]
pub enum Downstream {
    Welcome {
        heartbeat_ms: u64,
        settlements: Vec<Settlement>,
    },
    HeartbeatAck {
        seq: u64,
        heartbeat_ms: u64,
        results: Vec<(AttemptId, Renewal)>,
    },
    HoldAck {
        request: u64,
        results: Vec<(AttemptId, Renewal)>,
    },
    /// Durable up to here.
    Ack {
        attempt: AttemptId,
        control_seq: u64,
    },
    Dispatch(Box<Dispatch>),
    /// Only now may a process start. Counts from the send of TaskAccepted on the daemon's clock.
    LeaseConfirmed {
        to: AttemptRef,
        granted_ms: u64,
        expires_at: Wall,
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
        decision: Decision,
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
        unmet: Vec<Unmet>,
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
pub struct Dispatch {
    pub to: AttemptRef,
    pub token: LeaseToken,
    pub spec: Arc<TaskSpec>,
    pub granted_ms: u64,
    /// For display.
    pub expires_at: Wall,
    pub accept_ms: u64,
    pub total_ms: u64,
    pub previous: Option<AttemptId>,
    /// The newest checkpoint of the task, by number: it may be long.
    pub checkpoint: Option<u64>,
    /// What whoever sent it on had to say.
    pub resume: Option<Box<Resume>>,
    /// The agent's own id of this conversation, from the newest attempt that told one.
    pub agent_session_id: Option<Arc<str>>,
    /// The conversation begins anew, whatever the daemon remembers of it.
    pub fresh: bool,
    /// What daemons keep a conversation under: the same for the same tenant and name, and telling neither.
    pub conversation_key: Option<[u8; 32]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    pub attempt: AttemptId,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Goes on; replay after `acked`. The grant counts from the send of Hello; none where it was not renewed.
    Keep { acked: u64, granted_ms: Option<u64> },
    /// Its end is still wanted: replay after `acked`, then forget it.
    Adopt { acked: u64 },
    /// `acked` where the attempt is this daemon's: its receipt is wanted, and nothing else of it.
    Kill { code: Rejection, acked: Option<u64> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    Renewed {
        granted_ms: u64,
        expires_at: Wall,
    },
    /// Kill it; send no terminal frame.
    Revoked {
        code: Rejection,
    },
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
    Deaf,
    /// An operator's word; it may come back at once.
    Disconnected,
}

/// Things worth a metric that no record tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Count {
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
