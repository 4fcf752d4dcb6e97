//! The relay's effect gate, word for word in its rules: nothing leaves before the write it depends on is durable.
//!
//! A copy, because the simulation must not depend on the shell; `relay/src/dispatcher/gate.rs` is the original.

use std::collections::BTreeMap;

use baton_core::effects::{After, Outgoing, Send};
use baton_core::id::TaskId;

#[derive(Debug, Default)]
pub(crate) struct Gate {
    durable: u64,
    newest: u64,
    unsettled: BTreeMap<TaskId, u64>,
    waiting: BTreeMap<u64, Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    sends: Vec<Send>,
    tasks: Vec<TaskId>,
}

impl Gate {
    pub(crate) fn wrote(&mut self, task: TaskId, commit: u64) {
        self.unsettled.insert(task, commit);
        self.waiting.entry(commit).or_default().tasks.push(task);
    }

    pub(crate) fn appended(&mut self, commit: u64) {
        self.newest = commit;
    }

    pub(crate) fn admit(&mut self, outgoing: Outgoing) -> Option<Send> {
        let needed = match outgoing.after {
            After::Nothing => None,
            After::Task(task) => self.unsettled.get(&task).copied(),
            After::Everything => Some(self.newest),
        };
        match needed {
            Some(commit) if commit > self.durable => {
                let waiting = self.waiting.entry(commit).or_default();
                waiting.sends.push(outgoing.send);
                None
            }
            Some(_) | None => Some(outgoing.send),
        }
    }

    pub(crate) fn release(&mut self, durable: u64) -> Vec<Send> {
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
}
