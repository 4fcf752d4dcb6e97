//! The small records beside tasks: daemons, the scheduler's pause, fences that outlive their
//! task, idempotency keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::attempt::LeaseHolder;
use crate::ids::{AttemptId, DaemonId, TaskId, TenantId, TenantScope, TokenId};
use crate::time::WallTime;

/// A daemon as last seen. Stored so that a drain survives a restart and lists show absent
/// daemons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonRecord {
    pub daemon: DaemonId,
    pub scope: TenantScope,
    /// The credential that the daemon id is bound to.
    pub token: TokenId,
    pub name: Arc<str>,
    pub version: Arc<str>,
    pub platform: DaemonPlatform,
    pub boot_id: Arc<str>,
    pub slots: u32,
    pub labels: BTreeMap<String, String>,
    pub capabilities: Vec<String>,
    pub agents: Vec<AgentRecord>,
    /// Names of its workspace roots.
    pub workspaces: Vec<String>,
    /// Set by an operator. The daemon gets no new attempt until the drain is lifted.
    pub drained: Option<DrainMark>,
    pub first_seen: WallTime,
    pub last_seen: WallTime,
}

/// The platform of a daemon, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonPlatform {
    pub os: Arc<str>,
    pub arch: Arc<str>,
    pub protocol: u32,
}

/// One agent of a daemon, as reported by the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRecord {
    pub name: String,
    /// The adapter that runs it, as spelled in the protocol.
    pub kind: String,
    pub version: String,
    /// Why it cannot run. An agent with a problem is shown but gets no work.
    pub problem: Option<String>,
}

impl From<&str> for AgentRecord {
    fn from(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainMark {
    pub by: Arc<str>,
    pub reason: Arc<str>,
    pub since: WallTime,
}

/// The audit of daemons forgotten by operators, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgottenDaemonsRecord {
    pub daemons: Vec<ForgottenDaemon>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgottenDaemon {
    pub daemon: DaemonId,
    pub scope: TenantScope,
    pub name: Arc<str>,
    pub last_seen: WallTime,
    pub by: Arc<str>,
    pub reason: Arc<str>,
    pub at: WallTime,
}

impl ForgottenDaemonsRecord {
    /// Limit on retained entries; the record is written whole.
    const MAX_FORGOTTEN: usize = 128;

    pub(crate) fn record_forgotten(&mut self, forgotten: ForgottenDaemon) {
        let excess = (self.daemons.len() + 1).saturating_sub(Self::MAX_FORGOTTEN);
        self.daemons.drain(..excess);
        self.daemons.push(forgotten);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseMark {
    pub by: Arc<str>,
    pub reason: Arc<str>,
    pub since: WallTime,
}

/// Whether the relay dispatches work, and how long it has run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerRecord {
    pub paused: Option<PauseMark>,
    /// Uptime of all runs of the relay, written at least every 30 s. Every stored budget can be
    /// updated from it, so that one small write serves all tasks.
    pub uptime_ms: u64,
    /// Uptime during all ended pauses; queue budgets do not count it.
    pub paused_ms: u64,
    /// Uptime when the current pause began.
    pub paused_at_ms: Option<u64>,
    /// Suspensions after imports and accepted losses, oldest first. Only the newest can be
    /// active.
    pub suspensions: Vec<InheritedSuspension>,
}

/// A suspension of inherited tasks. After an import or an accepted loss the newest grants are
/// missing from the relay's records. The inherited tasks are not leased until the longest such
/// grant must have expired, or an operator confirms that the old fleet is down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InheritedSuspension {
    /// The newest task that is suspended; ids rise with time.
    pub last_task: TaskId,
    /// For display.
    pub since: WallTime,
    /// Uptime at which it ends automatically. Stored so that a restart does not end it early.
    pub until_uptime_ms: u64,
    /// The queue clock at its begin and end. Queue budgets of suspended tasks do not count the
    /// time between.
    pub began_clock_ms: u64,
    pub ended_clock_ms: Option<u64>,
    /// The operator request that ended it, if it did not end by time.
    pub released: Option<SuspensionRelease>,
}

/// An operator's statement that the old fleet is down; retained as audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspensionRelease {
    pub by: Arc<str>,
    pub reason: Arc<str>,
    pub at: WallTime,
}

impl InheritedSuspension {
    fn covers_task(&self, task: TaskId) -> bool {
        task <= self.last_task
    }

    fn is_active(&self) -> bool {
        self.ended_clock_ms.is_none()
    }

    /// Time on the queue clock during the suspension.
    fn suspended_ms(&self, clock_ms: u64) -> u64 {
        let until = self.ended_clock_ms.unwrap_or(clock_ms);
        until.saturating_sub(self.began_clock_ms)
    }
}

impl SchedulerRecord {
    /// The active suspension, if any.
    pub fn active_suspension(&self) -> Option<&InheritedSuspension> {
        self.suspensions
            .last()
            .filter(|suspension| suspension.is_active())
    }

    /// The newest task id covered by any suspension, active or not.
    pub fn newest_suspended_task(&self) -> Option<TaskId> {
        self.suspensions
            .iter()
            .map(|suspension| suspension.last_task)
            .max()
    }

    /// The active suspension that prevents this task from being leased.
    pub fn suspension_of(&self, task: TaskId) -> Option<&InheritedSuspension> {
        self.active_suspension()
            .filter(|suspension| suspension.covers_task(task))
    }

    /// Begins a suspension of every task up to this one. It replaces an active one and is not
    /// shorter.
    pub(crate) fn begin_suspension(
        &mut self,
        upto: TaskId,
        since: WallTime,
        uptime_ms: u64,
        suspend_ms: u64,
    ) {
        let clock_ms = self.queue_clock_ms(uptime_ms);
        let active_until_ms = self
            .active_suspension()
            .map_or(0, |suspension| suspension.until_uptime_ms);
        self.end_suspension(uptime_ms, None);
        self.suspensions.push(InheritedSuspension {
            last_task: upto,
            since,
            until_uptime_ms: active_until_ms.max(uptime_ms.saturating_add(suspend_ms)),
            began_clock_ms: clock_ms,
            ended_clock_ms: None,
            released: None,
        });
    }

    /// Ends the active suspension, by time or by an operator's request; false if none is
    /// active.
    pub(crate) fn end_suspension(
        &mut self,
        uptime_ms: u64,
        released: Option<SuspensionRelease>,
    ) -> bool {
        let clock_ms = self.queue_clock_ms(uptime_ms);
        match self
            .suspensions
            .last_mut()
            .filter(|suspension| suspension.is_active())
        {
            Some(suspension) => {
                suspension.ended_clock_ms = Some(clock_ms);
                suspension.released = released;
                true
            }
            None => false,
        }
    }

    /// Drops ended suspensions that cover no open task. The newest stays as audit.
    pub(crate) fn prune_suspensions(&mut self, oldest: Option<TaskId>) {
        let newest = self.suspensions.len().saturating_sub(1);
        let mut index = 0..;
        self.suspensions.retain(|suspension| {
            let covers_open = oldest.is_some_and(|task| suspension.covers_task(task));
            index.next() == Some(newest) || suspension.is_active() || covers_open
        });
    }

    /// The clock for the queue budget of this task. It also stops while the task is suspended.
    pub(crate) fn queue_clock_of(&self, task: TaskId, uptime_ms: u64) -> u64 {
        let clock_ms = self.queue_clock_ms(uptime_ms);
        let covering = self
            .suspensions
            .iter()
            .filter(|suspension| suspension.covers_task(task));
        let suspended_ms: u64 = covering
            .map(|suspension| suspension.suspended_ms(clock_ms))
            .sum();
        clock_ms.saturating_sub(suspended_ms)
    }

    /// The queue clock, which stops while the scheduler is paused.
    pub(crate) fn queue_clock_ms(&self, uptime_ms: u64) -> u64 {
        let current_ms = self
            .paused_at_ms
            .map_or(0, |since| uptime_ms.saturating_sub(since));
        uptime_ms.saturating_sub(self.paused_ms.saturating_add(current_ms))
    }
}

/// A stored fence: this attempt may still run, so nothing of its task or conversation is
/// leased. It is a separate record, keyed by the attempt, because it outlives a task that
/// ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceRecord {
    pub attempt: AttemptId,
    pub tenant: TenantId,
    pub task: TaskId,
    pub conversation: Option<Arc<str>>,
    pub runner: PossibleRunner,
    /// Largest grant plus grace. A boot waits for all of it, because the time of the last
    /// renewal is not stored.
    pub full_ms: u64,
}

/// The machine or agent that may still work on an ended attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PossibleRunner {
    Machine {
        daemon: DaemonId,
        /// Boot id when it was leased. A different one in Hello lifts the fence.
        boot_id: Arc<str>,
    },
    /// There is no proof that an agent has stopped; the fence ends only by time.
    Agent { name: Arc<str> },
}

impl PossibleRunner {
    pub fn daemon(&self) -> Option<DaemonId> {
        match self {
            PossibleRunner::Machine { daemon, .. } => Some(*daemon),
            PossibleRunner::Agent { .. } => None,
        }
    }

    pub(crate) fn from_holder(holder: &LeaseHolder) -> Self {
        match holder {
            LeaseHolder::Daemon(holder) => PossibleRunner::Machine {
                daemon: holder.daemon,
                boot_id: Arc::clone(&holder.boot_id),
            },
            LeaseHolder::Agent(agent) => PossibleRunner::Agent {
                name: Arc::clone(&agent.name),
            },
        }
    }
}

/// The task that belongs to an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyRecord {
    pub task: TaskId,
    /// Digest of the whole submission. The same key with another digest is a conflict.
    pub digest: [u8; 32],
}
