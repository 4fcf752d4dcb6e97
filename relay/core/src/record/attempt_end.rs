//! How an attempt ended, as stored: what, why, by whom, and whether the death of its processes is known.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::attempt::AttemptStateKind;
use super::failure_code::{FailureCode, RejectCode};
use super::timeline::LifecyclePhase;
use crate::time::WallTime;

/// The terminal record: written once, then never changed but for the two named exceptions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptEnd {
    pub state: EndState,
    pub failure_code: Option<FailureCode>,
    pub retryable: bool,
    pub message: Option<Arc<str>>,
    pub user_message: Option<Arc<str>>,
    pub ended_by: EndedBy,
    /// The last phase seen when its end was decided.
    pub cause_phase: Option<LifecyclePhase>,
    pub exit: Option<ProcessExitStatus>,
    pub receipt: TerminationReceipt,
    pub killed_after_result: bool,
    pub is_adopted_late: bool,
    /// The daemon's words about its cleanup.
    pub cleanup: Option<Arc<str>>,
    pub at: WallTime,
}

impl AttemptEnd {
    /// A daemon refused it because of its own machine or of a workspace that is in use, which says nothing about the
    /// task.
    pub fn is_uncounted_refusal(&self) -> bool {
        self.reject_code().is_some_and(|code| code.is_uncounted())
    }

    /// Why a daemon would not take it.
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
    /// Held the lease itself.
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

/// Whether the death of its processes is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TerminationReceipt {
    /// No process was ever allowed to start.
    NotNeeded,
    /// The worker says that the group is empty, or its machine rebooted since.
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
