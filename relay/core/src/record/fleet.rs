//! The small records beside tasks: daemons, the scheduler's pause, fences that outlive their task, idempotency keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

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
    pub boot_id: Arc<str>,
    pub slots: u32,
    pub labels: BTreeMap<String, String>,
    pub capabilities: Vec<String>,
    pub agents: Vec<String>,
    /// Set by an operator; the daemon gets no new attempt until it is lifted.
    pub drained: Option<DrainMark>,
    pub first_seen: Wall,
    pub last_seen: Wall,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainMark {
    pub by: Arc<str>,
    pub reason: Arc<str>,
    pub since: Wall,
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
    /// The uptime until which nothing inherited is placed: after an accepted loss later grants are unknown.
    pub held_until_ms: u64,
}

impl SchedulerRecord {
    /// The clock that queue budgets are counted by: it stands still while the scheduler is paused.
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
    pub daemon: DaemonId,
    /// Of the machine when it was leased; another one in Hello lifts the fence.
    pub boot_id: Arc<str>,
    /// Largest grant plus grace: what a boot waits in full, for it does not know when the last renewal was.
    pub full_ms: u64,
}

/// Which task a submission's key stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyRecord {
    pub task: TaskId,
    /// Of the whole submission; the same key with another digest is a conflict.
    pub digest: [u8; 32],
}
