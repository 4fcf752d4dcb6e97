//! The effect gate: nothing leaves before the write it depends on is durable.
//!
//! A send waits for the last uncommitted write of its own task only, so one slow commit does not hold back what
//! does not depend on it (renewals above all). Pure: it is told sequence numbers and hands back what may go.

use std::collections::{BTreeMap, HashMap};

use crate::effects::{After, Outgoing, Send};
use crate::id::TaskId;

/// Sends that wait, in the order of the commit they wait for. `Commit` is the store's number; its default stands
/// before the first.
#[derive(Debug, Default)]
pub struct Gate<Commit> {
    durable: Commit,
    /// The newest commit that is not yet durable and touched anything at all.
    newest: Commit,
    /// Tasks with a write that is not durable yet, and the commit that carries the last one.
    unsettled: HashMap<TaskId, Commit>,
    waiting: BTreeMap<Commit, Waiting>,
}

/// What one commit will release.
#[derive(Debug, Default)]
struct Waiting {
    sends: Vec<Send>,
    tasks: Vec<TaskId>,
}

impl<Commit: Copy + Ord> Gate<Commit> {
    /// Notes that `commit` carries a write of `task`.
    pub fn wrote(&mut self, task: TaskId, commit: Commit) {
        self.unsettled.insert(task, commit);
        self.waiting.entry(commit).or_default().tasks.push(task);
    }

    /// Notes that `commit` was handed to the store.
    pub fn appended(&mut self, commit: Commit) {
        self.newest = commit;
    }

    /// Hands the send back if it depends on nothing that is still on its way to the disk; keeps it otherwise.
    pub fn admit(&mut self, outgoing: Outgoing) -> Option<Send> {
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
    pub fn release(&mut self, durable: Commit) -> Vec<Send> {
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

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effects::Reply;
    use crate::id::RequestId;
    use uuid::Uuid;

    fn task(number: u128) -> TaskId {
        TaskId(Uuid::from_u128(number))
    }

    fn reply(after: After, request: u64) -> Outgoing {
        Outgoing {
            after,
            send: Send::Reply {
                request: RequestId(request),
                outcome: Ok(Reply::Done),
            },
        }
    }

    fn requests(sends: Vec<Send>) -> Vec<u64> {
        let request = |send| match send {
            Send::Reply { request, .. } => request.0,
            other => panic!("only replies were sent, not {other:?}"),
        };
        sends.into_iter().map(request).collect()
    }

    #[test]
    fn a_send_waits_for_the_last_write_of_its_own_task_only() {
        let [first, second] = [1_u64, 2];
        let mut gate = Gate::default();
        gate.appended(first);
        gate.wrote(task(1), first);
        assert!(gate.admit(reply(After::Task(task(1)), 1)).is_none());
        assert!(
            gate.admit(reply(After::Task(task(2)), 2)).is_some(),
            "another task"
        );
        assert!(gate.admit(reply(After::Nothing, 3)).is_some());
        assert!(gate.admit(reply(After::Everything, 4)).is_none());

        gate.appended(second);
        gate.wrote(task(1), second);
        assert!(gate.admit(reply(After::Task(task(1)), 5)).is_none());
        assert_eq!(requests(gate.release(first)), [1, 4]);
        assert!(
            gate.admit(reply(After::Task(task(1)), 6)).is_none(),
            "its last write is the second"
        );
        assert_eq!(requests(gate.release(second)), [5, 6]);
        assert!(gate.is_empty());
        assert!(
            gate.admit(reply(After::Task(task(1)), 7)).is_some(),
            "all of it is durable"
        );
    }
}
