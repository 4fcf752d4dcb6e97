//! The small records beside tasks: daemons, the scheduler's pause, fences that outlive their task, idempotency keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::attempt::Holder;
use crate::id::{AttemptId, DaemonId, TaskId, TenantId, TenantScope, TokenId};
use crate::time::Wall;

/// A daemon as last seen; kept so that a drain survives a restart and a list shows who is away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonRecord {
    pub daemon: DaemonId,
    pub scope: TenantScope,
    /// The credential that it came with; its id is bound to it.
    pub token: TokenId,
    pub name: Arc<str>,
    pub version: Arc<str>,
    pub platform: Platform,
    pub boot_id: Arc<str>,
    pub slots: u32,
    pub labels: BTreeMap<String, String>,
    pub capabilities: Vec<String>,
    pub agents: Vec<AgentRecord>,
    /// Names of its workspace roots.
    pub workspaces: Vec<String>,
    /// Set by an operator; the daemon gets no new attempt until it is lifted.
    pub drained: Option<DrainMark>,
    pub first_seen: Wall,
    pub last_seen: Wall,
}

/// What a daemon runs on, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
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
    pub since: Wall,
}

/// Daemons that operators had forgotten, oldest first: the audit of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgottenRecord {
    pub daemons: Vec<Forgotten>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forgotten {
    pub daemon: DaemonId,
    pub scope: TenantScope,
    pub name: Arc<str>,
    pub last_seen: Wall,
    pub by: Arc<str>,
    pub reason: Arc<str>,
    pub at: Wall,
}

impl ForgottenRecord {
    /// The newest are kept; the record is written whole.
    const KEPT: usize = 128;

    pub(crate) fn note(&mut self, forgotten: Forgotten) {
        let over = (self.daemons.len() + 1).saturating_sub(Self::KEPT);
        self.daemons.drain(..over);
        self.daemons.push(forgotten);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    pub by: Arc<str>,
    pub reason: Arc<str>,
    pub since: Wall,
}

/// Whether the relay hands out work at all, and how long it has run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerRecord {
    pub paused: Option<Pause>,
    /// Sum of all runs of the relay, written at least every 30 s: with it every stored budget can be brought up to
    /// date, so that one small write does for all tasks.
    pub uptime_ms: u64,
    /// Uptime that passed while paused, in all pauses that are over; queue budgets do not count it.
    pub paused_ms: u64,
    /// The uptime when the pause that stands began.
    pub paused_at_ms: Option<u64>,
    /// What was held back after imports and accepted losses, oldest first; at most the newest still stands.
    pub holds: Vec<InheritedHold>,
}

/// After an import or an accepted loss the relay does not know the newest grants, so the tasks that it inherited are
/// not leased until the longest of those must be over, or an operator says that the old fleet is down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InheritedHold {
    /// The newest task that is held; ids rise with time.
    pub upto: TaskId,
    /// For display.
    pub since: Wall,
    /// The uptime at which it ends by itself: a restart during the hold must not forget it.
    pub until_ms: u64,
    /// The queue clock when it began and when it ended: queue budgets of what was held do not count the time between.
    pub began_clock_ms: u64,
    pub ended_clock_ms: Option<u64>,
    /// Whose word ended it, if not time.
    pub released: Option<Release>,
}

/// An operator's word that the old fleet is down; kept as the audit of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    pub by: Arc<str>,
    pub reason: Arc<str>,
    pub at: Wall,
}

impl InheritedHold {
    fn covers(&self, task: TaskId) -> bool {
        task <= self.upto
    }

    fn stands(&self) -> bool {
        self.ended_clock_ms.is_none()
    }

    /// How far the queue clock went while it stood.
    fn held_ms(&self, clock_ms: u64) -> u64 {
        let until = self.ended_clock_ms.unwrap_or(clock_ms);
        until.saturating_sub(self.began_clock_ms)
    }
}

impl SchedulerRecord {
    /// The hold that stands, if one does.
    pub fn hold(&self) -> Option<&InheritedHold> {
        self.holds.last().filter(|hold| hold.stands())
    }

    /// The newest id that a hold has used up, whether or not it still stands.
    pub fn newest_held(&self) -> Option<TaskId> {
        self.holds.iter().map(|hold| hold.upto).max()
    }

    /// The hold that keeps this task from being leased.
    pub fn hold_of(&self, task: TaskId) -> Option<&InheritedHold> {
        self.hold().filter(|hold| hold.covers(task))
    }

    /// Begins a hold over every task up to this one; one that stands goes over into it and is not shortened.
    pub(crate) fn begin_hold(&mut self, upto: TaskId, since: Wall, uptime_ms: u64, hold_ms: u64) {
        let clock_ms = self.queue_clock_ms(uptime_ms);
        let standing_ms = self.hold().map_or(0, |hold| hold.until_ms);
        self.end_hold(uptime_ms, None);
        self.holds.push(InheritedHold {
            upto,
            since,
            until_ms: standing_ms.max(uptime_ms.saturating_add(hold_ms)),
            began_clock_ms: clock_ms,
            ended_clock_ms: None,
            released: None,
        });
    }

    /// Ends the hold that stands, by time or by an operator's word; false if none does.
    pub(crate) fn end_hold(&mut self, uptime_ms: u64, released: Option<Release>) -> bool {
        let clock_ms = self.queue_clock_ms(uptime_ms);
        match self.holds.last_mut().filter(|hold| hold.stands()) {
            Some(hold) => {
                hold.ended_clock_ms = Some(clock_ms);
                hold.released = released;
                true
            }
            None => false,
        }
    }

    /// Holds that are over and concern none of these tasks are forgotten, but for the newest, which is the audit.
    pub(crate) fn forget_holds(&mut self, oldest: Option<TaskId>) {
        let newest = self.holds.len().saturating_sub(1);
        let mut place = 0..;
        self.holds.retain(|hold| {
            let concerns = oldest.is_some_and(|task| hold.covers(task));
            place.next() == Some(newest) || hold.stands() || concerns
        });
    }

    /// The clock that the queue budget of this task is counted by: it stands still while the task is held, too.
    pub(crate) fn queue_clock_of(&self, task: TaskId, uptime_ms: u64) -> u64 {
        let clock_ms = self.queue_clock_ms(uptime_ms);
        let holds = self.holds.iter().filter(|hold| hold.covers(task));
        let held_ms: u64 = holds.map(|hold| hold.held_ms(clock_ms)).sum();
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
    pub runner: Runner,
    /// Largest grant plus grace: what a boot waits in full, for it does not know when the last renewal was.
    pub full_ms: u64,
}

/// Who may still be at work on an attempt that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Runner {
    Machine {
        daemon: DaemonId,
        /// When it was leased; another one in Hello lifts the fence.
        boot_id: Arc<str>,
    },
    /// Only time tells that it has stopped.
    Agent { name: Arc<str> },
}

impl Runner {
    pub fn daemon(&self) -> Option<DaemonId> {
        match self {
            Runner::Machine { daemon, .. } => Some(*daemon),
            Runner::Agent { .. } => None,
        }
    }

    pub(crate) fn of(holder: &Holder) -> Self {
        match holder {
            Holder::Daemon(holder) => Runner::Machine {
                daemon: holder.daemon,
                boot_id: Arc::clone(&holder.boot_id),
            },
            Holder::Agent(agent) => Runner::Agent {
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
