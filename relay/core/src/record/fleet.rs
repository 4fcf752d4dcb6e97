//! The small records beside tasks: daemons, the scheduler's pause, fences that outlive their task, idempotency keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::attempt::LeaseHolder;
use crate::ids::{AttemptId, DaemonId, TaskId, TenantId, TenantScope, TokenId};
use crate::time::WallTime;

/// A daemon as last seen; kept so that a drain survives a restart and a list shows who is away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonRecord {
    pub daemon: DaemonId,
    pub scope: TenantScope,
    /// The credential that it came with; its id is bound to it.
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
    /// Set by an operator; the daemon gets no new attempt until it is lifted.
    pub drained: Option<DrainMark>,
    pub first_seen: WallTime,
    pub last_seen: WallTime,
}

/// What a daemon runs on, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonPlatform {
    pub os: Arc<str>,
    pub arch: Arc<str>,
    pub protocol: u32,
}

/// One agent of a daemon, with what the daemon says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRecord {
    pub name: String,
    /// The adapter that drives it, as the protocol spells it.
    pub kind: String,
    pub version: String,
    /// Why it cannot run; such a one is shown and gets no work.
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

/// Daemons that operators had forgotten, oldest first: the audit of it.
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
    /// The newest are kept; the record is written whole.
    const MAX_FORGOTTEN: usize = 128;

    pub(crate) fn record_forgotten(&mut self, forgotten: ForgottenDaemon) {
        let over = (self.daemons.len() + 1).saturating_sub(Self::MAX_FORGOTTEN);
        self.daemons.drain(..over);
        self.daemons.push(forgotten);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseMark {
    pub by: Arc<str>,
    pub reason: Arc<str>,
    pub since: WallTime,
}

/// Whether the relay hands out work at all, and how long it has run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerRecord {
    pub paused: Option<PauseMark>,
    /// Sum of all runs of the relay, written at least every 30 s: with it every stored budget can be brought up to
    /// date, so that one small write does for all tasks.
    pub uptime_ms: u64,
    /// Uptime that passed while paused, in all pauses that are over; queue budgets do not count it.
    pub paused_ms: u64,
    /// The uptime when the pause that stands began.
    pub paused_at_ms: Option<u64>,
    /// What was held back after imports and accepted losses, oldest first; at most the newest still stands.
    pub suspensions: Vec<InheritedSuspension>,
}

/// After an import or an accepted loss the relay does not know the newest grants, so the tasks that it inherited are
/// not leased until the longest of those must be over, or an operator says that the old fleet is down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InheritedSuspension {
    /// The newest task that is held; ids rise with time.
    pub last_task: TaskId,
    /// For display.
    pub since: WallTime,
    /// The uptime at which it ends by itself: a restart during the hold must not forget it.
    pub until_uptime_ms: u64,
    /// The queue clock when it began and when it ended: queue budgets of what was held do not count the time between.
    pub began_clock_ms: u64,
    pub ended_clock_ms: Option<u64>,
    /// Whose word ended it, if not time.
    pub released: Option<SuspensionRelease>,
}

/// An operator's word that the old fleet is down; kept as the audit of it.
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

    /// How far the queue clock went while it stood.
    fn suspended_ms(&self, clock_ms: u64) -> u64 {
        let until = self.ended_clock_ms.unwrap_or(clock_ms);
        until.saturating_sub(self.began_clock_ms)
    }
}

impl SchedulerRecord {
    /// The hold that stands, if one does.
    pub fn active_suspension(&self) -> Option<&InheritedSuspension> {
        self.suspensions.last().filter(|hold| hold.is_active())
    }

    /// The newest id that a hold has used up, whether or not it still stands.
    pub fn newest_suspended_task(&self) -> Option<TaskId> {
        self.suspensions.iter().map(|hold| hold.last_task).max()
    }

    /// The hold that keeps this task from being leased.
    pub fn suspension_of(&self, task: TaskId) -> Option<&InheritedSuspension> {
        self.active_suspension()
            .filter(|hold| hold.covers_task(task))
    }

    /// Begins a hold over every task up to this one; one that stands goes over into it and is not shortened.
    pub(crate) fn begin_suspension(
        &mut self,
        upto: TaskId,
        since: WallTime,
        uptime_ms: u64,
        hold_ms: u64,
    ) {
        let clock_ms = self.queue_clock_ms(uptime_ms);
        let standing_ms = self
            .active_suspension()
            .map_or(0, |hold| hold.until_uptime_ms);
        self.end_suspension(uptime_ms, None);
        self.suspensions.push(InheritedSuspension {
            last_task: upto,
            since,
            until_uptime_ms: standing_ms.max(uptime_ms.saturating_add(hold_ms)),
            began_clock_ms: clock_ms,
            ended_clock_ms: None,
            released: None,
        });
    }

    /// Ends the hold that stands, by time or by an operator's word; false if none does.
    pub(crate) fn end_suspension(
        &mut self,
        uptime_ms: u64,
        released: Option<SuspensionRelease>,
    ) -> bool {
        let clock_ms = self.queue_clock_ms(uptime_ms);
        match self.suspensions.last_mut().filter(|hold| hold.is_active()) {
            Some(hold) => {
                hold.ended_clock_ms = Some(clock_ms);
                hold.released = released;
                true
            }
            None => false,
        }
    }

    /// Holds that are over and concern none of these tasks are forgotten, but for the newest, which is the audit.
    pub(crate) fn prune_suspensions(&mut self, oldest: Option<TaskId>) {
        let newest = self.suspensions.len().saturating_sub(1);
        let mut place = 0..;
        self.suspensions.retain(|hold| {
            let concerns = oldest.is_some_and(|task| hold.covers_task(task));
            place.next() == Some(newest) || hold.is_active() || concerns
        });
    }

    /// The clock that the queue budget of this task is counted by: it stands still while the task is held, too.
    pub(crate) fn queue_clock_of(&self, task: TaskId, uptime_ms: u64) -> u64 {
        let clock_ms = self.queue_clock_ms(uptime_ms);
        let holds = self
            .suspensions
            .iter()
            .filter(|hold| hold.covers_task(task));
        let held_ms: u64 = holds.map(|hold| hold.suspended_ms(clock_ms)).sum();
        clock_ms.saturating_sub(held_ms)
    }

    /// Stands still while the scheduler is paused.
    pub(crate) fn queue_clock_ms(&self, uptime_ms: u64) -> u64 {
        let standing = self
            .paused_at_ms
            .map_or(0, |since| uptime_ms.saturating_sub(since));
        uptime_ms.saturating_sub(self.paused_ms.saturating_add(standing))
    }
}

/// The successor rule's memory: this attempt may still run, so nothing of its task or conversation is leased.
/// Its own record, keyed by the attempt, because it outlives a task that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceRecord {
    pub attempt: AttemptId,
    pub tenant: TenantId,
    pub task: TaskId,
    pub conversation: Option<Arc<str>>,
    pub runner: PossibleRunner,
    /// Largest grant plus grace: what a boot waits in full, for it does not know when the last renewal was.
    pub full_ms: u64,
}

/// Who may still be at work on an attempt that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PossibleRunner {
    Machine {
        daemon: DaemonId,
        /// When it was leased; another one in Hello lifts the fence.
        boot_id: Arc<str>,
    },
    /// Only time tells that it has stopped.
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

/// Which task a submission's key stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyRecord {
    pub task: TaskId,
    /// Of the whole submission; the same key with another digest is a conflict.
    pub digest: [u8; 32],
}
