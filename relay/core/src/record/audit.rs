//! What operators did, as stored: beside the events of a task, for pauses that concern more than one task, and for daemons.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::TaskState;
use super::attempt::AttemptState;
use crate::id::{DaemonId, TenantScope};
use crate::time::Wall;

/// One verb on one task: who, and what it found and left. The task's state after it and the reason are the event's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    pub operation: Operation,
    /// Name of the credential.
    pub by: Arc<str>,
    pub attempt_before: AttemptState,
    pub attempt_after: AttemptState,
    pub task_before: TaskState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Operation {
    ForceRelease,
    ForceFail,
    Retry,
    /// By hand; the contract was met or there was none.
    Complete,
    /// By hand, and the contract was not looked at.
    CompleteOverridden,
    Pause,
    Unpause,
}

impl Operation {
    /// The stable name on every surface.
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::ForceRelease => "force_release",
            Operation::ForceFail => "force_fail",
            Operation::Retry => "retry",
            Operation::Complete => "complete",
            Operation::CompleteOverridden => "complete_override",
            Operation::Pause => "pause",
            Operation::Unpause => "unpause",
        }
    }
}

/// A pause of dispatching, or its end: the audit of what is no task's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseChange {
    pub scope: TenantScope,
    pub paused: bool,
    pub by: Arc<str>,
    pub reason: Arc<str>,
    pub at: Wall,
}

/// The newest of what operators did to daemons, oldest first. What was forgotten is kept apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonChangesRecord {
    pub changes: Vec<DaemonChange>,
}

impl DaemonChangesRecord {
    /// The newest are kept; the record is written whole.
    const KEPT: usize = 128;

    pub(crate) fn note(&mut self, change: DaemonChange) {
        let over = (self.changes.len() + 1).saturating_sub(Self::KEPT);
        self.changes.drain(..over);
        self.changes.push(change);
    }
}

/// One verb on one daemon: who and why, and what it found and left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonChange {
    pub daemon: DaemonId,
    pub scope: TenantScope,
    pub name: Arc<str>,
    pub operation: DaemonOperation,
    pub before: Standing,
    pub after: Standing,
    /// Name of the credential.
    pub by: Arc<str>,
    pub reason: Arc<str>,
    pub at: Wall,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DaemonOperation {
    Drain,
    Undrain,
    Disconnect,
}

/// How a daemon stands where operators can change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Standing {
    pub drained: bool,
    pub connected: bool,
}
