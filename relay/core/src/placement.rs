//! Which waiting task goes to which daemon now, and why one goes nowhere.
//!
//! Reads queue, roster, fences and affinity; moves only the queue. It leases nothing: the caller does, and asks
//! again, so that every choice is made on what is true by then.

use std::fmt;

use crate::conversation::{Affinity, ConversationKey};
use crate::fences::{Fence, Fences, Guard};
use crate::id::{DaemonId, TaskId};
use crate::queue::{Candidate, Queue};
use crate::requirements::Requirements;
use crate::roster::{Daemon, Presence, Roster};
use crate::time::Moment;

/// A task waits this long where its own attempt still holds a lease; that it is queued at all is then a mistake.
const OWN_LEASE_MS: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    pub task: TaskId,
    pub daemon: DaemonId,
}

/// The next task that can be leased, and to whom; it has left the queue. `None`: nothing can be placed now.
pub fn place_next(
    queue: &mut Queue,
    roster: &mut Roster,
    fences: &Fences,
    affinity: &Affinity,
    now: Moment,
) -> Option<Placement> {
    wake(queue, roster, now);
    while roster.open().next().is_some() {
        let candidate = queue.first()?;
        if let Err(fence) = fences.may_lease(candidate.task, candidate.conversation.as_ref(), now)
            && !mutant!(FencesNotAsked)
        {
            hold_back(queue, &candidate, fence, now);
            continue;
        }
        match choose(&candidate, roster, affinity, now) {
            Choice::Take(daemon) => {
                queue.placed(&candidate);
                let task = candidate.task;
                return Some(Placement { task, daemon });
            }
            Choice::Passed(until) => queue.pass_over(candidate.task, until),
            Choice::Nobody => queue.skip_class(&candidate),
        }
    }
    None
}

/// A lease ended, or a fence fell before its time: what waited for it looks again at what stands there now.
pub fn fence_fell(queue: &mut Queue, fence: &Fence) {
    queue.recall(fence.task);
    if let Some(key) = &fence.conversation {
        queue.conversation_free(key);
        queue.recall_conversation(key);
    }
}

/// Whether somebody could take it at this moment: what `fail_fast` asks.
pub fn could_any_take(requirements: &Requirements, roster: &Roster) -> bool {
    roster.open().any(|daemon| requirements.met_by(daemon))
}

fn wake(queue: &mut Queue, roster: &mut Roster, now: Moment) {
    queue.tick(now);
    for id in roster.take_woken() {
        let Some(daemon) = roster.get(id) else {
            continue;
        };
        queue.wake(
            |requirements| requirements.met_by(daemon),
            |task| roster.excluded_until(task, id, now).is_none(),
        );
    }
}

fn hold_back(queue: &mut Queue, candidate: &Candidate, fence: &Fence, now: Moment) {
    match (fence.guard, shared(candidate, fence)) {
        (Guard::Until(until), _) => queue.set_aside(candidate.task, until),
        (Guard::Leased, Some(key)) => queue.conversation_busy(key),
        (Guard::Leased, None) => queue.set_aside(candidate.task, now + OWN_LEASE_MS),
    }
}

fn shared<'a>(candidate: &'a Candidate, fence: &Fence) -> Option<&'a ConversationKey> {
    let key = candidate.conversation.as_ref()?;
    (fence.conversation.as_ref() == Some(key)).then_some(key)
}

enum Choice {
    Take(DaemonId),
    /// Only daemons that have rejected this task are open to it; the first may be asked again then.
    Passed(Moment),
    Nobody,
}

fn choose(candidate: &Candidate, roster: &Roster, affinity: &Affinity, now: Moment) -> Choice {
    let excluded = |daemon: &Daemon| roster.excluded_until(candidate.task, daemon.id, now);
    let suits = |daemon: &Daemon| suits(candidate, daemon, roster, now);
    if let Some(wanted) = preferred(candidate, affinity).and_then(|id| roster.get(id))
        && wanted.is_open()
        && suits(wanted)
        && excluded(wanted).is_none()
    {
        return Choice::Take(wanted.id);
    }
    let mut passed: Option<Moment> = None;
    for daemon in roster.open().filter(|daemon| suits(daemon)) {
        let Some(until) = excluded(daemon) else {
            return Choice::Take(daemon.id);
        };
        passed = Some(passed.map_or(until, |earlier| earlier.min(until)));
    }
    passed.map_or(Choice::Nobody, Choice::Passed)
}

fn preferred(candidate: &Candidate, affinity: &Affinity) -> Option<DaemonId> {
    let of_talk = candidate.conversation.as_ref();
    let last = of_talk.and_then(|key| affinity.last_daemon(key));
    last.or(candidate.prefer)
}

/// A sick daemon is set aside only while another one could do the work, be it busy now.
fn suits(candidate: &Candidate, daemon: &Daemon, roster: &Roster, now: Moment) -> bool {
    let requirements = &candidate.requirements;
    if !requirements.met_by(daemon) {
        return false;
    }
    let healthy = |d: &Daemon| {
        d.takes_work()
            && !d.is_sick(now)
            && requirements.met_by(d)
            && roster.excluded_until(candidate.task, d.id, now).is_none()
    };
    !daemon.is_sick(now) || !roster.iter().any(healthy)
}

/// Why nobody takes a task: the first need that no daemon meets, or what is wrong with the one nearest to taking it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// No daemon, connected or not, meets this need together with those before it.
    Lacking(String),
    Lapse(Lapse),
}

/// What keeps a daemon that meets every need from taking the task; the later, the nearer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lapse {
    Away,
    Draining,
    /// Connected, but two heartbeats are missing.
    Silent,
    /// Its machine cannot take work now, by its own word.
    Unfit,
    Busy,
    Sick,
    /// It has just said no to this task.
    Rejected,
}

impl WhyNot {
    pub fn as_str(&self) -> &'static str {
        match self {
            WhyNot::Lacking(_) => "no_match",
            WhyNot::Lapse(Lapse::Away) => "away",
            WhyNot::Lapse(Lapse::Draining) => "draining",
            WhyNot::Lapse(Lapse::Silent) => "silent",
            WhyNot::Lapse(Lapse::Unfit) => "unfit",
            WhyNot::Lapse(Lapse::Busy) => "busy",
            WhyNot::Lapse(Lapse::Sick) => "sick",
            WhyNot::Lapse(Lapse::Rejected) => "rejected",
        }
    }
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self {
            WhyNot::Lacking(need) => return write!(f, "no daemon {need}"),
            WhyNot::Lapse(Lapse::Away) => "is connected",
            WhyNot::Lapse(Lapse::Draining) => "takes new work: they are draining",
            WhyNot::Lapse(Lapse::Silent) => "is heard: they miss heartbeats",
            WhyNot::Lapse(Lapse::Unfit) => {
                "has a machine that could take work now: they refuse any, full disks for example"
            }
            WhyNot::Lapse(Lapse::Busy) => "has a free slot",
            WhyNot::Lapse(Lapse::Sick) => "is well: they are set aside after failures in a row",
            WhyNot::Lapse(Lapse::Rejected) => "wants it: they have just rejected it",
        };
        write!(f, "no daemon that could take it {why}")
    }
}

/// `None` if somebody could take it now.
pub fn why_not(
    requirements: &Requirements,
    task: Option<TaskId>,
    roster: &Roster,
    now: Moment,
) -> Option<WhyNot> {
    let mut left: Vec<&Daemon> = roster.iter().collect();
    for need in requirements.needs() {
        left.retain(|daemon| requirements.has(daemon, need));
        if left.is_empty() {
            return Some(WhyNot::Lacking(need.to_string()));
        }
    }
    let someone_is_well = left.iter().any(|d| d.takes_work() && !d.is_sick(now));
    let lapse = |daemon: &&Daemon| {
        let sick = daemon.is_sick(now) && someone_is_well;
        let rejected = task.and_then(|t| roster.excluded_until(t, daemon.id, now));
        lapse_of(daemon)
            .or(sick.then_some(Lapse::Sick))
            .or(rejected.map(|_| Lapse::Rejected))
    };
    let lapses: Option<Vec<Lapse>> = left.iter().map(lapse).collect();
    lapses?.into_iter().max().map(WhyNot::Lapse)
}

/// Whatever the task: is it there, and has it room?
fn lapse_of(daemon: &Daemon) -> Option<Lapse> {
    match daemon.presence {
        Presence::Unheard | Presence::Away { .. } => Some(Lapse::Away),
        Presence::Connected { .. } if daemon.draining || daemon.drained => Some(Lapse::Draining),
        Presence::Connected { deaf: true, .. } => Some(Lapse::Silent),
        Presence::Connected { greeted: false, .. } => Some(Lapse::Away),
        Presence::Connected { .. } if daemon.is_unfit() => Some(Lapse::Unfit),
        Presence::Connected { .. } => (daemon.free_slots() == 0).then_some(Lapse::Busy),
    }
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
