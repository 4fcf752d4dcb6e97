//! Chooses the next queued task and a daemon for it, and explains why a task cannot be placed.
//!
//! Reads the queue, roster, fences and affinity, and changes only the queue. The caller creates
//! the lease and calls again, so that every choice is based on the current state.

use std::fmt;

use crate::attempt::fences::{Fence, FenceGuard, Fences};
use crate::fleet::roster::{DaemonPresence, DaemonRoster, RosterDaemon};
use crate::ids::{DaemonId, TaskId};
use crate::schedule::conversation::{ConversationAffinity, ConversationKey};
use crate::schedule::queue::{PlacementCandidate, TaskQueue};
use crate::schedule::requirements::TaskRequirements;
use crate::time::MonotonicTime;

/// Delay for a task whose own attempt still has a lease. Such a task should not be queued at
/// all.
const OWN_LEASE_WAIT_MS: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskPlacement {
    pub task: TaskId,
    pub daemon: DaemonId,
}

/// The next task that can be leased, and its daemon; it has left the queue. `None` if nothing
/// can be placed now.
pub fn place_next(
    queue: &mut TaskQueue,
    roster: &mut DaemonRoster,
    fences: &Fences,
    affinity: &ConversationAffinity,
    now: MonotonicTime,
) -> Option<TaskPlacement> {
    wake_queue(queue, roster, now);
    while roster.available().next().is_some() {
        let candidate = queue.first()?;
        if let Err(fence) = fences.check_lease(candidate.task, candidate.conversation.as_ref(), now)
            && !mutant!(FencesNotAsked)
        {
            defer_candidate(queue, &candidate, fence, now);
            continue;
        }
        match choose_daemon(&candidate, roster, affinity, now) {
            DaemonChoice::Take(daemon) => {
                queue.note_placed(&candidate);
                let task = candidate.task;
                return Some(TaskPlacement { task, daemon });
            }
            DaemonChoice::RetryAt(until) => queue.pass_over(candidate.task, until),
            DaemonChoice::NoDaemon => queue.skip_class(&candidate),
        }
    }
    None
}

/// A lease ended or a fence was lifted early: puts the tasks that waited for it back in the
/// queue, where the remaining fences are checked again.
pub fn release_fenced(queue: &mut TaskQueue, fence: &Fence) {
    queue.requeue(fence.task);
    if let Some(key) = &fence.conversation {
        queue.mark_conversation_free(key);
        queue.requeue_conversation(key);
    }
}

/// Whether a daemon could take the task now; used by `fail_fast`.
pub fn could_any_take(requirements: &TaskRequirements, roster: &DaemonRoster) -> bool {
    roster
        .available()
        .any(|daemon| requirements.are_met_by(daemon))
}

fn wake_queue(queue: &mut TaskQueue, roster: &mut DaemonRoster, now: MonotonicTime) {
    queue.tick(now);
    for id in roster.take_newly_available() {
        let Some(daemon) = roster.get(id) else {
            continue;
        };
        queue.wake(
            |requirements| requirements.are_met_by(daemon),
            |task| roster.excluded_until(task, id, now).is_none(),
        );
    }
}

fn defer_candidate(
    queue: &mut TaskQueue,
    candidate: &PlacementCandidate,
    fence: &Fence,
    now: MonotonicTime,
) {
    match (fence.guard, shared_conversation(candidate, fence)) {
        (FenceGuard::Until(until), _) => queue.defer_until(candidate.task, until),
        (FenceGuard::Leased, Some(key)) => queue.mark_conversation_busy(key),
        (FenceGuard::Leased, None) => queue.defer_until(candidate.task, now + OWN_LEASE_WAIT_MS),
    }
}

fn shared_conversation<'a>(
    candidate: &'a PlacementCandidate,
    fence: &Fence,
) -> Option<&'a ConversationKey> {
    let key = candidate.conversation.as_ref()?;
    (fence.conversation.as_ref() == Some(key)).then_some(key)
}

enum DaemonChoice {
    Take(DaemonId),
    /// Only daemons that rejected this task are available. The first of them may be tried again
    /// at this time.
    RetryAt(MonotonicTime),
    NoDaemon,
}

fn choose_daemon(
    candidate: &PlacementCandidate,
    roster: &DaemonRoster,
    affinity: &ConversationAffinity,
    now: MonotonicTime,
) -> DaemonChoice {
    let excluded = |daemon: &RosterDaemon| roster.excluded_until(candidate.task, daemon.id, now);
    let suits = |daemon: &RosterDaemon| is_suitable(candidate, daemon, roster, now);
    if let Some(preferred) = preferred_daemon(candidate, affinity).and_then(|id| roster.get(id))
        && preferred.is_available()
        && suits(preferred)
        && excluded(preferred).is_none()
    {
        return DaemonChoice::Take(preferred.id);
    }
    let mut earliest_retry: Option<MonotonicTime> = None;
    for daemon in roster.available().filter(|daemon| suits(daemon)) {
        let Some(until) = excluded(daemon) else {
            return DaemonChoice::Take(daemon.id);
        };
        earliest_retry = Some(earliest_retry.map_or(until, |earlier| earlier.min(until)));
    }
    earliest_retry.map_or(DaemonChoice::NoDaemon, DaemonChoice::RetryAt)
}

fn preferred_daemon(
    candidate: &PlacementCandidate,
    affinity: &ConversationAffinity,
) -> Option<DaemonId> {
    let conversation = candidate.conversation.as_ref();
    let last = conversation.and_then(|key| affinity.last_daemon(key));
    last.or(candidate.preferred_daemon)
}

/// A sick daemon is set aside only while a healthy one could do the work, even if that one is
/// busy now.
fn is_suitable(
    candidate: &PlacementCandidate,
    daemon: &RosterDaemon,
    roster: &DaemonRoster,
    now: MonotonicTime,
) -> bool {
    let requirements = &candidate.requirements;
    if !requirements.are_met_by(daemon) {
        return false;
    }
    let healthy = |d: &RosterDaemon| {
        d.takes_work()
            && !d.is_sick(now)
            && requirements.are_met_by(d)
            && roster.excluded_until(candidate.task, d.id, now).is_none()
    };
    !daemon.is_sick(now) || !roster.iter().any(healthy)
}

/// Why no daemon takes a task: the first need that no daemon meets, or the obstacle of the
/// daemon that is closest to taking it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementObstacle {
    /// No daemon, connected or not, meets this need together with the needs before it.
    UnmetNeed(String),
    Daemon(DaemonObstacle),
}

/// The obstacle of a daemon that meets every need. A later variant means that the daemon is
/// closer to taking the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DaemonObstacle {
    Disconnected,
    Draining,
    /// Connected, but two heartbeats are missing.
    Silent,
    /// The daemon reports that its machine cannot take work now.
    Unfit,
    Busy,
    Sick,
    /// It rejected this task a moment ago.
    Rejected,
}

impl PlacementObstacle {
    pub fn as_str(&self) -> &'static str {
        match self {
            PlacementObstacle::UnmetNeed(_) => "no_match",
            PlacementObstacle::Daemon(DaemonObstacle::Disconnected) => "away",
            PlacementObstacle::Daemon(DaemonObstacle::Draining) => "draining",
            PlacementObstacle::Daemon(DaemonObstacle::Silent) => "silent",
            PlacementObstacle::Daemon(DaemonObstacle::Unfit) => "unfit",
            PlacementObstacle::Daemon(DaemonObstacle::Busy) => "busy",
            PlacementObstacle::Daemon(DaemonObstacle::Sick) => "sick",
            PlacementObstacle::Daemon(DaemonObstacle::Rejected) => "rejected",
        }
    }
}

impl fmt::Display for PlacementObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self {
            PlacementObstacle::UnmetNeed(need) => return write!(f, "no daemon {need}"),
            PlacementObstacle::Daemon(DaemonObstacle::Disconnected) => "is connected",
            PlacementObstacle::Daemon(DaemonObstacle::Draining) => {
                "accepts new work: the connected ones are draining"
            }
            PlacementObstacle::Daemon(DaemonObstacle::Silent) => "sends heartbeats",
            PlacementObstacle::Daemon(DaemonObstacle::Unfit) => {
                "accepts work now: their machines have a problem, such as a full disk"
            }
            PlacementObstacle::Daemon(DaemonObstacle::Busy) => "has a free slot",
            PlacementObstacle::Daemon(DaemonObstacle::Sick) => {
                "is healthy: they are set aside after repeated failures"
            }
            PlacementObstacle::Daemon(DaemonObstacle::Rejected) => {
                "accepts this task: they rejected it a moment ago"
            }
        };
        write!(f, "no matching daemon {why}")
    }
}

/// The obstacle to placing a task; `None` if a daemon could take it now.
pub fn placement_obstacle(
    requirements: &TaskRequirements,
    task: Option<TaskId>,
    roster: &DaemonRoster,
    now: MonotonicTime,
) -> Option<PlacementObstacle> {
    let mut matching: Vec<&RosterDaemon> = roster.iter().collect();
    for need in requirements.needs() {
        matching.retain(|daemon| requirements.meets_need(daemon, need));
        if matching.is_empty() {
            return Some(PlacementObstacle::UnmetNeed(need.to_string()));
        }
    }
    let any_healthy = matching.iter().any(|d| d.takes_work() && !d.is_sick(now));
    let obstacle = |daemon: &&RosterDaemon| {
        let sick = daemon.is_sick(now) && any_healthy;
        let rejected = task.and_then(|t| roster.excluded_until(t, daemon.id, now));
        daemon_obstacle(daemon)
            .or(sick.then_some(DaemonObstacle::Sick))
            .or(rejected.map(|_| DaemonObstacle::Rejected))
    };
    let obstacles: Option<Vec<DaemonObstacle>> = matching.iter().map(obstacle).collect();
    obstacles?.into_iter().max().map(PlacementObstacle::Daemon)
}

/// The obstacle that applies to any task: the daemon is not connected or cannot take work.
fn daemon_obstacle(daemon: &RosterDaemon) -> Option<DaemonObstacle> {
    match daemon.presence {
        DaemonPresence::NeverConnected | DaemonPresence::Disconnected { .. } => {
            Some(DaemonObstacle::Disconnected)
        }
        DaemonPresence::Connected { .. } if daemon.draining || daemon.drained => {
            Some(DaemonObstacle::Draining)
        }
        DaemonPresence::Connected {
            is_silent: true, ..
        } => Some(DaemonObstacle::Silent),
        DaemonPresence::Connected {
            heartbeat_seen: false,
            ..
        } => Some(DaemonObstacle::Disconnected),
        DaemonPresence::Connected { .. } if daemon.is_unfit() => Some(DaemonObstacle::Unfit),
        DaemonPresence::Connected { .. } => {
            (daemon.free_slots() == 0).then_some(DaemonObstacle::Busy)
        }
    }
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
