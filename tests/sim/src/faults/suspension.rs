//! Daemons that are stopped and go on later, as by SIGSTOP or on a machine that is too busy; and shims that are killed.
//!
//! A stopped daemon hears and says nothing. Its shims are processes of their own: they count the leases on, and end what
//! they run.

use std::sync::Arc;

use baton_core::ids::AttemptId;

use crate::simulation::{ScheduledEvent, Simulation};

/// How long a machine that woke may take until it has ended what lost its right.
const WAKE_GRACE_MS: u64 = 1_000;

impl Simulation {
    /// Until when this event has to wait because the daemon that it belongs to is stopped.
    pub(crate) fn delayed_until(&self, event: &ScheduledEvent) -> Option<u64> {
        let until = match event {
            ScheduledEvent::DaemonConnect { daemon, .. }
            | ScheduledEvent::DaemonHeartbeat { daemon, .. }
            | ScheduledEvent::WelcomeTimeout { daemon, .. }
            | ScheduledEvent::OutboxWrite { daemon, .. }
            | ScheduledEvent::ConfirmationTimeout { daemon, .. } => self.inactive_until(*daemon),
            ScheduledEvent::StreamArrival { conn, up: false } => {
                self.inactive_until(self.streams[*conn].daemon)
            }
            // Shims and what they run are processes of their own, but on the same machine.
            ScheduledEvent::AgentStep { daemon, .. }
            | ScheduledEvent::ShimPoll { daemon, .. }
            | ScheduledEvent::LeaseLimit { daemon, .. }
            | ScheduledEvent::ProcessExit { daemon, .. } => self.daemons[*daemon].asleep_until,
            ScheduledEvent::AgentTurn { agent }
            | ScheduledEvent::AgentLeaseExpiry { agent }
            | ScheduledEvent::AnswerArrival { agent, .. }
            | ScheduledEvent::AnswerTimeout { agent, .. } => self.agents[*agent].asleep_until,
            ScheduledEvent::StreamArrival { up: true, .. }
            | ScheduledEvent::CallArrival { .. }
            | ScheduledEvent::RelayTurn
            | ScheduledEvent::RelayCommit { .. }
            | ScheduledEvent::RelayBoot
            | ScheduledEvent::DaemonWake { .. }
            | ScheduledEvent::ClientAction
            | ScheduledEvent::FaultInjection
            | ScheduledEvent::HealingStart
            | ScheduledEvent::HealingCheck => return None,
        };
        (until > self.now).then_some(until)
    }

    fn inactive_until(&self, index: usize) -> u64 {
        let daemon = &self.daemons[index];
        daemon.stopped_until.max(daemon.asleep_until)
    }

    /// The whole machine sleeps, its clock does not: what runs there may lose its right to run without being able to end.
    pub(crate) fn suspend_machine(&mut self, index: usize) {
        if self.daemons[index].is_down || self.daemons[index].asleep_until > self.now {
            return;
        }
        self.counts.suspends += 1;
        let until = self.now + self.rng.between(2_000, 120_000);
        self.add_trace(|| format!("the machine of d{index} sleeps until {until}"));
        self.daemons[index].asleep_since = self.now;
        self.daemons[index].asleep_until = until;
        self.schedule(until, ScheduledEvent::DaemonWake { daemon: index });
        // Asleep it does nothing, and awake it is ended before it does: it is in nobody's way.
        let held = self.daemons[index].attempts.values();
        let over = held.filter(|held| held.processes_alive && held.granted_time.until <= until);
        let over: Vec<_> = over.map(|h| (h.re, Arc::clone(&h.spec))).collect();
        for (re, spec) in over {
            self.record_process_end(re.task, re.attempt, &spec);
        }
    }

    /// Its machine sleeps, or woke a moment ago and has not got round to everything.
    pub(crate) fn slept_recently(&self, index: usize) -> bool {
        let until = self.daemons[index].asleep_until;
        until > 0 && self.now < until + WAKE_GRACE_MS
    }

    /// When a machine can do what is due at this moment: nobody acts in his sleep.
    pub(crate) fn awake_at(&self, index: usize, due: u64) -> u64 {
        let daemon = &self.daemons[index];
        let asleep = daemon.asleep_since <= due && due < daemon.asleep_until;
        if asleep { daemon.asleep_until } else { due }
    }

    pub(crate) fn stop_daemon(&mut self, index: usize) {
        if self.daemons[index].is_down {
            return;
        }
        self.counts.daemon_stalls += 1;
        let until = self.now + self.rng.between(2_000, 90_000);
        self.add_trace(|| format!("d{index} is stopped until {until}"));
        self.daemons[index].stopped_until = until;
        self.schedule(until, ScheduledEvent::DaemonWake { daemon: index });
    }

    /// What its shims have reported meanwhile goes out, on whatever stream it believes to have.
    pub(crate) fn resume_daemon(&mut self, index: usize) {
        if !self.is_stopped(index) {
            self.forward_all_transcripts(index);
        }
    }

    pub(crate) fn is_stopped(&self, index: usize) -> bool {
        self.inactive_until(index) > self.now
    }

    /// A shim dies without a report: its processes die with it, and nothing can be told but that they are gone.
    pub(crate) fn kill_shim(&mut self, index: usize) {
        let held = self.daemons[index].attempts.values();
        let running: Vec<AttemptId> = held
            .filter(|h| h.processes_alive)
            .map(|h| h.re.attempt)
            .collect();
        let Some(attempt) = self.rng.pick(&running) else {
            return;
        };
        self.counts.shim_kills += 1;
        self.add_trace(|| format!("the shim of {attempt} is killed"));
        self.remove_processes(index, attempt);
        self.report_receipt(index, attempt);
    }
}
