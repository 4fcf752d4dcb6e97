//! What operators did, as stored: beside the events of a task, and for pauses that concern more than one task.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::TaskState;
use super::attempt::AttemptState;
use crate::id::TenantScope;
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
