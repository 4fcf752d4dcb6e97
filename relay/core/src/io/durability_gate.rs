//! The durability gate: a delivery is sent only after the write that it depends on is durable.
//!
//! A delivery waits only for the last uncommitted write of its own task, so a slow commit does
//! not delay independent deliveries such as renewals. The gate is pure: it gets commit numbers
//! and returns the deliveries that may be sent.

use std::collections::{BTreeMap, HashMap};

use crate::ids::TaskId;
use crate::io::effects::{CommitDependency, GatedDelivery};

/// Waiting deliveries in the order of the commits they wait for. `Commit` is the store's
/// number; its default value precedes the first commit.
#[derive(Debug)]
pub struct DurabilityGate<Commit, D> {
    durable_commit: Commit,
    /// The newest commit that was handed to the store.
    newest_commit: Commit,
    /// Tasks with a write that is not durable yet, and the commit of the last one.
    uncommitted_tasks: HashMap<TaskId, Commit>,
    waiting_commits: BTreeMap<Commit, GatedCommit<D>>,
}

/// The deliveries that one commit releases.
#[derive(Debug)]
struct GatedCommit<D> {
    deliveries: Vec<D>,
    tasks: Vec<TaskId>,
}

impl<D> Default for GatedCommit<D> {
    fn default() -> Self {
        Self {
            deliveries: Vec::new(),
            tasks: Vec::new(),
        }
    }
}

impl<Commit: Default, D> Default for DurabilityGate<Commit, D> {
    fn default() -> Self {
        Self {
            durable_commit: Commit::default(),
            newest_commit: Commit::default(),
            uncommitted_tasks: HashMap::new(),
            waiting_commits: BTreeMap::new(),
        }
    }
}

impl<Commit: Copy + Ord, D> DurabilityGate<Commit, D> {
    /// Records that `commit` contains a write of `task`.
    pub fn note_task_write(&mut self, task: TaskId, commit: Commit) {
        self.uncommitted_tasks.insert(task, commit);
        self.waiting_commits
            .entry(commit)
            .or_default()
            .tasks
            .push(task);
    }

    /// Records that `commit` was handed to the store.
    pub fn note_appended(&mut self, commit: Commit) {
        self.newest_commit = commit;
    }

    /// Returns the delivery if it depends on no uncommitted write; stores it otherwise.
    pub fn admit(&mut self, outgoing: GatedDelivery<D>) -> Option<D> {
        let needed = match outgoing.depends_on {
            CommitDependency::Nothing => None,
            CommitDependency::Task(task) => self.uncommitted_tasks.get(&task).copied(),
            CommitDependency::Everything => Some(self.newest_commit),
        };
        match needed {
            Some(commit) if commit > self.durable_commit => {
                self.waiting_commits
                    .entry(commit)
                    .or_default()
                    .deliveries
                    .push(outgoing.delivery);
                None
            }
            Some(_) | None => Some(outgoing.delivery),
        }
    }

    /// Returns every delivery that may be sent once `durable` is reached, oldest commit first.
    pub fn release(&mut self, durable: Commit) -> Vec<D> {
        self.durable_commit = self.durable_commit.max(durable);
        let mut released = Vec::new();
        while let Some(entry) = self.waiting_commits.first_entry() {
            if *entry.key() > self.durable_commit {
                break;
            }
            let (commit, waiting) = entry.remove_entry();
            for task in waiting.tasks {
                if self.uncommitted_tasks.get(&task) == Some(&commit) {
                    self.uncommitted_tasks.remove(&task);
                }
            }
            released.extend(waiting.deliveries);
        }
        released
    }

    pub fn is_empty(&self) -> bool {
        self.waiting_commits.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn task(number: u128) -> TaskId {
        TaskId(Uuid::from_u128(number))
    }

    fn reply(depends_on: CommitDependency, request: u64) -> GatedDelivery<u64> {
        GatedDelivery {
            depends_on,
            delivery: request,
        }
    }

    #[test]
    fn a_delivery_waits_only_for_the_last_write_of_its_task() {
        let [first, second] = [1_u64, 2];
        let mut gate = DurabilityGate::default();
        gate.note_appended(first);
        gate.note_task_write(task(1), first);
        assert!(
            gate.admit(reply(CommitDependency::Task(task(1)), 1))
                .is_none()
        );
        assert!(
            gate.admit(reply(CommitDependency::Task(task(2)), 2))
                .is_some(),
            "another task"
        );
        assert!(gate.admit(reply(CommitDependency::Nothing, 3)).is_some());
        assert!(gate.admit(reply(CommitDependency::Everything, 4)).is_none());

        gate.note_appended(second);
        gate.note_task_write(task(1), second);
        assert!(
            gate.admit(reply(CommitDependency::Task(task(1)), 5))
                .is_none()
        );
        assert_eq!(gate.release(first), [1, 4]);
        assert!(
            gate.admit(reply(CommitDependency::Task(task(1)), 6))
                .is_none(),
            "its last write is the second"
        );
        assert_eq!(gate.release(second), [5, 6]);
        assert!(gate.is_empty());
        assert!(
            gate.admit(reply(CommitDependency::Task(task(1)), 7))
                .is_some(),
            "all its writes are durable"
        );
    }
}
