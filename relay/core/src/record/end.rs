//! How an attempt ended, as stored: what, why, by whom, and whether the death of its processes is known.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::attempt::AttemptState;
use super::code::{FailureCode, RejectCode};
use super::timeline::Phase;
use crate::time::Wall;

/// The terminal record: written once, then never changed but for the two named exceptions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub state: EndState,
    pub failure_code: Option<FailureCode>,
    pub retryable: bool,
    pub message: Option<Arc<str>>,
    pub user_message: Option<Arc<str>>,
    pub by: EndedBy,
    /// The last phase seen when its end was decided.
    pub cause_phase: Option<Phase>,
    pub exit: Option<Exit>,
    pub receipt: Receipt,
    pub killed_after_result: bool,
    pub adopted_late: bool,
    /// The daemon's words about its cleanup.
    pub cleanup: Option<Arc<str>>,
    pub at: Wall,
}

impl End {
    /// A daemon refused it because of its own machine or of a workspace that is in use, which says nothing about the
    /// task.
    pub fn is_free_refusal(&self) -> bool {
        self.refusal().is_some_and(|code| code.is_free())
    }

    /// Why a daemon would not take it.
    pub(crate) fn refusal(&self) -> Option<RejectCode> {
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
    pub fn name(self) -> AttemptState {
        match self {
            EndState::Completed => AttemptState::Completed,
            EndState::Failed => AttemptState::Failed,
            EndState::Canceled => AttemptState::Canceled,
            EndState::TimedOut => AttemptState::TimedOut,
            EndState::Lost => AttemptState::Lost,
            EndState::Released => AttemptState::Released,
            EndState::HandedOff => AttemptState::HandedOff,
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
pub enum Exit {
    Code(i32),
    Signal(i32),
}

/// Whether the death of its processes is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Receipt {
    /// No process was ever allowed to start.
    NotNeeded,
    /// The worker says that the group is empty, or its machine rebooted since.
    Confirmed,
    Unconfirmed,
}

impl Receipt {
    pub fn as_str(self) -> &'static str {
        match self {
            Receipt::NotNeeded => "not_needed",
            Receipt::Confirmed => "confirmed",
            Receipt::Unconfirmed => "unconfirmed",
        }
    }
}
