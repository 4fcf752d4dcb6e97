//! Daemons that are stopped and continue later, as with SIGSTOP or on a busy machine; and shims
//! that are killed.
//!
//! A stopped daemon receives and sends nothing. Its shims are separate processes: they count
//! the leases on and end their children.

use std::sync::Arc;

use baton_core::ids::AttemptId;

use crate::simulation::{ScheduledEvent, Simulation};

/// The time that a resumed machine needs to end processes with expired leases.
const WAKE_GRACE_MS: u64 = 1_000;

impl Simulation {
    /// When this event can be handled, if its daemon is stopped.
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
            // Shims and their children are separate processes, but on the same machine.
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

    /// The whole machine is suspended, but its clock runs: leases may expire while processes
    /// cannot be ended.
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
        // Suspended processes do nothing, and are ended when the machine resumes, so they block
        // no successor.
        let held = self.daemons[index].attempts.values();
        let over = held.filter(|held| held.processes_alive && held.granted_time.until <= until);
        let over: Vec<_> = over.map(|h| (h.re, Arc::clone(&h.spec))).collect();
        for (re, spec) in over {
            self.record_process_end(re.task, re.attempt, &spec);
        }
    }

    /// Its machine is suspended, or resumed a moment ago and has not handled everything yet.
    pub(crate) fn slept_recently(&self, index: usize) -> bool {
        let until = self.daemons[index].asleep_until;
        until > 0 && self.now < until + WAKE_GRACE_MS
    }

    /// When a machine can handle an event that is due now: not while it is suspended.
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

    /// Forwards everything that its shims have reported meanwhile, on the stream that it
    /// considers open.
    pub(crate) fn resume_daemon(&mut self, index: usize) {
        if !self.is_stopped(index) {
            self.forward_all_transcripts(index);
        }
    }

    pub(crate) fn is_stopped(&self, index: usize) -> bool {
        self.inactive_until(index) > self.now
    }

    /// A shim dies without a report: its processes die with it, and only their end is known.
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
