//! What a task has come to, whoever worked on it: its progress and its checkpoints, stored beside its record.
//!
//! They are records of their own because the task's record is written whole on each change, and these are long.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{AttemptId, CheckpointId, TaskId, TenantId};
use crate::time::WallTime;

/// Goal-level progress: outlives every agent, daemon and conversation. Bounds are `crate::goal::progress`'s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressRecord {
    pub tenant: TenantId,
    pub task: TaskId,
    pub summary: Arc<str>,
    /// Oldest first, each once.
    pub completed: Vec<Arc<str>>,
    /// Oldest first, one for each item; the last reason stands.
    pub failed: Vec<FailedItem>,
    /// Where the work stands, in the agent's own terms.
    pub cursor: Arc<str>,
    pub evidence: Vec<EvidenceItem>,
    /// How many were dropped for newer ones; they only grow.
    pub completed_truncated: u64,
    pub failed_truncated: u64,
    pub evidence_truncated: u64,
    pub updated: WallTime,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedItem {
    pub item: Arc<str>,
    pub reason: Arc<str>,
}

/// Something to look at: a file, a link, a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvidenceItem {
    pub kind: Arc<str>,
    pub reference: Arc<str>,
    pub summary: Arc<str>,
}

/// A milestone, numbered within its task; written once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRecord {
    pub id: CheckpointId,
    pub tenant: TenantId,
    pub task: TaskId,
    /// From 1 without a gap, also where old ones were dropped.
    pub number: u64,
    /// The attempt that was open, or the last one.
    pub attempt: AttemptId,
    pub attempt_number: u32,
    pub kind: CheckpointKind,
    pub summary: Arc<str>,
    pub cursor: Arc<str>,
    pub evidence: Vec<EvidenceItem>,
    pub agent_session_id: Option<Arc<str>>,
    /// Where state lies that is too large to be told.
    pub state_refs: Vec<Arc<str>>,
    /// How many items there were, dropped ones included; none where the progress could not be read.
    pub completed_count: u64,
    pub failed_count: u64,
    /// The task's events that it covers: behind this one, which the checkpoint before told of.
    pub after_revision: u64,
    pub to_revision: u64,
    /// Something that looked like a secret was taken out.
    pub redacted: bool,
    pub created: WallTime,
    /// The daemon, agent, client or operator that wrote it.
    pub by: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CheckpointKind {
    Progress,
    /// Written by a block alone.
    Blocked,
}

/// What the next attempt is told by whoever sent it on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeInstructions {
    pub by: Arc<str>,
    pub reason: Arc<str>,
    pub instructions: Arc<str>,
    /// Question and answer.
    pub answers: Vec<(Arc<str>, Arc<str>)>,
}
