//! The roster: what each daemon offers, whether it is connected, and which attempts it holds.
//!
//! Owns the succession of sessions, slots, silence, sickness and exclusions. It never picks a
//! daemon for a task (`placement`) and does not track lease times: an attempt counts from its
//! offer to its end.

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

/// Every daemon that has connected since the relay started or has a stored record.
#[derive(Debug)]
pub struct DaemonRoster {
    daemons: BTreeMap<DaemonId, RosterDaemon>,
    sessions: BTreeMap<SessionId, DaemonId>,
    holders: BTreeMap<AttemptId, DaemonId>,
    /// Daemons with a free slot that may be offered work, least loaded first.
    available: BTreeSet<(u32, DaemonId)>,
    /// Daemons that became available since the last placement: waiting tasks may go there.
    newly_available: BTreeSet<DaemonId>,
    next_changes: DeadlineIndex<DaemonId>,
    exclusions: BTreeMap<TaskId, BTreeMap<DaemonId, MonotonicTime>>,
    exclusion_ends: BTreeSet<(MonotonicTime, TaskId, DaemonId)>,
    /// Tasks that are excluded because another attempt uses their workspace on that daemon.
    waiting_for_workspace: BTreeMap<DaemonId, BTreeSet<TaskId>>,
    sick_failures: u32,
    sick_ms: u64,
    /// How long a daemon gets no offers after it refused one because of its machine: initially,
    /// and at most.
    unfit_ms: (u64, u64),
}

/// How a stream became the daemon's current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionSuccession {
    First,
    /// The same process reconnected. Its old stream ends without a message.
    Replaced(SessionId),
    /// Another process of the same daemon took over. The old stream gets a message about it.
    Superseded(SessionId),
}

/// What a Hello changed besides the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloOutcome {
    pub succession: SessionSuccession,
    /// The machine was booted since its last Hello: all its earlier processes are gone.
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

    /// Adds a daemon from its stored record. It is disconnected until its Hello.
    pub fn insert_record(&mut self, record: &DaemonRecord) {
        let daemon = RosterDaemon::from_record(record);
        self.daemons.insert(record.daemon, daemon);
    }

    /// Makes this stream the current one and replaces the daemon's attributes with those of the
    /// Hello.
    pub fn apply_hello(
        &mut self,
        session: SessionId,
        hello: &DaemonHello,
        heartbeat_ms: u64,
        now: MonotonicTime,
    ) -> HelloOutcome {
        let known = self.daemons.get(&hello.daemon);
        let succession = match known.and_then(|d| d.presence.session().map(|s| (s, d.instance))) {
            None => SessionSuccession::First,
            Some((old, instance)) if instance == Some(hello.instance) => {
                SessionSuccession::Replaced(old)
            }
            Some((old, _)) => SessionSuccession::Superseded(old),
        };
        let rebooted = known.is_some_and(|d| d.boot_id != hello.boot_id);
        if let SessionSuccession::Replaced(old) | SessionSuccession::Superseded(old) = succession {
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
            unconfirmed: None,
        };
        self.refresh_indexes(hello.daemon, now);
        // It may offer more than before, even if it was available all the time.
        self.newly_available.insert(hello.daemon);
        HelloOutcome {
            succession,
            rebooted,
        }
    }

    /// Whether the daemon has opened a newer stream: session ids rise in the order of opening.
    /// Messages of the older stream are outdated, above all its boot id.
    pub fn is_overtaken(&self, daemon: DaemonId, session: SessionId) -> bool {
        let newest = self.get(daemon).and_then(|daemon| daemon.newest_session);
        newest.is_some_and(|newest| newest > session)
    }

    /// Closes a stream. `None`, without a change, if it was no longer the current one.
    pub fn close_session(&mut self, session: SessionId, now: MonotonicTime) -> Option<DaemonId> {
        let daemon = self.sessions.remove(&session)?;
        self.update_daemon(daemon, now, |d| {
            d.presence = DaemonPresence::Disconnected { since: now }
        });
        Some(daemon)
    }

    /// Records a heartbeat. `None` if the stream is not current: a replaced stream does not
    /// keep the daemon connected.
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

    /// Whether the daemon receives the relay's messages, as far as its heartbeats confirm it.
    pub fn is_receiving(
        &mut self,
        session: SessionId,
        received_seq: Option<u64>,
        now: MonotonicTime,
    ) -> bool {
        let daemon = self.sessions.get(&session);
        let daemon = daemon.and_then(|id| self.daemons.get_mut(id));
        daemon.is_none_or(|daemon| daemon.presence.is_receiving(received_seq, now))
    }

    /// Records that Welcome or the answer to heartbeat `seq` was sent. It contains the
    /// heartbeat interval by which silence is measured from here on.
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

    /// Shortens the heartbeat interval of a daemon that has just accepted a shorter lease. The
    /// daemon applies the shorter interval by itself.
    pub fn shorten_heartbeat(&mut self, session: SessionId, every_ms: u64, now: MonotonicTime) {
        if let Some(daemon) = self.daemon_of(session) {
            self.update_daemon(daemon, now, |d| d.presence.shorten_heartbeat(every_ms, now));
        }
    }

    /// Restarts the silence measurement after a stall of the relay.
    pub fn reset_silence(&mut self, session: SessionId, now: MonotonicTime) {
        if let Some(daemon) = self.daemon_of(session) {
            self.update_daemon(daemon, now, |d| d.presence.reset_silence(now));
        }
    }

    /// Sets or removes an operator's drain.
    pub fn set_drained(&mut self, daemon: DaemonId, drained: bool, now: MonotonicTime) {
        self.update_daemon(daemon, now, |d| d.drained = drained);
    }

    /// Assigns an attempt to a slot of the daemon, from the offer on.
    pub fn assign_attempt(&mut self, daemon: DaemonId, attempt: AttemptId, now: MonotonicTime) {
        self.holders.insert(attempt, daemon);
        self.update_daemon(daemon, now, |d| {
            d.held_attempts.insert(attempt);
        });
    }

    /// Frees the slot of an ended attempt, whether or not the daemon is connected.
    pub fn release_attempt(&mut self, attempt: AttemptId, now: MonotonicTime) {
        if let Some(daemon) = self.holders.remove(&attempt) {
            self.update_daemon(daemon, now, |d| {
                d.held_attempts.remove(&attempt);
            });
        }
    }

    /// Expects the final frames of an attempt that the daemon listed as finished.
    pub fn await_final_frames(&mut self, daemon: DaemonId, attempt: AttemptId) {
        if let Some(daemon) = self.daemons.get_mut(&daemon) {
            daemon.awaited_final_frames.insert(attempt);
        }
    }

    /// Whether the current stream replays this attempt's final frames, as Welcome requested.
    pub fn awaits_final_frames(&self, daemon: DaemonId, attempt: AttemptId) -> bool {
        let daemon = self.daemons.get(&daemon);
        daemon.is_some_and(|daemon| daemon.awaited_final_frames.contains(&attempt))
    }

    /// Records an attempt that failed, timed out or was lost. Enough of them in a row make the
    /// daemon sick for a while.
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

    /// Records an offer that was refused because of the machine. The daemon gets no offers for
    /// a while.
    pub fn note_refusal(&mut self, daemon: DaemonId, now: MonotonicTime) {
        let unfit_ms = self.unfit_ms;
        self.update_daemon(daemon, now, |d| d.note_refusal(unfit_ms, now));
    }

    /// Records the fitness that a heartbeat reported.
    pub fn note_fitness(&mut self, daemon: DaemonId, unfit: bool, now: MonotonicTime) {
        self.update_daemon(daemon, now, |d| d.note_fitness(unfit));
    }

    /// Records the load that a heartbeat reported, for display.
    pub fn note_load(&mut self, daemon: DaemonId, load: Option<MachineLoad>) {
        if let Some(daemon) = self.daemons.get_mut(&daemon) {
            daemon.load = load;
        }
    }

    /// Records that an attempt ran to its end on this daemon, successful or not.
    pub fn note_attempt_run(&mut self, daemon: DaemonId, now: MonotonicTime) {
        self.update_daemon(daemon, now, |d| d.refusals = 0);
    }

    /// Excludes a daemon for a task until this time, because it refused the task.
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

    /// Excludes a daemon for a task whose workspace is in use there, until this time or until
    /// an attempt ends there.
    pub fn wait_for_workspace(&mut self, task: TaskId, daemon: DaemonId, until: MonotonicTime) {
        self.exclude(task, daemon, until);
        self.waiting_for_workspace
            .entry(daemon)
            .or_default()
            .insert(task);
    }

    /// Ends these exclusions after an attempt ended there: the workspace may be free.
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

    /// Removes everything about an ended task.
    pub fn forget_task(&mut self, task: TaskId) {
        for (daemon, until) in self.exclusions.remove(&task).unwrap_or_default() {
            self.exclusion_ends.remove(&(until, task, daemon));
            if let Some(waiting) = self.waiting_for_workspace.get_mut(&daemon) {
                waiting.remove(&task);
            }
        }
    }

    /// Removes a daemon that has been disconnected for long and holds nothing. Its exclusions
    /// expire by themselves.
    pub fn forget_daemon(&mut self, daemon: DaemonId) {
        let gone = self.daemons.remove(&daemon);
        if let Some(load) = gone.and_then(|gone| gone.listed_load) {
            self.available.remove(&(load, daemon));
        }
        self.newly_available.remove(&daemon);
        self.waiting_for_workspace.remove(&daemon);
    }

    /// When `tick` is due next.
    pub fn next_change_at(&self) -> Option<MonotonicTime> {
        let exclusion = self.exclusion_ends.first().map(|(at, _, _)| *at);
        self.next_changes
            .next_due_at()
            .into_iter()
            .chain(exclusion)
            .min()
    }

    /// Applies due changes and returns streams that have missed two heartbeats, each once.
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

    /// The daemon whose current stream this is.
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

    /// Daemons that may be offered work and have a slot, least loaded first, then by id.
    pub fn available(&self) -> impl Iterator<Item = &RosterDaemon> {
        let ids = self.available.iter();
        ids.filter_map(|(_, id)| self.daemons.get(id))
    }

    /// Daemons that became available, each once.
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

    /// Updates the indexes for one daemon.
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

    /// Reconsiders sick daemons after a healthy one stopped taking work: tasks that waited for
    /// it may have to go to a sick one.
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
