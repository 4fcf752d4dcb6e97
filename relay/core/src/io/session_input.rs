//! What reaches the core from the session of a daemon: its Hello, heartbeats, frames of attempts,
//! and the end of the stream. The shell has authenticated, decoded and checked sizes before; the
//! core checks meaning.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::goal::progress::GoalReport;
use crate::ids::{
    AttemptId, DaemonId, Incarnation, InputId, InstanceId, SessionId, TaskId, TenantScope, TokenId,
};
use crate::io::stored_lookup::TaskLookup;
use crate::record::{
    AgentRecord, DaemonPlatform, LifecyclePhase, RejectCode, TimerKind, WorkspaceReport,
};
use crate::time::WallTime;

pub(crate) use crate::io::attempt_report::NO_RESULT_MESSAGE;
pub use crate::io::attempt_report::{
    CanceledBody, CompletedBody, ErroredBody, LossReason, OutputActivity, OutputSignal,
    ProcessTermination,
};

#[derive(Debug)]
pub enum SessionInput {
    /// A daemon sent Hello. Ids of sessions rise in the order in which the streams were opened.
    Opened {
        session: SessionId,
        hello: Box<DaemonHello>,
    },
    Closed {
        session: SessionId,
    },
    Heartbeat {
        session: SessionId,
        heartbeat: HeartbeatMessage,
    },
    Frame(Box<AttemptFrame>),
    /// Output arrived; coalesced by the session (at most every min(1 s, idle limit / 8) per
    /// attempt, trailing edge flushed; the first event, the first visible one and each tool's first
    /// output go at once).
    Activity(OutputActivity),
    /// A restart on purpose: renews the attempt for `granted_ms` (at most
    /// `Config::max_extension_ms`), committed before it is acknowledged.
    ExtendLeases(LeaseExtension),
    /// A Dispatch that was certainly never written to its stream.
    DeliveryFailed {
        session: SessionId,
        attempt: AttemptId,
    },
}

impl SessionInput {
    /// Tasks whose stored record it may need.
    pub(crate) fn named_tasks(&self) -> Vec<TaskId> {
        match self {
            SessionInput::Opened { hello, .. } => {
                let active = hello.active.iter();
                active.map(|active| active.frame_ref.task).collect()
            }
            SessionInput::Frame(frame) => vec![frame.frame_ref.task],
            SessionInput::Closed { .. }
            | SessionInput::Heartbeat { .. }
            | SessionInput::Activity(_)
            | SessionInput::ExtendLeases(_)
            | SessionInput::DeliveryFailed { .. } => Vec::new(),
        }
    }

    /// The task to whose stored progress it adds.
    pub(crate) fn progress_task(&self) -> Option<TaskId> {
        match self {
            SessionInput::Frame(frame) => frame.updates_progress().then_some(frame.frame_ref.task),
            SessionInput::Opened { .. }
            | SessionInput::Closed { .. }
            | SessionInput::Heartbeat { .. }
            | SessionInput::Activity(_)
            | SessionInput::ExtendLeases(_)
            | SessionInput::DeliveryFailed { .. } => None,
        }
    }
}

/// The secret half of a lease. Lives in memory only; its `Debug` shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseToken(pub [u8; 32]);

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseToken(..)")
    }
}

/// More time for attempts whose daemon restarts on purpose.
#[derive(Debug)]
pub struct LeaseExtension {
    pub session: SessionId,
    pub request: u64,
    pub attempts: Vec<(AttemptId, LeaseToken)>,
    pub granted_ms: u64,
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
    /// What the frame reports about where the attempt runs, or what it left there.
    pub workspace: Option<Box<WorkspaceReport>>,
}

impl AttemptFrame {
    pub(crate) fn updates_progress(&self) -> bool {
        matches!(self.body, FrameBody::Goal(_))
    }
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
        /// What the tool would be called with: what rules look at, and what an answer is bound to.
        /// Part of the payload.
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
    /// The daemon gives it back untouched or stopped on purpose; the task is queued again and
    /// nothing is counted.
    Released {
        reason: Option<Arc<str>>,
        termination: ProcessTermination,
    },
    /// The processes are gone; sent when no terminal frame proves it.
    Receipt {
        termination: ProcessTermination,
    },
    /// A phase or body from a newer protocol: takes its number, is counted, changes nothing.
    Unknown,
}
