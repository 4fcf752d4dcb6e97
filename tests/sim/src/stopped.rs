//! Daemons that are stopped and go on later, as by SIGSTOP or on a machine that is too busy; and shims that are killed.
//!
//! A stopped daemon hears and says nothing. Its shims are processes of their own: they count the leases on, and end what
//! they run.

use std::sync::Arc;

use baton_core::id::AttemptId;

use crate::world::{Event, World};

/// How long a machine that woke may take until it has ended what lost its right.
const WAKING_MS: u64 = 1_000;

impl World {
    /// Until when this event has to wait because the daemon that it belongs to is stopped.
    pub(crate) fn stopped_until(&self, event: &Event) -> Option<u64> {
        let until = match event {
            Event::Connect { daemon, .. }
            | Event::Beat { daemon, .. }
            | Event::Patience { daemon, .. }
            | Event::Store { daemon, .. }
            | Event::Unconfirmed { daemon, .. } => self.stops(*daemon),
            Event::Arrive { conn, up: false } => self.stops(self.conns[*conn].daemon),
            // Shims and what they run are processes of their own, but on the same machine.
            Event::Step { daemon, .. }
            | Event::Tend { daemon, .. }
            | Event::Limit { daemon, .. }
            | Event::Dead { daemon, .. } => self.daemons[*daemon].asleep_until,
            Event::Alone { agent }
            | Event::GripOver { agent }
            | Event::Heard { agent, .. }
            | Event::Unheard { agent, .. } => self.alone[*agent].asleep_until,
            Event::Arrive { up: true, .. }
            | Event::Call { .. }
            | Event::Turn
            | Event::Commit { .. }
            | Event::Boot
            | Event::Wake { .. }
            | Event::Client
            | Event::Fault
            | Event::Heal
            | Event::Look => return None,
        };
        (until > self.now).then_some(until)
    }

    fn stops(&self, index: usize) -> u64 {
        let daemon = &self.daemons[index];
        daemon.stopped_until.max(daemon.asleep_until)
    }

    /// The whole machine sleeps, its clock does not: what runs there may lose its right to run without being able to end.
    pub(crate) fn suspend(&mut self, index: usize) {
        if self.daemons[index].down || self.daemons[index].asleep_until > self.now {
            return;
        }
        self.counts.suspends += 1;
        let until = self.now + self.rng.between(2_000, 120_000);
        self.note(|| format!("the machine of d{index} sleeps until {until}"));
        self.daemons[index].asleep_since = self.now;
        self.daemons[index].asleep_until = until;
        self.at(until, Event::Wake { daemon: index });
        // Asleep it does nothing, and awake it is ended before it does: it is in nobody's way.
        let held = self.daemons[index].held.values();
        let over = held.filter(|held| held.alive && held.rights.until <= until);
        let over: Vec<_> = over.map(|h| (h.re, Arc::clone(&h.spec))).collect();
        for (re, spec) in over {
            self.died(re.task, re.attempt, &spec);
        }
    }

    /// Its machine sleeps, or woke a moment ago and has not got round to everything.
    pub(crate) fn has_slept(&self, index: usize) -> bool {
        let until = self.daemons[index].asleep_until;
        until > 0 && self.now < until + WAKING_MS
    }

    /// When a machine can do what is due at this moment: nobody acts in his sleep.
    pub(crate) fn awake_at(&self, index: usize, due: u64) -> u64 {
        let daemon = &self.daemons[index];
        let asleep = daemon.asleep_since <= due && due < daemon.asleep_until;
        if asleep { daemon.asleep_until } else { due }
    }

    pub(crate) fn stop_daemon(&mut self, index: usize) {
        if self.daemons[index].down {
            return;
        }
        self.counts.daemon_stalls += 1;
        let until = self.now + self.rng.between(2_000, 90_000);
        self.note(|| format!("d{index} is stopped until {until}"));
        self.daemons[index].stopped_until = until;
        self.at(until, Event::Wake { daemon: index });
    }

    /// What its shims have reported meanwhile goes out, on whatever stream it believes to have.
    pub(crate) fn daemon_wakes(&mut self, index: usize) {
        if !self.is_stopped(index) {
            self.fold_all(index);
        }
    }

    pub(crate) fn is_stopped(&self, index: usize) -> bool {
        self.stops(index) > self.now
    }

    /// A shim dies without a report: its processes die with it, and nothing can be told but that they are gone.
    pub(crate) fn kill_shim(&mut self, index: usize) {
        let held = self.daemons[index].held.values();
        let running: Vec<AttemptId> = held.filter(|h| h.alive).map(|h| h.re.attempt).collect();
        let Some(attempt) = self.rng.pick(&running) else {
            return;
        };
        self.counts.shim_kills += 1;
        self.note(|| format!("the shim of {attempt} is killed"));
        self.bury(index, attempt);
        self.report_gone(index, attempt);
    }
}
