//! Daemons that are stopped and go on later, as by SIGSTOP or on a machine that is too busy; and shims that are killed.
//!
//! A stopped daemon hears and says nothing. Its shims are processes of their own: they count the leases on, and end what
//! they run.

use baton_core::id::AttemptId;

use crate::world::{Event, World};

impl World {
    /// Until when this event has to wait because the daemon that it belongs to is stopped.
    pub(crate) fn stopped_until(&self, event: &Event) -> Option<u64> {
        let daemon = match event {
            Event::Connect { daemon, .. }
            | Event::Beat { daemon, .. }
            | Event::Patience { daemon, .. }
            | Event::Step { daemon, .. }
            | Event::Unconfirmed { daemon, .. } => *daemon,
            Event::Arrive { conn, up: false } => self.conns[*conn].daemon,
            Event::Arrive { up: true, .. }
            | Event::Turn
            | Event::Commit { .. }
            | Event::Boot
            | Event::Limit { .. }
            | Event::Dead { .. }
            | Event::Wake { .. }
            | Event::Client
            | Event::Fault
            | Event::Heal
            | Event::Look => return None,
        };
        let until = self.daemons[daemon].stopped_until;
        (until > self.now).then_some(until)
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
        if self.daemons[index].stopped_until > self.now {
            return;
        }
        let attempts: Vec<AttemptId> = self.daemons[index].held.keys().copied().collect();
        for attempt in attempts {
            self.flush(index, attempt);
        }
    }

    pub(crate) fn is_stopped(&self, index: usize) -> bool {
        self.daemons[index].stopped_until > self.now
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
