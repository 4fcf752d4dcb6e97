//! Goal-level progress: how an update is merged, and the limits of what is kept.
//!
//! Lengths are counted in characters, so that no character is split, and the newest entries are
//! kept. Dropped entries stay counted. Byte budgets apply in addition, because a record must
//! fit into one append of the journal.

use std::collections::HashSet;
use std::sync::Arc;

use baton_validation::limits;

use crate::ids::{TaskId, TenantId};
use crate::record::{EvidenceItem, FailedItem, ProgressRecord};
use crate::redaction;
use crate::time::WallTime;

pub const SUMMARY_CHARS: usize = limits::SUMMARY.limit();
pub const CURSOR_CHARS: usize = limits::CURSOR.limit();
pub const ITEM_CHARS: usize = limits::ITEM.limit();
/// Why an item failed.
pub const REASON_CHARS: usize = limits::ITEM_REASON.limit();
pub const EVIDENCE_KIND_CHARS: usize = limits::EVIDENCE_KIND.limit();
pub const EVIDENCE_REF_CHARS: usize = limits::EVIDENCE_REF.limit();
pub const EVIDENCE_CHARS: usize = limits::EVIDENCE_SUMMARY.limit();
/// Why a task was blocked, and what would help.
pub const BLOCK_CHARS: usize = limits::REASON.limit();
pub const MAX_ITEMS: usize = limits::MAX_ITEMS;
pub const MAX_EVIDENCE: usize = limits::MAX_EVIDENCE;
pub const MAX_STATE_REFS: usize = limits::MAX_STATE_REFS;
pub const STATE_REF_CHARS: usize = limits::STATE_REF.limit();
const AGENT_SESSION_BYTES: usize = limits::EXTERNAL_ID.limit();
/// Evidence of a checkpoint: the newest items within this many bytes.
const CHECKPOINT_EVIDENCE_BYTES: usize = 48 * 1024;
const STATE_REFS_BYTES: usize = 32 * 1024;
const ITEMS_BYTES: usize = 192 * 1024;
const EVIDENCE_BYTES: usize = 96 * 1024;
/// Checkpoints that a task keeps. Their numbers continue to rise.
pub const MAX_CHECKPOINTS: u64 = 50;

/// A progress update. An absent field stays unchanged; an empty text clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgressUpdate {
    pub summary: Option<Arc<str>>,
    pub completed: Vec<Arc<str>>,
    pub failed: Vec<FailedItem>,
    pub cursor: Option<Arc<str>>,
    pub evidence: Vec<EvidenceItem>,
}

/// A checkpoint as it is reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointDraft {
    pub summary: Arc<str>,
    pub cursor: Arc<str>,
    pub evidence: Vec<EvidenceItem>,
    pub agent_session_id: Option<Arc<str>>,
    pub state_refs: Vec<Arc<str>>,
}

/// Why the work cannot continue, and what the next attempt needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockDraft {
    pub reason: Arc<str>,
    pub hint: Option<Arc<str>>,
    pub checkpoint: Option<CheckpointDraft>,
}

/// A holder's report about the goal.
#[derive(Clone, Debug)]
pub enum GoalReport {
    Progress(SanitizedText<ProgressUpdate>),
    Checkpoint(SanitizedText<CheckpointDraft>),
    /// The attempt cannot continue: it is parked, and its processes are ended.
    Block(SanitizedText<BlockDraft>),
}

/// Text that is cut to its limits and free of credentials; the core accepts no other. It is
/// sanitized before the core's turn, so that long texts do not delay other inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SanitizedText<T> {
    text: T,
    redacted: bool,
}

impl<T: SanitizeText> SanitizedText<T> {
    pub fn new(mut text: T) -> Self {
        let redacted = text.sanitize();
        Self { text, redacted }
    }

    /// The text, and whether something that looked like a credential was removed.
    pub(crate) fn into_parts(self) -> (T, bool) {
        (self.text, self.redacted)
    }
}

/// Text about a goal that must be sanitized.
pub trait SanitizeText {
    /// Cuts the text to its limits and removes credentials; true if one was removed.
    fn sanitize(&mut self) -> bool;
}

impl SanitizeText for ProgressUpdate {
    fn sanitize(&mut self) -> bool {
        let mut redacted = false;
        for text in self.summary.iter_mut() {
            redacted |= sanitize_text(text, SUMMARY_CHARS);
        }
        for text in self.cursor.iter_mut() {
            redacted |= sanitize_text(text, CURSOR_CHARS);
        }
        let has_text = |text: &str| !text.trim().is_empty();
        self.completed.retain(|item| has_text(item));
        self.failed.retain(|failed| has_text(&failed.item));
        for item in &mut self.completed {
            redacted |= sanitize_text(item, ITEM_CHARS);
        }
        for FailedItem { item, reason } in &mut self.failed {
            redacted |= sanitize_text(item, ITEM_CHARS) | sanitize_text(reason, REASON_CHARS);
        }
        redacted | sanitize_evidence(&mut self.evidence)
    }
}

impl SanitizeText for CheckpointDraft {
    fn sanitize(&mut self) -> bool {
        let mut redacted = sanitize_text(&mut self.summary, SUMMARY_CHARS);
        redacted |= sanitize_text(&mut self.cursor, CURSOR_CHARS);
        retain_newest(&mut self.state_refs, MAX_STATE_REFS, usize::MAX);
        for reference in &mut self.state_refs {
            redacted |= sanitize_text(reference, STATE_REF_CHARS);
        }
        retain_newest(&mut self.state_refs, MAX_STATE_REFS, STATE_REFS_BYTES);
        retain_newest(&mut self.evidence, MAX_EVIDENCE, usize::MAX);
        redacted |= sanitize_evidence(&mut self.evidence);
        retain_newest(&mut self.evidence, MAX_EVIDENCE, CHECKPOINT_EVIDENCE_BYTES);
        // A truncated id could name another conversation, so an id that is too long is dropped.
        let short = |id: &Arc<str>| id.len() <= AGENT_SESSION_BYTES;
        self.agent_session_id = self.agent_session_id.take().filter(short);
        redacted
    }
}

impl CheckpointDraft {
    /// The progress update that a checkpoint implies.
    pub(crate) fn as_progress(&self) -> ProgressUpdate {
        let non_empty = |text: &Arc<str>| (!text.is_empty()).then(|| Arc::clone(text));
        ProgressUpdate {
            summary: non_empty(&self.summary),
            cursor: non_empty(&self.cursor),
            evidence: self.evidence.clone(),
            ..ProgressUpdate::default()
        }
    }
}

impl SanitizeText for BlockDraft {
    fn sanitize(&mut self) -> bool {
        let mut redacted = sanitize_text(&mut self.reason, BLOCK_CHARS);
        for hint in self.hint.iter_mut() {
            redacted |= sanitize_text(hint, BLOCK_CHARS);
        }
        self.checkpoint
            .as_mut()
            .is_some_and(CheckpointDraft::sanitize)
            | redacted
    }
}

impl ProgressRecord {
    pub(crate) fn empty(tenant: TenantId, task: TaskId) -> Self {
        Self {
            tenant,
            task,
            summary: "".into(),
            completed: Vec::new(),
            failed: Vec::new(),
            cursor: "".into(),
            evidence: Vec::new(),
            completed_truncated: 0,
            failed_truncated: 0,
            evidence_truncated: 0,
            updated: WallTime(0),
        }
    }

    /// Merges a sanitized update.
    pub(crate) fn add_update(&mut self, update: ProgressUpdate, at: WallTime) {
        let ProgressUpdate {
            summary,
            completed,
            failed,
            cursor,
            evidence,
        } = update;
        self.summary = summary.unwrap_or_else(|| Arc::clone(&self.summary));
        self.cursor = cursor.unwrap_or_else(|| Arc::clone(&self.cursor));
        add_completed(&mut self.completed, completed);
        // An item that was completed later has not failed.
        let done: HashSet<&str> = self.completed.iter().map(|item| &**item).collect();
        add_failed(&mut self.failed, failed);
        self.failed.retain(|failed| !done.contains(&*failed.item));
        self.evidence.extend(evidence);
        self.completed_truncated += retain_newest(&mut self.completed, MAX_ITEMS, ITEMS_BYTES);
        self.failed_truncated += retain_newest(&mut self.failed, MAX_ITEMS, ITEMS_BYTES);
        let earlier = self.evidence_truncated * u64::from(!mutant!(CounterFalls));
        let dropped = retain_newest(&mut self.evidence, MAX_EVIDENCE, EVIDENCE_BYTES);
        self.evidence_truncated = earlier + dropped;
        self.updated = at;
    }

    pub(crate) fn completed_count(&self) -> u64 {
        self.completed.len() as u64 + self.completed_truncated
    }

    pub(crate) fn failed_count(&self) -> u64 {
        self.failed.len() as u64 + self.failed_truncated
    }
}

/// Adds each item once, at its first position.
fn add_completed(known: &mut Vec<Arc<str>>, new: Vec<Arc<str>>) {
    let mut seen: HashSet<Arc<str>> = known.iter().cloned().collect();
    known.extend(new.into_iter().filter(|item| seen.insert(Arc::clone(item))));
}

/// Keeps the last reason of each item and moves the item to the newest position.
fn add_failed(known: &mut Vec<FailedItem>, new: Vec<FailedItem>) {
    known.extend(new);
    let mut seen: HashSet<Arc<str>> = HashSet::new();
    let mut newest_first: Vec<FailedItem> = known.drain(..).rev().collect();
    newest_first.retain(|failed| seen.insert(Arc::clone(&failed.item)));
    known.extend(newest_first.into_iter().rev());
}

fn sanitize_evidence(evidence: &mut [EvidenceItem]) -> bool {
    let mut redacted = false;
    for EvidenceItem {
        kind,
        reference,
        summary,
    } in evidence
    {
        redacted |= sanitize_text(kind, EVIDENCE_KIND_CHARS);
        redacted |=
            sanitize_text(reference, EVIDENCE_REF_CHARS) | sanitize_text(summary, EVIDENCE_CHARS);
    }
    redacted
}

/// Removes credentials before the cut: half a credential would no longer be recognised.
fn sanitize_text(text: &mut Arc<str>, chars: usize) -> bool {
    let redacted = redaction::redact_in_place(text);
    if let Some((end, _)) = text.char_indices().nth(chars) {
        *text = text[..end].into();
    }
    redacted
}

trait ByteSize {
    fn byte_size(&self) -> usize;
}

impl ByteSize for Arc<str> {
    fn byte_size(&self) -> usize {
        self.len()
    }
}

impl ByteSize for FailedItem {
    fn byte_size(&self) -> usize {
        self.item.len() + self.reason.len()
    }
}

impl ByteSize for EvidenceItem {
    fn byte_size(&self) -> usize {
        self.kind.len() + self.reference.len() + self.summary.len()
    }
}

/// Drops the oldest entries until both limits are met; returns how many were dropped.
fn retain_newest<T: ByteSize>(list: &mut Vec<T>, count: usize, bytes: usize) -> u64 {
    let mut room = bytes;
    let fits = list.iter().rev().take(count).take_while(|item| {
        let left = room.checked_sub(item.byte_size());
        room = left.unwrap_or(0);
        left.is_some()
    });
    let dropped = list.len() - fits.count();
    list.drain(..dropped);
    dropped as u64
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
