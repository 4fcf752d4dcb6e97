//! The successor rule: no attempt of a task or conversation is leased while an earlier one may
//! still run.
//!
//! Every path calls `check_lease` before it leases. An attempt has a fence while it is leased.
//! If it ends without proof of death, the fence remains until the lease limit plus grace. Proof
//! is a receipt, another boot of its machine, or time. This module never ends an attempt.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::ids::{AttemptId, DaemonId, TaskId};
use crate::record::{FenceRecord, PossibleRunner};
use crate::schedule::conversation::ConversationKey;
use crate::time::MonotonicTime;

/// An attempt that runs or may run, and blocks successors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    pub attempt: AttemptId,
    pub task: TaskId,
    pub conversation: Option<ConversationKey>,
    /// None for an inherited task: this relay has no record of where its attempt ran.
    pub runner: Option<PossibleRunner>,
    pub guard: FenceGuard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FenceGuard {
    /// Ended without proof of death; at this time its processes are certainly dead.
    Until(MonotonicTime),
    /// The attempt is leased.
    Leased,
}

impl Fence {
    /// A fence for any attempt of an inherited task that another relay may have leased.
    pub fn inherited(
        task: TaskId,
        conversation: Option<ConversationKey>,
        until: MonotonicTime,
    ) -> Self {
        Self {
            // The attempt's id is unknown to this relay, so the task's id is used instead.
            attempt: AttemptId(task.0),
            task,
            conversation,
            runner: None,
            guard: FenceGuard::Until(until),
        }
    }

    pub fn is_inherited(&self) -> bool {
        self.runner.is_none()
    }

    fn daemon(&self) -> Option<DaemonId> {
        self.runner.as_ref().and_then(PossibleRunner::daemon)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempt = self.attempt;
        match (self.guard, &self.runner) {
            (FenceGuard::Leased, _) => write!(f, "attempt {attempt} holds the lease"),
            (FenceGuard::Until(_), Some(PossibleRunner::Machine { daemon, .. })) => {
                write!(f, "attempt {attempt} may still run on daemon {daemon}")
            }
            (FenceGuard::Until(_), Some(PossibleRunner::Agent { name })) => {
                write!(f, "agent {name} may still work on attempt {attempt}")
            }
            (FenceGuard::Until(_), None) => {
                write!(f, "an attempt unknown to this relay may still run")
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Fences {
    fences: BTreeMap<AttemptId, Fence>,
    tasks: BTreeMap<TaskId, BTreeSet<AttemptId>>,
    conversations: BTreeMap<ConversationKey, BTreeSet<AttemptId>>,
    daemons: BTreeMap<DaemonId, BTreeSet<AttemptId>>,
    inherited: BTreeSet<AttemptId>,
    ends: BTreeSet<(MonotonicTime, AttemptId)>,
}

impl Fences {
    /// Whether an attempt of this task may be leased now; if not, the fence that lasts longest.
    pub fn check_lease(
        &self,
        task: TaskId,
        conversation: Option<&ConversationKey>,
        now: MonotonicTime,
    ) -> Result<(), &Fence> {
        let of_task = self.tasks.get(&task);
        let of_conversation = conversation.and_then(|key| self.conversations.get(key));
        let attempts = of_task.into_iter().chain(of_conversation).flatten();
        let fences = attempts.filter_map(|attempt| self.fences.get(attempt));
        let active = fences.filter(|fence| fence.guard > FenceGuard::Until(now));
        active
            .max_by_key(|fence| (fence.guard, fence.attempt))
            .map_or(Ok(()), Err)
    }

    /// Adds a fence, or replaces the attempt's existing one.
    pub fn insert_fence(&mut self, fence: Fence) {
        self.remove_fence(fence.attempt);
        let attempt = fence.attempt;
        self.tasks.entry(fence.task).or_default().insert(attempt);
        if let Some(daemon) = fence.daemon() {
            self.daemons.entry(daemon).or_default().insert(attempt);
        }
        if fence.is_inherited() {
            self.inherited.insert(attempt);
        }
        if let Some(key) = &fence.conversation {
            let attempts = self.conversations.entry(key.clone()).or_default();
            attempts.insert(attempt);
        }
        if let FenceGuard::Until(at) = fence.guard {
            self.ends.insert((at, attempt));
        }
        self.fences.insert(attempt, fence);
    }

    /// Limits the fence of an attempt that ended without proof of death. Returns the changed
    /// fence.
    pub fn fence_until(&mut self, attempt: AttemptId, until: MonotonicTime) -> Option<&Fence> {
        let mut fence = self.remove_fence(attempt)?;
        fence.guard = FenceGuard::Until(until);
        self.insert_fence(fence);
        self.fences.get(&attempt)
    }

    /// Removes a fence after proof of death or expiry. `None` if the attempt had none.
    pub fn remove_fence(&mut self, attempt: AttemptId) -> Option<Fence> {
        let fence = self.fences.remove(&attempt)?;
        remove_from_index(&mut self.tasks, &fence.task, attempt);
        if let Some(daemon) = fence.daemon() {
            remove_from_index(&mut self.daemons, &daemon, attempt);
        }
        self.inherited.remove(&attempt);
        if let Some(key) = &fence.conversation {
            remove_from_index(&mut self.conversations, key, attempt);
        }
        if let FenceGuard::Until(at) = fence.guard {
            self.ends.remove(&(at, attempt));
        }
        Some(fence)
    }

    /// Removes the fences of attempts that were leased on this machine under another boot id,
    /// because their processes are dead. Returns the removed fences, including those of leased
    /// attempts.
    pub fn remove_rebooted(&mut self, daemon: DaemonId, boot_id: &str) -> Vec<Fence> {
        let of_daemon = self.daemons.get(&daemon).into_iter().flatten();
        let dead = |attempt: &&AttemptId| {
            let fence = self.fences.get(*attempt);
            let leased_under = fence.and_then(|fence| fence.runner.as_ref());
            match leased_under {
                Some(PossibleRunner::Machine { boot_id: then, .. }) => **then != *boot_id,
                Some(PossibleRunner::Agent { .. }) | None => false,
            }
        };
        let dead: Vec<AttemptId> = of_daemon.filter(dead).copied().collect();
        dead.into_iter()
            .filter_map(|a| self.remove_fence(a))
            .collect()
    }

    /// Replaces the boot id in all fences of this daemon. Called when a session reports another
    /// boot id while the old session was still alive: two machines share an identity, so the
    /// change of boot id does not prove that the fenced attempts are dead.
    pub fn replace_boot_id(&mut self, daemon: DaemonId, boot_id: &Arc<str>) {
        for attempt in self.daemons.get(&daemon).into_iter().flatten() {
            let fence = self.fences.get_mut(attempt);
            if let Some(Some(PossibleRunner::Machine { boot_id: then, .. })) =
                fence.map(|fence| &mut fence.runner)
            {
                *then = Arc::clone(boot_id);
            }
        }
    }

    /// Removes and returns one expired fence.
    pub fn take_expired(&mut self, now: MonotonicTime) -> Option<Fence> {
        let (at, attempt) = *self.ends.first()?;
        if at > now {
            return None;
        }
        self.remove_fence(attempt)
    }

    /// Removes and returns the fences of all inherited tasks.
    pub fn take_inherited(&mut self) -> Vec<Fence> {
        let inherited = self.inherited.clone();
        inherited
            .into_iter()
            .filter_map(|a| self.remove_fence(a))
            .collect()
    }

    /// When the next fence expires.
    pub fn next_end_at(&self) -> Option<MonotonicTime> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// Whether any attempt of this task runs or may run.
    pub fn has_task(&self, task: TaskId) -> bool {
        self.tasks.contains_key(&task)
    }

    /// Whether anything runs or may run on this daemon's machine.
    pub fn has_daemon(&self, daemon: DaemonId) -> bool {
        self.daemons.contains_key(&daemon)
    }

    pub fn get(&self, attempt: AttemptId) -> Option<&Fence> {
        self.fences.get(&attempt)
    }

    /// Restores a stored fence with its full time, because the length of the outage is unknown.
    pub fn restore(&mut self, record: &FenceRecord, now: MonotonicTime) {
        let name = record.conversation.clone();
        let conversation = name.map(|name| ConversationKey {
            tenant: record.tenant.clone(),
            name,
        });
        self.insert_fence(Fence {
            attempt: record.attempt,
            task: record.task,
            conversation,
            runner: Some(record.runner.clone()),
            guard: FenceGuard::Until(now + record.full_ms),
        });
    }
}

fn remove_from_index<K: Ord>(
    index: &mut BTreeMap<K, BTreeSet<AttemptId>>,
    key: &K,
    attempt: AttemptId,
) {
    if let Some(attempts) = index.get_mut(key) {
        attempts.remove(&attempt);
        if attempts.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::samples::tenant;

    fn attempt(n: u128) -> AttemptId {
        AttemptId(Uuid::from_u128(n))
    }

    fn task(n: u128) -> TaskId {
        TaskId(Uuid::from_u128(n))
    }

    fn daemon(n: u128) -> DaemonId {
        DaemonId(Uuid::from_u128(n))
    }

    fn machine(n: u128, boot_id: &str) -> Option<PossibleRunner> {
        Some(PossibleRunner::Machine {
            daemon: daemon(n),
            boot_id: boot_id.into(),
        })
    }

    fn conversation_key(name: &str) -> ConversationKey {
        ConversationKey {
            tenant: tenant("acme"),
            name: name.into(),
        }
    }

    /// Attempt 1 of task 1, conversation "c", on daemon 1 under boot "b".
    fn leased() -> Fences {
        let mut fences = Fences::default();
        fences.insert_fence(Fence {
            attempt: attempt(1),
            task: task(1),
            conversation: Some(conversation_key("c")),
            runner: machine(1, "b"),
            guard: FenceGuard::Leased,
        });
        fences
    }

    fn may_lease(fences: &Fences, t: u128, key: Option<&str>, at: u64) -> bool {
        let key = key.map(conversation_key);
        let verdict = fences.check_lease(task(t), key.as_ref(), MonotonicTime(at));
        verdict.is_ok()
    }

    #[test]
    fn a_leased_attempt_blocks_its_task_and_conversation() {
        let fences = leased();
        assert!(!may_lease(&fences, 1, None, u64::MAX));
        assert!(!may_lease(&fences, 2, Some("c"), u64::MAX));
        assert!(may_lease(&fences, 2, Some("d"), 0) && may_lease(&fences, 2, None, 0));
        let elsewhere = ConversationKey {
            tenant: tenant("other"),
            name: "c".into(),
        };
        assert!(
            fences
                .check_lease(task(2), Some(&elsewhere), MonotonicTime(0))
                .is_ok()
        );
    }

    #[test]
    fn without_proof_of_death_no_successor_is_leased_before_the_limit() {
        let mut fences = leased();
        let fence = fences.fence_until(attempt(1), MonotonicTime(100)).unwrap();
        assert_eq!(fence.guard, FenceGuard::Until(MonotonicTime(100)));
        assert!(!may_lease(&fences, 1, None, 99) && !may_lease(&fences, 2, Some("c"), 99));
        assert!(may_lease(&fences, 1, None, 100) && may_lease(&fences, 2, Some("c"), 100));
        assert_eq!(
            (fences.next_end_at(), fences.take_expired(MonotonicTime(99))),
            (Some(MonotonicTime(100)), None)
        );
        assert_eq!(
            fences.take_expired(MonotonicTime(100)).unwrap().attempt,
            attempt(1)
        );
        assert!(
            may_lease(&fences, 1, None, 0),
            "an expired fence stays removed"
        );
    }

    #[test]
    fn a_receipt_lifts_a_fence_at_once() {
        let mut fences = leased();
        fences.fence_until(attempt(1), MonotonicTime(100));
        assert!(fences.remove_fence(attempt(1)).is_some());
        assert!(may_lease(&fences, 1, Some("c"), 0));
        assert_eq!(
            (fences.remove_fence(attempt(1)), fences.next_end_at()),
            (None, None)
        );
        assert!(fences.fence_until(attempt(1), MonotonicTime(5)).is_none());
    }

    #[test]
    fn only_another_boot_of_the_machine_proves_death() {
        let mut fences = leased();
        fences.insert_fence(Fence {
            attempt: attempt(2),
            task: task(2),
            conversation: None,
            runner: machine(1, "b"),
            guard: FenceGuard::Until(MonotonicTime(100)),
        });
        assert!(fences.remove_rebooted(daemon(1), "b").is_empty());
        assert!(fences.remove_rebooted(daemon(2), "new").is_empty());
        assert!(!may_lease(&fences, 1, None, 0) && !may_lease(&fences, 2, None, 0));
        assert_eq!(fences.remove_rebooted(daemon(1), "new").len(), 2);
        assert!(may_lease(&fences, 1, Some("c"), 0) && may_lease(&fences, 2, None, 0));
    }

    #[test]
    fn a_machine_boot_lifts_no_fence_of_an_agent_holder() {
        let mut fences = Fences::default();
        let name = "reviewer".into();
        fences.insert_fence(Fence {
            attempt: attempt(1),
            task: task(1),
            conversation: None,
            runner: Some(PossibleRunner::Agent { name }),
            guard: FenceGuard::Until(MonotonicTime(100)),
        });
        assert!(
            fences.remove_rebooted(daemon(1), "new").is_empty()
                && fences.take_inherited().is_empty()
        );
        assert!(!may_lease(&fences, 1, None, 99) && may_lease(&fences, 1, None, 100));
    }

    #[test]
    fn the_longest_of_several_fences_is_returned() {
        let mut fences = leased();
        fences.fence_until(attempt(1), MonotonicTime(100));
        fences.insert_fence(Fence {
            attempt: attempt(2),
            task: task(3),
            conversation: Some(conversation_key("c")),
            runner: machine(2, "x"),
            guard: FenceGuard::Until(MonotonicTime(300)),
        });
        let key = conversation_key("c");
        let named = fences
            .check_lease(task(1), Some(&key), MonotonicTime(0))
            .unwrap_err();
        assert_eq!(named.attempt, attempt(2));
        let later = fences.check_lease(task(1), Some(&key), MonotonicTime(200));
        assert_eq!(later.unwrap_err().attempt, attempt(2));
    }

    #[test]
    fn a_restored_fence_gets_its_full_time() {
        let mut fences = Fences::default();
        let record = FenceRecord {
            attempt: attempt(1),
            tenant: tenant("acme"),
            task: task(1),
            conversation: Some("c".into()),
            runner: PossibleRunner::Machine {
                daemon: daemon(1),
                boot_id: "b".into(),
            },
            full_ms: 35_000,
        };
        fences.restore(&record, MonotonicTime(7));
        fences.restore(&record, MonotonicTime(9));
        assert_eq!(fences.next_end_at(), Some(MonotonicTime(35_009)));
        assert!(
            !may_lease(&fences, 2, Some("c"), 35_008) && may_lease(&fences, 2, Some("c"), 35_009)
        );
    }
}
