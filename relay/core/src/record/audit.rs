//! What operators did, as stored: beside the events of a task, for pauses that concern more than one task, and for daemons.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::TaskState;
use super::attempt::AttemptStateKind;
use crate::ids::{DaemonId, TenantScope};
use crate::time::WallTime;

/// One verb on one task: who, and what it found and left. The task's state after it and the reason are the event's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorAudit {
    pub operation: AuditedOperation,
    /// Name of the credential.
    pub by: Arc<str>,
    pub attempt_before: AttemptStateKind,
    pub attempt_after: AttemptStateKind,
    pub task_before: TaskState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AuditedOperation {
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

impl AuditedOperation {
    /// The stable name on every surface.
    pub fn as_str(self) -> &'static str {
        match self {
            AuditedOperation::ForceRelease => "force_release",
            AuditedOperation::ForceFail => "force_fail",
            AuditedOperation::Retry => "retry",
            AuditedOperation::Complete => "complete",
            AuditedOperation::CompleteOverridden => "complete_override",
            AuditedOperation::Pause => "pause",
            AuditedOperation::Unpause => "unpause",
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
    pub at: WallTime,
}

/// The newest of what operators did to daemons, oldest first. What was forgotten is kept apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonChangesRecord {
    pub changes: Vec<DaemonChange>,
}

impl DaemonChangesRecord {
    /// The newest are kept; the record is written whole.
    const MAX_CHANGES: usize = 128;

    pub(crate) fn record_change(&mut self, change: DaemonChange) {
        let over = (self.changes.len() + 1).saturating_sub(Self::MAX_CHANGES);
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
    pub before: DaemonCondition,
    pub after: DaemonCondition,
    /// Name of the credential.
    pub by: Arc<str>,
    pub reason: Arc<str>,
    pub at: WallTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DaemonOperation {
    Drain,
    Undrain,
    Disconnect,
}

/// How a daemon stands where operators can change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DaemonCondition {
    pub drained: bool,
    pub connected: bool,
}
