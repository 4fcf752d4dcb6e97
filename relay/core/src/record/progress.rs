//! The progress and the checkpoints of a task, stored beside its record. They belong to the
//! task, not to an attempt.
//!
//! They are separate records because the task record is written whole on each change, and these
//! are long.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{AttemptId, CheckpointId, TaskId, TenantId};
use crate::time::WallTime;

/// Goal-level progress, which outlives every agent, daemon and conversation. Its limits are in
/// `crate::goal::progress`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressRecord {
    pub tenant: TenantId,
    pub task: TaskId,
    pub summary: Arc<str>,
    /// Oldest first, without duplicates.
    pub completed: Vec<Arc<str>>,
    /// Oldest first, one per item; the last reason counts.
    pub failed: Vec<FailedItem>,
    /// The current position of the work, in the agent's own terms.
    pub cursor: Arc<str>,
    pub evidence: Vec<EvidenceItem>,
    /// Numbers of items dropped for newer ones; they only grow.
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

/// A reference to evidence: a file, a link, a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvidenceItem {
    pub kind: Arc<str>,
    pub reference: Arc<str>,
    pub summary: Arc<str>,
}

/// A checkpoint, numbered within its task; written once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRecord {
    pub id: CheckpointId,
    pub tenant: TenantId,
    pub task: TaskId,
    /// Counts from 1 without gaps, even after old ones were dropped.
    pub number: u64,
    /// The open attempt, or the last one.
    pub attempt: AttemptId,
    pub attempt_number: u32,
    pub kind: CheckpointKind,
    pub summary: Arc<str>,
    pub cursor: Arc<str>,
    pub evidence: Vec<EvidenceItem>,
    pub agent_session_id: Option<Arc<str>>,
    /// References to state that is too large to include.
    pub state_refs: Vec<Arc<str>>,
    /// Numbers of items, including dropped ones; zero if the progress could not be read.
    pub completed_count: u64,
    pub failed_count: u64,
    /// It covers the events after `after_revision`, where the previous checkpoint ended, up to
    /// `to_revision`.
    pub after_revision: u64,
    pub to_revision: u64,
    /// A text that looked like a secret was removed.
    pub redacted: bool,
    pub created: WallTime,
    /// The daemon, agent, client or operator that wrote it.
    pub by: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CheckpointKind {
    Progress,
    /// Written by a block.
    Blocked,
}

/// Instructions for the next attempt from the person who resumed the task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeInstructions {
    pub by: Arc<str>,
    pub reason: Arc<str>,
    pub instructions: Arc<str>,
    /// Pairs of question and answer.
    pub answers: Vec<(Arc<str>, Arc<str>)>,
}
