//! Stored operator actions: on tasks (beside their events), on the dispatch of many tasks
//! (pauses), and on daemons.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::TaskState;
use super::attempt::AttemptStateKind;
use crate::ids::{DaemonId, TenantScope};
use crate::time::WallTime;

/// One operator action on one task: who did it, and the states before and after. The task state
/// after it and the reason are in the event itself.
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
    /// Completed by an operator; the contract was met or there was none.
    Complete,
    /// Completed by an operator without checking the contract.
    CompleteOverridden,
    Pause,
    Unpause,
}

impl AuditedOperation {
    /// The stable name in every interface.
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

/// The audit of a pause of dispatch, or of its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseChange {
    pub scope: TenantScope,
    pub paused: bool,
    pub by: Arc<str>,
    pub reason: Arc<str>,
    pub at: WallTime,
}

/// The newest operator actions on daemons, oldest first. Forgotten daemons have a record of
/// their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonChangesRecord {
    pub changes: Vec<DaemonChange>,
}

impl DaemonChangesRecord {
    /// Limit on retained entries; the record is written whole.
    const MAX_CHANGES: usize = 128;

    pub(crate) fn record_change(&mut self, change: DaemonChange) {
        let excess = (self.changes.len() + 1).saturating_sub(Self::MAX_CHANGES);
        self.changes.drain(..excess);
        self.changes.push(change);
    }
}

/// One operator action on one daemon: who and why, and the condition before and after.
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

/// The properties of a daemon that operators can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DaemonCondition {
    pub drained: bool,
    pub connected: bool,
}
