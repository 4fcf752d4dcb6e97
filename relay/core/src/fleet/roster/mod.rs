//! The daemons: what each says it can do, whether it can be reached, and which attempts it holds.
//!
//! Owns sessions' succession, slots, silence, sickness and exclusions. It never picks a daemon for a task
//! (`placement`) and knows nothing of leases' time: an attempt counts here from its offer to its end.

mod daemon;

#[cfg(test)]
pub(crate) mod roster_tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::attempt::timers::DeadlineIndex;
use crate::config::Config;
use crate::ids::{AttemptId, DaemonId, SessionId, TaskId};
use crate::io::session_input::{DaemonHello, MachineLoad};
use crate::record::DaemonRecord;
use crate::time::MonotonicTime;

pub use daemon::{DaemonPresence, RosterDaemon};

/// Every daemon that the relay has heard of since it started, or has on record.
#[derive(Debug)]
pub struct DaemonRoster {
    daemons: BTreeMap<DaemonId, RosterDaemon>,
    sessions: BTreeMap<SessionId, DaemonId>,
    holders: BTreeMap<AttemptId, DaemonId>,
    /// Those with a free slot that may be offered work, least loaded first.
    available: BTreeSet<(u32, DaemonId)>,
    /// Became open since the last look: work that was stuck may go there.
    newly_available: BTreeSet<DaemonId>,
    next_changes: DeadlineIndex<DaemonId>,
    exclusions: BTreeMap<TaskId, BTreeMap<DaemonId, MonotonicTime>>,
    exclusion_ends: BTreeSet<(MonotonicTime, TaskId, DaemonId)>,
    /// Tasks that are passed over because another attempt is in their workspace there.
    waiting_for_workspace: BTreeMap<DaemonId, BTreeSet<TaskId>>,
    sick_failures: u32,
    sick_ms: u64,
    /// How long one is set aside that refuses because of its machine: at first, and at most.
    unfit_ms: (u64, u64),
}

/// How a stream came to be the daemon's current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionSuccession {
    First,
    /// The same process reconnected; its old stream ends without a word.
    Replaced(SessionId),
    /// Another process of the same daemon took over; the old stream is told so.
    Superseded(SessionId),
}

/// What a Hello changed besides the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloOutcome {
    pub succession: SessionSuccession,
    /// The machine was booted since it was last heard: all its earlier processes are gone.
    pub rebooted: bool,
}

impl DaemonRoster {
    pub fn new(config: &Config) -> Self {
        Self {
            daemons: BTreeMap::new(),
            sessions: BTreeMap::new(),
            holders: BTreeMap::new(),
            available: BTreeSet::new(),
            newly_available: BTreeSet::new(),
            next_changes: DeadlineIndex::default(),
            exclusions: BTreeMap::new(),
            exclusion_ends: BTreeSet::new(),
            waiting_for_workspace: BTreeMap::new(),
            sick_failures: config.sick_failures,
            sick_ms: config.sick_ms,
            unfit_ms: (config.unfit_ms, config.unfit_max_ms),
        }
    }

    /// A daemon known from before a restart; it is away until it says Hello.
    pub fn insert_record(&mut self, record: &DaemonRecord) {
        let daemon = RosterDaemon::from_record(record);
        self.daemons.insert(record.daemon, daemon);
    }

    /// Its stream becomes the current one; what it says about itself replaces what was known.
    pub fn apply_hello(
        &mut self,
        session: SessionId,
        hello: &DaemonHello,
        heartbeat_ms: u64,
        now: MonotonicTime,
    ) -> HelloOutcome {
        let known = self.daemons.get(&hello.daemon);
        let opened = match known.and_then(|d| d.presence.session().map(|s| (s, d.instance))) {
            None => SessionSuccession::First,
            Some((old, instance)) if instance == Some(hello.instance) => {
                SessionSuccession::Replaced(old)
            }
            Some((old, _)) => SessionSuccession::Superseded(old),
        };
        let rebooted = known.is_some_and(|d| d.boot_id != hello.boot_id);
        if let SessionSuccession::Replaced(old) | SessionSuccession::Superseded(old) = opened {
            self.sessions.remove(&old);
        }
        self.sessions.insert(session, hello.daemon);
        let daemon = self.daemons.entry(hello.daemon);
        let daemon = daemon.or_insert_with(|| RosterDaemon::from_hello(hello));
        daemon.apply_hello(hello);
        daemon.newest_session = Some(session);
        daemon.presence = DaemonPresence::Connected {
            session,
            since: now,
            last_received_at: now,
            heartbeat_ms,
            heartbeat_seen: false,
            is_silent: false,
            unheard: None,
        };
        self.refresh_indexes(hello.daemon, now);
        // It may offer more than before, also where it stayed open all the time.
        self.newly_available.insert(hello.daemon);
        HelloOutcome {
            succession: opened,
            rebooted,
        }
    }

    /// Whether the daemon has opened another stream since: ids of sessions rise in the order of opening. What such a
    /// stream still says is of the past, its boot id above all.
    pub fn is_overtaken(&self, daemon: DaemonId, session: SessionId) -> bool {
        let newest = self.get(daemon).and_then(|daemon| daemon.newest_session);
        newest.is_some_and(|newest| newest > session)
    }

    /// The stream ended. `None` if it was not the current one any more: nothing changes then.
    pub fn close_session(&mut self, session: SessionId, now: MonotonicTime) -> Option<DaemonId> {
        let daemon = self.sessions.remove(&session)?;
        self.update_daemon(daemon, now, |d| {
            d.presence = DaemonPresence::Disconnected { since: now }
        });
        Some(daemon)
    }

    /// The daemon was heard. `None` if the stream is not current: a replaced stream keeps nobody alive.
    pub fn heartbeat(
        &mut self,
        session: SessionId,
        draining: bool,
        every_ms: u64,
        now: MonotonicTime,
    ) -> Option<DaemonId> {
        let daemon = *self.sessions.get(&session)?;
        self.update_daemon(daemon, now, |d| {
            d.draining = draining;
            d.presence.note_heartbeat(every_ms, now);
        });
        Some(daemon)
    }

    /// Whether the daemon hears what it is told, as far as it says so in a heartbeat.
    pub fn is_receiving(
        &mut self,
        session: SessionId,
        heard_seq: Option<u64>,
        now: MonotonicTime,
    ) -> bool {
        let daemon = self.sessions.get(&session);
        let daemon = daemon.and_then(|id| self.daemons.get_mut(id));
        daemon.is_none_or(|daemon| daemon.presence.is_receiving(heard_seq, now))
    }

    /// Welcome, or the answer to heartbeat `seq`, goes out and tells the pace from here on: silence is measured by it.
    pub fn note_answer_sent(
        &mut self,
        session: SessionId,
        seq: Option<u64>,
        every_ms: u64,
        now: MonotonicTime,
    ) {
        if let Some(daemon) = self.daemon_of(session) {
            self.update_daemon(daemon, now, |d| {
                d.presence.note_answer_sent(seq, every_ms, now)
            });
        }
    }

    /// It was heard just now and takes a lease that wants a quicker pace, which it keeps without being told: its silence is
    /// measured by that from here on.
    pub fn shorten_heartbeat(&mut self, session: SessionId, every_ms: u64, now: MonotonicTime) {
        if let Some(daemon) = self.daemon_of(session) {
            self.update_daemon(daemon, now, |d| d.presence.shorten_heartbeat(every_ms, now));
        }
    }

    /// The relay itself was away: the daemon's silence is nobody's fault.
    pub fn reset_silence(&mut self, session: SessionId, now: MonotonicTime) {
        if let Some(daemon) = self.daemon_of(session) {
            self.update_daemon(daemon, now, |d| d.presence.reset_silence(now));
        }
    }

    /// Set by an operator; lasts until it is lifted.
    pub fn set_drained(&mut self, daemon: DaemonId, drained: bool, now: MonotonicTime) {
        self.update_daemon(daemon, now, |d| d.drained = drained);
    }

    /// The attempt takes one of its slots, from the offer on.
    pub fn assign_attempt(&mut self, daemon: DaemonId, attempt: AttemptId, now: MonotonicTime) {
        self.holders.insert(attempt, daemon);
        self.update_daemon(daemon, now, |d| {
            d.held_attempts.insert(attempt);
        });
    }

    /// The attempt ended, whoever knows of it.
    pub fn release_attempt(&mut self, attempt: AttemptId, now: MonotonicTime) {
        if let Some(daemon) = self.holders.remove(&attempt) {
            self.update_daemon(daemon, now, |d| {
                d.held_attempts.remove(&attempt);
            });
        }
    }

    /// It listed the attempt as over, and its last words are wanted.
    pub fn await_final_frames(&mut self, daemon: DaemonId, attempt: AttemptId) {
        if let Some(daemon) = self.daemons.get_mut(&daemon) {
            daemon.awaited_final_frames.insert(attempt);
        }
    }

    /// Whether its present stream brings this attempt's last words, as Welcome asked for.
    pub fn awaits_final_frames(&self, daemon: DaemonId, attempt: AttemptId) -> bool {
        let daemon = self.daemons.get(&daemon);
        daemon.is_some_and(|daemon| daemon.awaited_final_frames.contains(&attempt))
    }

    /// An attempt on it failed, timed out or was lost. Enough of them in a row make it sick for a while.
    pub fn note_failure(&mut self, daemon: DaemonId, now: MonotonicTime) {
        let (enough, ms) = (self.sick_failures, self.sick_ms);
        let was_sick = self.get(daemon).is_some_and(|d| d.is_sick(now));
        self.update_daemon(daemon, now, |d| {
            d.consecutive_failures = d.consecutive_failures.saturating_add(1);
            if d.consecutive_failures >= enough {
                d.sick_until = Some(now + ms);
                // One more failure after the pause is enough; one success clears it.
                d.consecutive_failures = enough.saturating_sub(1);
            }
        });
        if !was_sick && self.get(daemon).is_some_and(|d| d.is_sick(now)) {
            self.wake_sick_daemons(now);
        }
    }

    pub fn note_success(&mut self, daemon: DaemonId, now: MonotonicTime) {
        self.update_daemon(daemon, now, |d| {
            d.consecutive_failures = 0;
            d.sick_until = None;
        });
    }

    /// Its machine could not take an offer, and so could take no other: it is set aside for a while.
    pub fn note_refusal(&mut self, daemon: DaemonId, now: MonotonicTime) {
        let unfit_ms = self.unfit_ms;
        self.update_daemon(daemon, now, |d| d.note_refusal(unfit_ms, now));
    }

    /// What a heartbeat says about its machine.
    pub fn note_fitness(&mut self, daemon: DaemonId, unfit: bool, now: MonotonicTime) {
        self.update_daemon(daemon, now, |d| d.note_fitness(unfit));
    }

    /// What a heartbeat says for people to see.
    pub fn note_load(&mut self, daemon: DaemonId, load: Option<MachineLoad>) {
        if let Some(daemon) = self.daemons.get_mut(&daemon) {
            daemon.load = load;
        }
    }

    /// It has run something to an end, good or bad.
    pub fn note_attempt_run(&mut self, daemon: DaemonId, now: MonotonicTime) {
        self.update_daemon(daemon, now, |d| d.refusals = 0);
    }

    /// This daemon would not take this task: it is passed over for it until then.
    pub fn exclude(&mut self, task: TaskId, daemon: DaemonId, until: MonotonicTime) {
        let of_task = self.exclusions.entry(task).or_default();
        if let Some(old) = of_task.insert(daemon, until) {
            self.exclusion_ends.remove(&(old, task, daemon));
        }
        self.exclusion_ends.insert((until, task, daemon));
    }

    pub fn excluded_until(
        &self,
        task: TaskId,
        daemon: DaemonId,
        now: MonotonicTime,
    ) -> Option<MonotonicTime> {
        let until = *self.exclusions.get(&task)?.get(&daemon)?;
        (until > now).then_some(until)
    }

    /// The workspace that it wants there is in use: it is passed over until then, or until something ends there.
    pub fn wait_for_workspace(&mut self, task: TaskId, daemon: DaemonId, until: MonotonicTime) {
        self.exclude(task, daemon, until);
        self.waiting_for_workspace
            .entry(daemon)
            .or_default()
            .insert(task);
    }

    /// Something that ran there is over: its workspace may be free.
    pub fn workspace_freed(&mut self, daemon: DaemonId) {
        for task in self
            .waiting_for_workspace
            .remove(&daemon)
            .unwrap_or_default()
        {
            self.end_exclusion(task, daemon);
            self.newly_available.insert(daemon);
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
            if let Some(waiting) = self.waiting_for_workspace.get_mut(&daemon) {
                waiting.remove(&task);
            }
        }
    }

    /// It stayed away for long and holds nothing. An exclusion of it ends by itself.
    pub fn forget_daemon(&mut self, daemon: DaemonId) {
        let gone = self.daemons.remove(&daemon);
        if let Some(load) = gone.and_then(|gone| gone.listed_load) {
            self.available.remove(&(load, daemon));
        }
        self.newly_available.remove(&daemon);
        self.waiting_for_workspace.remove(&daemon);
    }

    /// When `tick` has something to do.
    pub fn next_change_at(&self) -> Option<MonotonicTime> {
        let exclusion = self.exclusion_ends.first().map(|(at, _, _)| *at);
        self.next_changes
            .next_due_at()
            .into_iter()
            .chain(exclusion)
            .min()
    }

    /// Lets time pass: returns streams that have been silent for two heartbeats, each once.
    pub fn tick(&mut self, now: MonotonicTime) -> Vec<(DaemonId, SessionId)> {
        let mut silent = Vec::new();
        while let Some(id) = self.next_changes.take_due(now) {
            let Some(daemon) = self.daemons.get_mut(&id) else {
                continue;
            };
            if daemon.sick_until.is_some_and(|until| until <= now) {
                daemon.sick_until = None;
                self.newly_available.insert(id);
            }
            daemon.unfit_until.take_if(|until| *until <= now);
            silent.extend(daemon.presence.mark_silent_if_due(now).map(|s| (id, s)));
            self.refresh_indexes(id, now);
        }
        self.expire_exclusions(now);
        silent
    }

    pub fn get(&self, daemon: DaemonId) -> Option<&RosterDaemon> {
        self.daemons.get(&daemon)
    }

    pub fn iter(&self) -> impl Iterator<Item = &RosterDaemon> {
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
        self.holders.get(&attempt).copied()
    }

    pub fn boot_id_of(&self, daemon: DaemonId) -> Option<&Arc<str>> {
        self.daemons.get(&daemon).map(|d| &d.boot_id)
    }

    /// Daemons that may be offered work and have a slot, least loaded first, ties by id.
    pub fn available(&self) -> impl Iterator<Item = &RosterDaemon> {
        let ids = self.available.iter();
        ids.filter_map(|(_, id)| self.daemons.get(id))
    }

    /// Daemons that became open, each once.
    pub(crate) fn take_newly_available(&mut self) -> BTreeSet<DaemonId> {
        std::mem::take(&mut self.newly_available)
    }

    fn update_daemon(
        &mut self,
        id: DaemonId,
        now: MonotonicTime,
        edit: impl FnOnce(&mut RosterDaemon),
    ) {
        if let Some(daemon) = self.daemons.get_mut(&id) {
            edit(daemon);
            self.refresh_indexes(id, now);
        }
    }

    /// Brings the indexes in line with one daemon.
    fn refresh_indexes(&mut self, id: DaemonId, now: MonotonicTime) {
        let Some(daemon) = self.daemons.get_mut(&id) else {
            return;
        };
        if let Some(at) = daemon.next_change_at(now) {
            self.next_changes.arm(id, at);
        }
        let left = daemon.took_work && !daemon.takes_work();
        daemon.took_work = daemon.takes_work();
        let entry = daemon
            .is_available()
            .then(|| (daemon.load_millionths(), id));
        match (daemon.listed_load, entry) {
            (Some(load), _) => {
                self.available.remove(&(load, id));
            }
            (None, Some(_)) => {
                self.newly_available.insert(id);
            }
            (None, None) => {}
        }
        daemon.listed_load = entry.map(|(load, _)| load);
        self.available.extend(entry);
        if left {
            self.wake_sick_daemons(now);
        }
    }

    /// A healthy daemon is gone: work that waited for it may now have to go to a sick one.
    fn wake_sick_daemons(&mut self, now: MonotonicTime) {
        let sick = self.daemons.values().filter(|d| d.is_sick(now));
        let ids: Vec<DaemonId> = sick.map(|d| d.id).collect();
        self.newly_available.extend(ids);
    }

    fn expire_exclusions(&mut self, now: MonotonicTime) {
        while let Some((at, task, daemon)) = self.exclusion_ends.first().copied() {
            if at > now {
                return;
            }
            self.exclusion_ends.remove(&(at, task, daemon));
            self.end_exclusion(task, daemon);
            if let Some(waiting) = self.waiting_for_workspace.get_mut(&daemon) {
                waiting.remove(&task);
            }
        }
    }
}
