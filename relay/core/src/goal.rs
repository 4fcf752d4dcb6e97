//! Goal-level progress: how an update is added to what is known, and how much of it is kept.
//!
//! Bounds count characters, never half of one, and keep the newest; what is dropped is counted for ever. Beside the counts
//! stand byte budgets, because a record must fit into one append of the journal.

use std::collections::HashSet;
use std::sync::Arc;

use baton_contract::bounds;

use crate::id::{TaskId, TenantId};
use crate::record::{Evidence, FailedItem, ProgressRecord};
use crate::secrets;
use crate::time::Wall;

pub const SUMMARY_CHARS: usize = bounds::SUMMARY.most();
pub const CURSOR_CHARS: usize = bounds::CURSOR.most();
pub const ITEM_CHARS: usize = bounds::ITEM.most();
/// Why an item failed.
pub const REASON_CHARS: usize = bounds::ITEM_REASON.most();
pub const EVIDENCE_KIND_CHARS: usize = bounds::EVIDENCE_KIND.most();
pub const EVIDENCE_REF_CHARS: usize = bounds::EVIDENCE_REF.most();
pub const EVIDENCE_CHARS: usize = bounds::EVIDENCE_SUMMARY.most();
/// Why a task was blocked, and what would help.
pub const BLOCK_CHARS: usize = bounds::REASON.most();
pub const ITEMS: usize = bounds::ITEMS;
pub const EVIDENCE: usize = bounds::EVIDENCE;
pub const STATE_REFS: usize = bounds::STATE_REFS;
pub const STATE_REF_CHARS: usize = bounds::STATE_REF.most();
const AGENT_SESSION_BYTES: usize = bounds::HANDLE.most();
/// Of a checkpoint, the newest within this many bytes together.
const CHECKPOINT_EVIDENCE_BYTES: usize = 48 * 1024;
const STATE_REFS_BYTES: usize = 32 * 1024;
const ITEMS_BYTES: usize = 192 * 1024;
const EVIDENCE_BYTES: usize = 96 * 1024;
/// Checkpoints that a task keeps; their numbers go on.
pub const CHECKPOINTS_KEPT: u64 = 50;

/// What somebody has to add. Absent leaves as it is; an empty text empties.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgressUpdate {
    pub summary: Option<Arc<str>>,
    pub completed: Vec<Arc<str>>,
    pub failed: Vec<FailedItem>,
    pub cursor: Option<Arc<str>>,
    pub evidence: Vec<Evidence>,
}

/// A milestone as it is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointDraft {
    pub summary: Arc<str>,
    pub cursor: Arc<str>,
    pub evidence: Vec<Evidence>,
    pub agent_session_id: Option<Arc<str>>,
    pub state_refs: Vec<Arc<str>>,
}

/// Why it cannot go on, and what the next one should know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockDraft {
    pub reason: Arc<str>,
    pub hint: Option<Arc<str>>,
    pub checkpoint: Option<CheckpointDraft>,
}

/// What a holder says about the goal.
#[derive(Clone, Debug)]
pub enum GoalWord {
    Progress(Clean<ProgressUpdate>),
    Checkpoint(Clean<CheckpointDraft>),
    /// The attempt cannot go on: it is parked, and its processes are ended.
    Block(Clean<BlockDraft>),
}

/// Words at the lengths that are kept and without credentials. The core takes no others, and the looking is done before
/// its turn comes: long words must not hold everybody up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clean<T> {
    words: T,
    redacted: bool,
}

impl<T: Words> Clean<T> {
    pub fn new(mut words: T) -> Self {
        let redacted = words.clean();
        Self { words, redacted }
    }

    /// The words, and whether something that looked like a credential was taken out.
    pub(crate) fn into_parts(self) -> (T, bool) {
        (self.words, self.redacted)
    }
}

/// What somebody says about a goal.
pub trait Words {
    /// Brings them to the lengths that are kept, without credentials; says whether one was taken out.
    fn clean(&mut self) -> bool;
}

impl Words for ProgressUpdate {
    fn clean(&mut self) -> bool {
        let mut redacted = false;
        for text in self.summary.iter_mut() {
            redacted |= clean(text, SUMMARY_CHARS);
        }
        for text in self.cursor.iter_mut() {
            redacted |= clean(text, CURSOR_CHARS);
        }
        let told = |text: &str| !text.trim().is_empty();
        self.completed.retain(|item| told(item));
        self.failed.retain(|failed| told(&failed.item));
        for item in &mut self.completed {
            redacted |= clean(item, ITEM_CHARS);
        }
        for FailedItem { item, reason } in &mut self.failed {
            redacted |= clean(item, ITEM_CHARS) | clean(reason, REASON_CHARS);
        }
        redacted | clean_evidence(&mut self.evidence)
    }
}

impl Words for CheckpointDraft {
    fn clean(&mut self) -> bool {
        let mut redacted = clean(&mut self.summary, SUMMARY_CHARS);
        redacted |= clean(&mut self.cursor, CURSOR_CHARS);
        keep_newest(&mut self.state_refs, STATE_REFS, usize::MAX);
        for reference in &mut self.state_refs {
            redacted |= clean(reference, STATE_REF_CHARS);
        }
        keep_newest(&mut self.state_refs, STATE_REFS, STATE_REFS_BYTES);
        keep_newest(&mut self.evidence, EVIDENCE, usize::MAX);
        redacted |= clean_evidence(&mut self.evidence);
        keep_newest(&mut self.evidence, EVIDENCE, CHECKPOINT_EVIDENCE_BYTES);
        // Half an id names another conversation, so one that is too long is none.
        let short = |id: &Arc<str>| id.len() <= AGENT_SESSION_BYTES;
        self.agent_session_id = self.agent_session_id.take().filter(short);
        redacted
    }
}

impl CheckpointDraft {
    /// A milestone is news of the progress, too.
    pub(crate) fn as_progress(&self) -> ProgressUpdate {
        let told = |text: &Arc<str>| (!text.is_empty()).then(|| Arc::clone(text));
        ProgressUpdate {
            summary: told(&self.summary),
            cursor: told(&self.cursor),
            evidence: self.evidence.clone(),
            ..ProgressUpdate::default()
        }
    }
}

impl Words for BlockDraft {
    fn clean(&mut self) -> bool {
        let mut redacted = clean(&mut self.reason, BLOCK_CHARS);
        for hint in self.hint.iter_mut() {
            redacted |= clean(hint, BLOCK_CHARS);
        }
        self.checkpoint.as_mut().is_some_and(CheckpointDraft::clean) | redacted
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
            updated: Wall(0),
        }
    }

    /// Adds an update that was cleaned.
    pub(crate) fn add(&mut self, update: ProgressUpdate, at: Wall) {
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
        // An item that was done after all has not failed.
        let done: HashSet<&str> = self.completed.iter().map(|item| &**item).collect();
        add_failed(&mut self.failed, failed);
        self.failed.retain(|failed| !done.contains(&*failed.item));
        self.evidence.extend(evidence);
        self.completed_truncated += keep_newest(&mut self.completed, ITEMS, ITEMS_BYTES);
        self.failed_truncated += keep_newest(&mut self.failed, ITEMS, ITEMS_BYTES);
        let earlier = self.evidence_truncated * u64::from(!mutant!(CounterFalls));
        let gone = keep_newest(&mut self.evidence, EVIDENCE, EVIDENCE_BYTES);
        self.evidence_truncated = earlier + gone;
        self.updated = at;
    }

    pub(crate) fn completed_count(&self) -> u64 {
        self.completed.len() as u64 + self.completed_truncated
    }

    pub(crate) fn failed_count(&self) -> u64 {
        self.failed.len() as u64 + self.failed_truncated
    }
}

/// Each item once, where it was first told.
fn add_completed(known: &mut Vec<Arc<str>>, new: Vec<Arc<str>>) {
    let mut seen: HashSet<Arc<str>> = known.iter().cloned().collect();
    known.extend(new.into_iter().filter(|item| seen.insert(Arc::clone(item))));
}

/// The last reason of each item stands, and makes it the newest.
fn add_failed(known: &mut Vec<FailedItem>, new: Vec<FailedItem>) {
    known.extend(new);
    let mut told: HashSet<Arc<str>> = HashSet::new();
    let mut newest_first: Vec<FailedItem> = known.drain(..).rev().collect();
    newest_first.retain(|failed| told.insert(Arc::clone(&failed.item)));
    known.extend(newest_first.into_iter().rev());
}

fn clean_evidence(evidence: &mut [Evidence]) -> bool {
    let mut redacted = false;
    for Evidence {
        kind,
        reference,
        summary,
    } in evidence
    {
        redacted |= clean(kind, EVIDENCE_KIND_CHARS);
        redacted |= clean(reference, EVIDENCE_REF_CHARS) | clean(summary, EVIDENCE_CHARS);
    }
    redacted
}

/// Credentials first: a cut could leave half of one, which no longer looks like it.
fn clean(text: &mut Arc<str>, chars: usize) -> bool {
    let redacted = secrets::remove(text);
    if let Some((end, _)) = text.char_indices().nth(chars) {
        *text = text[..end].into();
    }
    redacted
}

trait Weighed {
    fn bytes(&self) -> usize;
}

impl Weighed for Arc<str> {
    fn bytes(&self) -> usize {
        self.len()
    }
}

impl Weighed for FailedItem {
    fn bytes(&self) -> usize {
        self.item.len() + self.reason.len()
    }
}

impl Weighed for Evidence {
    fn bytes(&self) -> usize {
        self.kind.len() + self.reference.len() + self.summary.len()
    }
}

/// Drops the oldest until count and bytes are kept; says how many went.
fn keep_newest<T: Weighed>(list: &mut Vec<T>, count: usize, bytes: usize) -> u64 {
    let mut room = bytes;
    let fits = list.iter().rev().take(count).take_while(|item| {
        let left = room.checked_sub(item.bytes());
        room = left.unwrap_or(0);
        left.is_some()
    });
    let gone = list.len() - fits.count();
    list.drain(..gone);
    gone as u64
}

#[cfg(test)]
#[path = "goal_tests.rs"]
mod tests;
