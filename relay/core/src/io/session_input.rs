//! Inputs from the session of a daemon: Hello, heartbeats, frames of attempts, and the end of
//! the stream. The shell has authenticated and decoded them and checked their sizes; the core
//! checks their meaning.

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
    /// A daemon sent Hello. Session ids rise in the order in which the streams were opened.
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
    /// Output arrived. The session coalesces these (at most every min(1 s, idle limit / 8) per
    /// attempt, trailing edge flushed); the first event, the first visible one and each tool's
    /// first output are sent at once.
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
    /// Tasks whose stored record the input may need.
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

    /// The task whose stored progress the input updates.
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

/// The secret token of a lease. It is kept in memory only and never shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseToken(pub [u8; 32]);

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseToken(..)")
    }
}

/// The first message of a daemon on a stream. `daemon` and `scope` come from its credential.
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
    /// The credential that the daemon id is bound to.
    pub token: TokenId,
    pub instance: InstanceId,
    /// The kernel's boot id. A changed one ends all earlier attempts of that machine.
    pub boot_id: Arc<str>,
    pub name: Arc<str>,
    pub version: Arc<str>,
    pub platform: DaemonPlatform,
    pub slots: u32,
    pub labels: BTreeMap<String, String>,
    pub capabilities: Vec<String>,
    /// Includes agents that cannot run, each with its problem.
    pub agents: Vec<AgentRecord>,
    pub workspaces: Vec<String>,
    /// The daemon takes no new work.
    pub draining: bool,
    pub active: Vec<ActiveAttempt>,
}

/// An attempt that the daemon still has.
#[derive(Debug)]
pub struct ActiveAttempt {
    pub frame_ref: FrameRef,
    /// Absent if the daemon restarted and only the shim has the token.
    pub proof: Option<LeaseToken>,
    pub state: ActiveAttemptState,
    /// The newest control number in the daemon's outbox.
    pub control_seq: u64,
    pub output_end: u64,
    /// The stored task, looked up before the core's turn or in it.
    pub lookup: TaskLookup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActiveAttemptState {
    Running,
    /// Ended on the daemon; its terminal frame is not acknowledged yet.
    Finished,
    /// Its shim did not answer in time. It may still run, so it is kept but not renewed.
    Unreachable,
}

#[derive(Debug)]
pub struct HeartbeatMessage {
    pub seq: u64,
    /// The newest answer that the daemon has read; `None` if it does not report this.
    pub received_ack_seq: Option<u64>,
    pub renewals: Vec<(AttemptId, LeaseToken)>,
    pub free_slots: u32,
    pub draining: bool,
    /// The machine cannot take any work now.
    pub unfit: bool,
    pub load: Option<MachineLoad>,
}

/// The load of a daemon's machine as it reports it, for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineLoad {
    pub memory_available_percent: Option<u32>,
    /// Load average over one minute, in thousandths.
    pub load_1m_milli: Option<u64>,
    pub disk_free_percent: Option<u32>,
    pub unacked_bytes: Option<u64>,
}

/// The attempt that a frame belongs to. All fields must match: a stale or foreign frame changes
/// nothing.
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
    /// Numbered from 1 within the attempt, without gaps.
    pub control_seq: u64,
    pub observed: WallTime,
    /// Live frames that change the lease carry the token; frames replayed from the disk outbox
    /// do not.
    pub proof: Option<LeaseToken>,
    pub body: FrameBody,
    /// Where the attempt runs, or what it left there.
    pub workspace: Option<Box<WorkspaceReport>>,
}

impl AttemptFrame {
    pub(crate) fn updates_progress(&self) -> bool {
        matches!(self.body, FrameBody::Goal(_))
    }
}

#[derive(Clone, Debug)]
pub enum FrameBody {
    /// The daemon will run it after LeaseConfirmed.
    Accepted,
    /// The daemon has not started it and will not: counts as a termination receipt.
    Rejected {
        code: RejectCode,
        message: Option<Arc<str>>,
    },
    Started,
    /// A phase without data of its own. A terminal phase here is diagnostic only and does not
    /// end the attempt.
    Phase {
        phase: LifecyclePhase,
        message: Option<Arc<str>>,
        /// With cleanup_started: the deadline because of which the daemon ends the attempt.
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
        /// The arguments of the tool call. Rules compare them, and the answer is bound to them.
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
    /// The daemon has received the answer to this input.
    InputReceived {
        input: InputId,
    },
    /// Progress, a checkpoint or a block.
    Goal(GoalReport),
    Completed(CompletedBody),
    Errored(ErroredBody),
    Canceled(CanceledBody),
    /// The daemon returns it untouched or stopped on purpose. The task is queued again, and
    /// nothing is counted.
    Released {
        reason: Option<Arc<str>>,
        termination: ProcessTermination,
    },
    /// The processes are gone. Sent if no terminal frame reports that.
    Receipt {
        termination: ProcessTermination,
    },
    /// A phase or body from a newer protocol: consumes its number, is counted, and changes
    /// nothing.
    Unknown,
}
