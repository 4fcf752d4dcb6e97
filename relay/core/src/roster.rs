//! The daemons: what each says it can do, whether it can be reached, and which attempts it holds.
//!
//! Owns sessions' succession, slots, silence, sickness and exclusions. It never picks a daemon for a task
//! (`placement`) and knows nothing of leases' time: an attempt counts here from its offer to its end.

mod daemon;

#[cfg(test)]
#[path = "roster/roster_tests.rs"]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::config::Config;
use crate::id::{AttemptId, DaemonId, SessionId, TaskId};
use crate::input::{Hello, MachineLoad};
use crate::record::DaemonRecord;
use crate::time::Moment;
use crate::timers::Deadlines;

pub use daemon::{Daemon, Presence};

/// Every daemon that the relay has heard of since it started, or has on record.
#[derive(Debug)]
pub struct Roster {
    daemons: BTreeMap<DaemonId, Daemon>,
    sessions: BTreeMap<SessionId, DaemonId>,
    held: BTreeMap<AttemptId, DaemonId>,
    /// Those with a free slot that may be offered work, least loaded first.
    open: BTreeSet<(u32, DaemonId)>,
    /// Became open since the last look: work that was stuck may go there.
    woken: BTreeSet<DaemonId>,
    times: Deadlines<DaemonId>,
    exclusions: BTreeMap<TaskId, BTreeMap<DaemonId, Moment>>,
    exclusion_ends: BTreeSet<(Moment, TaskId, DaemonId)>,
    /// Tasks that are passed over because another attempt is in their workspace there.
    crowded: BTreeMap<DaemonId, BTreeSet<TaskId>>,
    sick_failures: u32,
    sick_ms: u64,
    /// How long one is set aside that refuses because of its machine: at first, and at most.
    unfit_ms: (u64, u64),
}

/// How a stream came to be the daemon's current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    First,
    /// The same process reconnected; its old stream ends without a word.
    Replaced(SessionId),
    /// Another process of the same daemon took over; the old stream is told so.
    Superseded(SessionId),
}

/// What a Hello changed besides the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    pub opened: Opened,
    /// The machine was booted since it was last heard: all its earlier processes are gone.
    pub rebooted: bool,
}

impl Roster {
    pub fn new(config: &Config) -> Self {
        Self {
            daemons: BTreeMap::new(),
            sessions: BTreeMap::new(),
            held: BTreeMap::new(),
            open: BTreeSet::new(),
            woken: BTreeSet::new(),
            times: Deadlines::default(),
            exclusions: BTreeMap::new(),
            exclusion_ends: BTreeSet::new(),
            crowded: BTreeMap::new(),
            sick_failures: config.sick_failures,
            sick_ms: config.sick_ms,
            unfit_ms: (config.unfit_ms, config.unfit_most_ms),
        }
    }

    /// A daemon known from before a restart; it is away until it says Hello.
    pub fn know(&mut self, record: &DaemonRecord) {
        let daemon = Daemon::from_record(record);
        self.daemons.insert(record.daemon, daemon);
    }

    /// Its stream becomes the current one; what it says about itself replaces what was known.
    pub fn hello(
        &mut self,
        session: SessionId,
        hello: &Hello,
        heartbeat_ms: u64,
        now: Moment,
    ) -> Greeting {
        let known = self.daemons.get(&hello.daemon);
        let opened = match known.and_then(|d| d.presence.session().map(|s| (s, d.instance))) {
            None => Opened::First,
            Some((old, instance)) if instance == Some(hello.instance) => Opened::Replaced(old),
            Some((old, _)) => Opened::Superseded(old),
        };
        let rebooted = known.is_some_and(|d| d.boot_id != hello.boot_id);
        if let Opened::Replaced(old) | Opened::Superseded(old) = opened {
            self.sessions.remove(&old);
        }
        self.sessions.insert(session, hello.daemon);
        let daemon = self.daemons.entry(hello.daemon);
        let daemon = daemon.or_insert_with(|| Daemon::from_hello(hello));
        daemon.take_hello(hello);
        daemon.newest = Some(session);
        daemon.presence = Presence::Connected {
            session,
            since: now,
            heard: now,
            heartbeat_ms,
            greeted: false,
            deaf: false,
            unheard: None,
        };
        self.refresh(hello.daemon, now);
        // It may offer more than before, also where it stayed open all the time.
        self.woken.insert(hello.daemon);
        Greeting { opened, rebooted }
    }

    /// Whether the daemon has opened another stream since: ids of sessions rise in the order of opening. What such a
    /// stream still says is of the past, its boot id above all.
    pub fn is_overtaken(&self, daemon: DaemonId, session: SessionId) -> bool {
        let newest = self.get(daemon).and_then(|daemon| daemon.newest);
        newest.is_some_and(|newest| newest > session)
    }

    /// The stream ended. `None` if it was not the current one any more: nothing changes then.
    pub fn closed(&mut self, session: SessionId, now: Moment) -> Option<DaemonId> {
        let daemon = self.sessions.remove(&session)?;
        self.change(daemon, now, |d| d.presence = Presence::Away { since: now });
        Some(daemon)
    }

    /// The daemon was heard. `None` if the stream is not current: a replaced stream keeps nobody alive.
    pub fn heartbeat(
        &mut self,
        session: SessionId,
        draining: bool,
        every_ms: u64,
        now: Moment,
    ) -> Option<DaemonId> {
        let daemon = *self.sessions.get(&session)?;
        self.change(daemon, now, |d| {
            d.draining = draining;
            d.presence.heard(every_ms, now);
        });
        Some(daemon)
    }

    /// Whether the daemon hears what it is told, as far as it says so in a heartbeat.
    pub fn hears(&mut self, session: SessionId, heard_seq: Option<u64>, now: Moment) -> bool {
        let daemon = self.sessions.get(&session);
        let daemon = daemon.and_then(|id| self.daemons.get_mut(id));
        daemon.is_none_or(|daemon| daemon.presence.hears(heard_seq, now))
    }

    /// Welcome, or the answer to heartbeat `seq`, goes out and tells the pace from here on: silence is measured by it.
    pub fn answered(&mut self, session: SessionId, seq: Option<u64>, every_ms: u64, now: Moment) {
        if let Some(daemon) = self.daemon_of(session) {
            self.change(daemon, now, |d| d.presence.answered(seq, every_ms, now));
        }
    }

    /// It was heard just now and takes a lease that wants a quicker pace, which it keeps without being told: its silence is
    /// measured by that from here on.
    pub fn quicken(&mut self, session: SessionId, every_ms: u64, now: Moment) {
        if let Some(daemon) = self.daemon_of(session) {
            self.change(daemon, now, |d| d.presence.quicken(every_ms, now));
        }
    }

    /// The relay itself was away: the daemon's silence is nobody's fault.
    pub fn excuse(&mut self, session: SessionId, now: Moment) {
        if let Some(daemon) = self.daemon_of(session) {
            self.change(daemon, now, |d| d.presence.excuse(now));
        }
    }

    /// Set by an operator; lasts until it is lifted.
    pub fn set_drained(&mut self, daemon: DaemonId, drained: bool, now: Moment) {
        self.change(daemon, now, |d| d.drained = drained);
    }

    /// The attempt takes one of its slots, from the offer on.
    pub fn hold(&mut self, daemon: DaemonId, attempt: AttemptId, now: Moment) {
        self.held.insert(attempt, daemon);
        self.change(daemon, now, |d| {
            d.held.insert(attempt);
        });
    }

    /// The attempt ended, whoever knows of it.
    pub fn let_go(&mut self, attempt: AttemptId, now: Moment) {
        if let Some(daemon) = self.held.remove(&attempt) {
            self.change(daemon, now, |d| {
                d.held.remove(&attempt);
            });
        }
    }

    /// It listed the attempt as over, and its last words are wanted.
    pub fn adopt(&mut self, daemon: DaemonId, attempt: AttemptId) {
        if let Some(daemon) = self.daemons.get_mut(&daemon) {
            daemon.adopted.insert(attempt);
        }
    }

    /// Whether its present stream brings this attempt's last words, as Welcome asked for.
    pub fn is_adopted(&self, daemon: DaemonId, attempt: AttemptId) -> bool {
        let daemon = self.daemons.get(&daemon);
        daemon.is_some_and(|daemon| daemon.adopted.contains(&attempt))
    }

    /// An attempt on it failed, timed out or was lost. Enough of them in a row make it sick for a while.
    pub fn note_failure(&mut self, daemon: DaemonId, now: Moment) {
        let (enough, ms) = (self.sick_failures, self.sick_ms);
        let was_sick = self.get(daemon).is_some_and(|d| d.is_sick(now));
        self.change(daemon, now, |d| {
            d.failures = d.failures.saturating_add(1);
            if d.failures >= enough {
                d.sick_until = Some(now + ms);
                // One more failure after the pause is enough; one success clears it.
                d.failures = enough.saturating_sub(1);
            }
        });
        if !was_sick && self.get(daemon).is_some_and(|d| d.is_sick(now)) {
            self.wake_sick(now);
        }
    }

    pub fn note_success(&mut self, daemon: DaemonId, now: Moment) {
        self.change(daemon, now, |d| {
            d.failures = 0;
            d.sick_until = None;
        });
    }

    /// Its machine could not take an offer, and so could take no other: it is set aside for a while.
    pub fn note_refusal(&mut self, daemon: DaemonId, now: Moment) {
        let unfit_ms = self.unfit_ms;
        self.change(daemon, now, |d| d.refused(unfit_ms, now));
    }

    /// What a heartbeat says about its machine.
    pub fn note_fitness(&mut self, daemon: DaemonId, unfit: bool, now: Moment) {
        self.change(daemon, now, |d| d.hear_fitness(unfit));
    }

    /// What a heartbeat says for people to see.
    pub fn note_load(&mut self, daemon: DaemonId, load: Option<MachineLoad>) {
        if let Some(daemon) = self.daemons.get_mut(&daemon) {
            daemon.load = load;
        }
    }

    /// It has run something to an end, good or bad.
    pub fn note_work(&mut self, daemon: DaemonId, now: Moment) {
        self.change(daemon, now, |d| d.refusals = 0);
    }

    /// This daemon would not take this task: it is passed over for it until then.
    pub fn exclude(&mut self, task: TaskId, daemon: DaemonId, until: Moment) {
        let of_task = self.exclusions.entry(task).or_default();
        if let Some(old) = of_task.insert(daemon, until) {
            self.exclusion_ends.remove(&(old, task, daemon));
        }
        self.exclusion_ends.insert((until, task, daemon));
    }

    pub fn excluded_until(&self, task: TaskId, daemon: DaemonId, now: Moment) -> Option<Moment> {
        let until = *self.exclusions.get(&task)?.get(&daemon)?;
        (until > now).then_some(until)
    }

    /// The workspace that it wants there is in use: it is passed over until then, or until something ends there.
    pub fn wait_for_place(&mut self, task: TaskId, daemon: DaemonId, until: Moment) {
        self.exclude(task, daemon, until);
        self.crowded.entry(daemon).or_default().insert(task);
    }

    /// Something that ran there is over: its workspace may be free.
    pub fn place_freed(&mut self, daemon: DaemonId) {
        for task in self.crowded.remove(&daemon).unwrap_or_default() {
            self.end_exclusion(task, daemon);
            self.woken.insert(daemon);
        }
    }

    fn end_exclusion(&mut self, task: TaskId, daemon: DaemonId) {
        let Some(of_task) = self.exclusions.get_mut(&task) else {
            return;
        };
        if let Some(until) = of_task.remove(&daemon) {
            self.exclusion_ends.remove(&(until, task, daemon));
        }
        if of_task.is_empty() {
            self.exclusions.remove(&task);
        }
    }

    /// The task ended: nothing about it is kept.
    pub fn forget_task(&mut self, task: TaskId) {
        for (daemon, until) in self.exclusions.remove(&task).unwrap_or_default() {
            self.exclusion_ends.remove(&(until, task, daemon));
            if let Some(waiting) = self.crowded.get_mut(&daemon) {
                waiting.remove(&task);
            }
        }
    }

    /// It stayed away for long and holds nothing. An exclusion of it ends by itself.
    pub fn forget_daemon(&mut self, daemon: DaemonId) {
        let gone = self.daemons.remove(&daemon);
        if let Some(load) = gone.and_then(|gone| gone.listed) {
            self.open.remove(&(load, daemon));
        }
        self.woken.remove(&daemon);
        self.crowded.remove(&daemon);
    }

    /// When `tick` has something to do.
    pub fn next(&self) -> Option<Moment> {
        let exclusion = self.exclusion_ends.first().map(|(at, _, _)| *at);
        self.times.next().into_iter().chain(exclusion).min()
    }

    /// Lets time pass: returns streams that have been silent for two heartbeats, each once.
    pub fn tick(&mut self, now: Moment) -> Vec<(DaemonId, SessionId)> {
        let mut silent = Vec::new();
        while let Some(id) = self.times.take_due(now) {
            let Some(daemon) = self.daemons.get_mut(&id) else {
                continue;
            };
            if daemon.sick_until.is_some_and(|until| until <= now) {
                daemon.sick_until = None;
                self.woken.insert(id);
            }
            daemon.unfit_until.take_if(|until| *until <= now);
            silent.extend(daemon.presence.fall_silent(now).map(|s| (id, s)));
            self.refresh(id, now);
        }
        self.end_exclusions(now);
        silent
    }

    pub fn get(&self, daemon: DaemonId) -> Option<&Daemon> {
        self.daemons.get(&daemon)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Daemon> {
        self.daemons.values()
    }

    /// Whose stream it is, if it is that daemon's current one.
    pub fn daemon_of(&self, session: SessionId) -> Option<DaemonId> {
        self.sessions.get(&session).copied()
    }

    pub fn session_of(&self, daemon: DaemonId) -> Option<SessionId> {
        self.daemons.get(&daemon)?.presence.session()
    }

    pub fn holder_of(&self, attempt: AttemptId) -> Option<DaemonId> {
        self.held.get(&attempt).copied()
    }

    pub fn boot_id_of(&self, daemon: DaemonId) -> Option<&Arc<str>> {
        self.daemons.get(&daemon).map(|d| &d.boot_id)
    }

    /// Daemons that may be offered work and have a slot, least loaded first, ties by id.
    pub fn open(&self) -> impl Iterator<Item = &Daemon> {
        let ids = self.open.iter();
        ids.filter_map(|(_, id)| self.daemons.get(id))
    }

    /// Daemons that became open, each once.
    pub(crate) fn take_woken(&mut self) -> BTreeSet<DaemonId> {
        std::mem::take(&mut self.woken)
    }

    fn change(&mut self, id: DaemonId, now: Moment, edit: impl FnOnce(&mut Daemon)) {
        if let Some(daemon) = self.daemons.get_mut(&id) {
            edit(daemon);
            self.refresh(id, now);
        }
    }

    /// Brings the indexes in line with one daemon.
    fn refresh(&mut self, id: DaemonId, now: Moment) {
        let Some(daemon) = self.daemons.get_mut(&id) else {
            return;
        };
        if let Some(at) = daemon.next_change(now) {
            self.times.arm(id, at);
        }
        let left = daemon.worked && !daemon.takes_work();
        daemon.worked = daemon.takes_work();
        let entry = daemon.is_open().then(|| (daemon.load(), id));
        match (daemon.listed, entry) {
            (Some(load), _) => {
                self.open.remove(&(load, id));
            }
            (None, Some(_)) => {
                self.woken.insert(id);
            }
            (None, None) => {}
        }
        daemon.listed = entry.map(|(load, _)| load);
        self.open.extend(entry);
        if left {
            self.wake_sick(now);
        }
    }

    /// A healthy daemon is gone: work that waited for it may now have to go to a sick one.
    fn wake_sick(&mut self, now: Moment) {
        let sick = self.daemons.values().filter(|d| d.is_sick(now));
        let ids: Vec<DaemonId> = sick.map(|d| d.id).collect();
        self.woken.extend(ids);
    }

    fn end_exclusions(&mut self, now: Moment) {
        while let Some((at, task, daemon)) = self.exclusion_ends.first().copied() {
            if at > now {
                return;
            }
            self.exclusion_ends.remove(&(at, task, daemon));
            self.end_exclusion(task, daemon);
            if let Some(waiting) = self.crowded.get_mut(&daemon) {
                waiting.remove(&task);
            }
        }
    }
}
