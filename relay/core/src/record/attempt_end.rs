//! The stored end of an attempt: its kind, cause and author, and whether its processes are
//! known to be dead.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::attempt::AttemptStateKind;
use super::failure_code::{FailureCode, RejectCode};
use super::timeline::LifecyclePhase;
use crate::time::WallTime;

/// The end of an attempt. Written once; only late evidence (`receipt`) and an adopted late
/// result change it afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptEnd {
    pub state: EndState,
    pub failure_code: Option<FailureCode>,
    pub retryable: bool,
    pub message: Option<Arc<str>>,
    pub user_message: Option<Arc<str>>,
    pub ended_by: EndedBy,
    /// The last phase reported before the end was decided.
    pub cause_phase: Option<LifecyclePhase>,
    pub exit: Option<ProcessExitStatus>,
    pub receipt: TerminationReceipt,
    pub killed_after_result: bool,
    pub is_adopted_late: bool,
    /// The daemon's report about its cleanup.
    pub cleanup: Option<Arc<str>>,
    pub at: WallTime,
}

impl AttemptEnd {
    /// Whether a daemon refused it because of its own machine or a workspace in use, so that
    /// the refusal does not count against the task.
    pub fn is_uncounted_refusal(&self) -> bool {
        self.reject_code().is_some_and(|code| code.is_uncounted())
    }

    /// The code with which a daemon rejected the offer.
    pub(crate) fn reject_code(&self) -> Option<RejectCode> {
        let code = self.failure_code.as_ref().map(FailureCode::as_str)?;
        (self.state == EndState::Released).then(|| RejectCode::parse(code))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EndState {
    Completed,
    Failed,
    Canceled,
    TimedOut,
    Lost,
    Released,
    HandedOff,
}

impl EndState {
    pub fn kind(self) -> AttemptStateKind {
        match self {
            EndState::Completed => AttemptStateKind::Completed,
            EndState::Failed => AttemptStateKind::Failed,
            EndState::Canceled => AttemptStateKind::Canceled,
            EndState::TimedOut => AttemptStateKind::TimedOut,
            EndState::Lost => AttemptStateKind::Lost,
            EndState::Released => AttemptStateKind::Released,
            EndState::HandedOff => AttemptStateKind::HandedOff,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EndedBy {
    Daemon,
    Relay,
    Operator,
    Client,
    /// An agent that held the lease itself.
    Agent,
}

impl EndedBy {
    pub fn as_str(self) -> &'static str {
        match self {
            EndedBy::Daemon => "daemon",
            EndedBy::Relay => "relay",
            EndedBy::Operator => "operator",
            EndedBy::Client => "client",
            EndedBy::Agent => "agent",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProcessExitStatus {
    Code(i32),
    Signal(i32),
}

/// Whether the processes are known to be dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TerminationReceipt {
    /// No process was ever allowed to start.
    NotNeeded,
    /// The worker reported an empty process group, or its machine has rebooted since.
    Confirmed,
    Unconfirmed,
}

impl TerminationReceipt {
    pub fn as_str(self) -> &'static str {
        match self {
            TerminationReceipt::NotNeeded => "not_needed",
            TerminationReceipt::Confirmed => "confirmed",
            TerminationReceipt::Unconfirmed => "unconfirmed",
        }
    }
}
