//! Shims: the daemon's own lifecycle and termination sequence end the processes, and the check
//! of S14 verifies that they end in time.
//!
//! The simulation decides how processes react to a signal: some exit at once, some after a
//! while, some only with KILL.

use baton_core::ids::AttemptId;
use baton_daemon_core::child_lifecycle::{ChildLifecycle, ProcessScan};
use baton_daemon_core::termination_sequence::{ScanResult, TerminationSignal};

use crate::daemon::sim_attempt::{KillReason, SimShim, monotonic_time};
use crate::simulation::{ScheduledEvent, Simulation};

/// The longest time from KILL to the end of the processes.
const MAX_KILL_DELAY_MS: u64 = 60;

impl Simulation {
    /// The processes start under their own shim.
    pub(crate) fn start_shim(&mut self, index: usize, attempt: AttemptId) {
        let Some(held) = self.daemons[index].attempts.get_mut(&attempt) else {
            return;
        };
        let Some(lease) = held.lease else { return };
        let course =
            ChildLifecycle::new(lease.shim_deadlines(held.cleanup_term), held.cleanup_term);
        let heeds = self.rng.chance(60);
        let takes = heeds.then(|| self.rng.below(1_500));
        held.shim = Some(SimShim {
            shutdown_plan: course,
            next_poll_at: None,
            exit_delay_ms: takes,
            term_at: None,
            is_killed: false,
            must_end_by: None,
        });
        self.schedule_shim_poll(index, attempt);
    }

    fn schedule_shim_poll(&mut self, index: usize, attempt: AttemptId) {
        let now = self.now;
        let Some(held) = self.daemons[index].attempts.get_mut(&attempt) else {
            return;
        };
        let Some(shim) = &mut held.shim else { return };
        let Some(next) = shim.shutdown_plan.next_wakeup_at(monotonic_time(now)) else {
            return;
        };
        let at = next.as_millis().max(now);
        if shim.next_poll_at.is_none_or(|planned| at < planned) {
            shim.next_poll_at = Some(at);
            self.schedule(
                at,
                ScheduledEvent::ShimPoll {
                    daemon: index,
                    attempt,
                },
            );
        }
    }

    pub(crate) fn poll_shim(&mut self, index: usize, attempt: AttemptId) {
        let now = self.now;
        let Some(held) = self.daemons[index].attempts.get_mut(&attempt) else {
            return;
        };
        let Some(shim) = held
            .shim
            .as_mut()
            .filter(|s| s.next_poll_at.is_some_and(|at| at <= now))
        else {
            return;
        };
        shim.next_poll_at = None;
        shim.shutdown_plan.advance(monotonic_time(now), true);
        let sight = shim
            .shutdown_plan
            .due_scan(monotonic_time(now))
            .map(|look| match look {
                ProcessScan::KnownOnly => ScanResult::KnownRemain,
                ProcessScan::Full => ScanResult::Members {
                    living: 1,
                    outside_group: 0,
                },
            });
        let rung = sight.and_then(|sight| shim.shutdown_plan.on_scan(sight, monotonic_time(now)));
        if shim.shutdown_plan.is_ending() {
            held.kill_reason.get_or_insert(KillReason::LeaseExpired);
        }
        match rung {
            Some(TerminationSignal::Term) => self.handle_term_signal(index, attempt),
            Some(TerminationSignal::Kill) => self.handle_kill_signal(index, attempt),
            None => {}
        }
        self.schedule_shim_poll(index, attempt);
    }

    fn handle_term_signal(&mut self, index: usize, attempt: AttemptId) {
        let now = self.now;
        let held = self.daemons[index].attempts.get_mut(&attempt);
        let Some(shim) = held.and_then(|held| held.shim.as_mut()) else {
            return;
        };
        if shim.term_at.is_some() {
            return;
        }
        shim.term_at = Some(now);
        if let Some(takes) = shim.exit_delay_ms {
            self.schedule(
                now + takes,
                ScheduledEvent::ProcessExit {
                    daemon: index,
                    attempt,
                },
            );
        }
    }

    fn handle_kill_signal(&mut self, index: usize, attempt: AttemptId) {
        self.check_term_time(index, attempt);
        let held = self.daemons[index].attempts.get_mut(&attempt);
        let Some(shim) = held.and_then(|held| held.shim.as_mut()) else {
            return;
        };
        if !std::mem::replace(&mut shim.is_killed, true) {
            self.counts.kills += 1;
            let at = self.now + self.rng.between(1, MAX_KILL_DELAY_MS);
            self.schedule(
                at,
                ScheduledEvent::ProcessExit {
                    daemon: index,
                    attempt,
                },
            );
        }
    }

    /// A process that is ended because its lease expires had time to exit by itself: TERM was
    /// sent in time.
    fn check_term_time(&self, index: usize, attempt: AttemptId) {
        let Some(held) = self.daemons[index].attempts.get(&attempt) else {
            return;
        };
        let slept = self.slept_recently(index);
        let Some(shim) = held
            .shim
            .as_ref()
            .filter(|_| held.kill_reason == Some(KillReason::LeaseExpired) && !slept)
        else {
            return;
        };
        let lead = u64::try_from(held.cleanup_term.as_millis()).unwrap_or(u64::MAX);
        let lead = lead.min(held.granted_time.shortest_grant_ms / 4);
        let due = self.awake_at(index, held.granted_time.until.saturating_sub(lead));
        assert!(
            shim.term_at.is_some_and(|at| at <= due),
            "S14: {attempt} is killed, and TERM was due at {due} and came at {:?}",
            shim.term_at
        );
    }

    /// The granted time is over: no process of it runs any more.
    pub(crate) fn check_lease_limit(&mut self, index: usize, attempt: AttemptId) {
        let Some(held) = self.daemons[index].attempts.get(&attempt) else {
            return;
        };
        if !held.processes_alive || self.slept_recently(index) {
            return;
        }
        let until = held.granted_time.until;
        assert!(
            self.now < until,
            "S14: {attempt} runs, and its lease was over at {until}"
        );
        let over_by = held.shim.as_ref().and_then(|shim| shim.must_end_by);
        assert!(
            over_by.is_none_or(|by| self.now < by),
            "S14: {attempt} runs, and was to be ended by {over_by:?}"
        );
    }

    /// Ends it, by an order or because its child exited.
    pub(crate) fn kill_attempt(
        &mut self,
        index: usize,
        attempt: AttemptId,
        why: KillReason,
        takes: u64,
        grace: u64,
    ) {
        let now = self.now;
        let Some(held) = self.daemons[index].attempts.get_mut(&attempt) else {
            return;
        };
        held.kill_reason = Some(why);
        // A shim that does not answer gets no order; it ends when its lease expires.
        let Some(shim) = held.shim.as_mut().filter(|_| held.reachable) else {
            return;
        };
        shim.exit_delay_ms = Some(takes);
        match why {
            KillReason::EndReported => shim.shutdown_plan.on_exit(monotonic_time(now)),
            KillReason::Canceled
            | KillReason::Abandoned
            | KillReason::LeaseExpired
            | KillReason::Deadline => {
                shim.shutdown_plan.on_stop(monotonic_time(now + grace));
                let over_by = now + grace + 2 * MAX_KILL_DELAY_MS;
                shim.must_end_by = Some(shim.must_end_by.map_or(over_by, |by| by.min(over_by)));
                self.schedule(
                    over_by,
                    ScheduledEvent::LeaseLimit {
                        daemon: index,
                        attempt,
                    },
                );
            }
        }
        self.schedule_shim_poll(index, attempt);
    }

    pub(crate) fn remove_processes(&mut self, index: usize, attempt: AttemptId) {
        let Some(held) = self.daemons[index].attempts.get_mut(&attempt) else {
            return;
        };
        // A shim that has ended cannot be unreachable: the daemon finds its report.
        held.reachable = true;
        held.shim = None;
        if std::mem::take(&mut held.processes_alive) {
            let (task, spec) = (held.re.task, std::sync::Arc::clone(&held.spec));
            self.record_process_end(task, attempt, &spec);
        }
    }
}
