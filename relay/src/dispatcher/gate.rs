//! The effect gate: nothing leaves before the write it depends on is durable.
//!
//! A send waits for the last uncommitted write of its own task only, so one slow commit does not hold back what
//! does not depend on it (renewals above all). Pure: it is told sequence numbers and hands back what may go.

use std::collections::{BTreeMap, HashMap};

use baton_core::effects::{After, Outgoing, Send};
use baton_core::id::TaskId;

use crate::store::CommitSeq;

/// Sends that wait, in the order of the commit they wait for.
#[derive(Debug, Default)]
pub(super) struct Gate {
    durable: CommitSeq,
    /// The newest commit that is not yet durable and touched anything at all.
    newest: CommitSeq,
    /// Tasks with a write that is not durable yet, and the commit that carries the last one.
    unsettled: HashMap<TaskId, CommitSeq>,
    waiting: BTreeMap<CommitSeq, Waiting>,
}

/// What one commit will release.
#[derive(Debug, Default)]
struct Waiting {
    sends: Vec<Send>,
    tasks: Vec<TaskId>,
}

impl Gate {
    /// Notes that `commit` carries a write of `task`.
    pub(super) fn wrote(&mut self, task: TaskId, commit: CommitSeq) {
        self.unsettled.insert(task, commit);
        self.waiting.entry(commit).or_default().tasks.push(task);
    }

    /// Notes that `commit` was handed to the store.
    pub(super) fn appended(&mut self, commit: CommitSeq) {
        self.newest = commit;
    }

    /// Hands the send back if it depends on nothing that is still on its way to the disk; keeps it otherwise.
    pub(super) fn admit(&mut self, outgoing: Outgoing) -> Option<Send> {
        let needed = match outgoing.after {
            After::Nothing => None,
            After::Task(task) => self.unsettled.get(&task).copied(),
            After::Everything => Some(self.newest),
        };
        match needed {
            Some(commit) if commit > self.durable => {
                self.waiting
                    .entry(commit)
                    .or_default()
                    .sends
                    .push(outgoing.send);
                None
            }
            Some(_) | None => Some(outgoing.send),
        }
    }

    /// Everything that may go now that `durable` is reached, oldest commit first.
    pub(super) fn release(&mut self, durable: CommitSeq) -> Vec<Send> {
        self.durable = self.durable.max(durable);
        let mut released = Vec::new();
        while let Some(entry) = self.waiting.first_entry() {
            if *entry.key() > self.durable {
                break;
            }
            let (commit, waiting) = entry.remove_entry();
            for task in waiting.tasks {
                if self.unsettled.get(&task) == Some(&commit) {
                    self.unsettled.remove(&task);
                }
            }
            released.extend(waiting.sends);
        }
        released
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
