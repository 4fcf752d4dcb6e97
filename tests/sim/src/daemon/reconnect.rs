//! Reconnects of a daemon: the daemon's own urgency and backoff decide when it connects, the
//! simulation decides whether the relay answers.

use std::time::Duration;

use baton_daemon_core::reconnect_delay;
use baton_daemon_core::reconnect_delay::ReconnectState;
use baton_daemon_core::reconnect_urgency::ReconnectUrgency;

use crate::daemon::sim_attempt::{SimAttempt, monotonic_time};
use crate::simulation::{ScheduledEvent, Simulation};

/// The longest wait between two connection attempts. A daemon with a lease at risk waits less.
const MAX_DIAL_WAIT_MS: u64 = 60_000;
/// A restarted relay waits slightly longer than this for terminal frames.
const MAX_TERMINAL_FRAME_WAIT_MS: u64 = 5_000;

impl Simulation {
    /// The stream has ended on this side. A new one is tried soon, while attempts continue.
    pub(crate) fn handle_lost_stream(&mut self, index: usize) {
        let daemon = &mut self.daemons[index];
        daemon.stream = None;
        daemon.failed_dials = 0;
        daemon.welcomed = false;
        daemon.generation += 1;
        let long = self.options.long_outages && !self.healing && self.rng.chance(40);
        let worst = match (long, self.rng.chance(20)) {
            (true, true) => 300_000,
            (true, false) => 80_000,
            (false, _) => 2_000,
        };
        self.daemons[index].cut_off_until = self.now + self.rng.between(1, worst);
        self.schedule_dial(index, None);
    }

    /// The relay did not answer, or was busy and asked for a later retry.
    pub(crate) fn handle_failed_dial(&mut self, index: usize) {
        self.daemons[index].failed_dials += 1;
        let busy = self.relay.core.is_some() && self.rng.chance(30);
        let wish = busy.then(|| Duration::from_millis(self.rng.between(100, 30_000)));
        self.schedule_dial(index, wish);
    }

    pub(crate) fn is_cut_off(&self, index: usize) -> bool {
        !self.healing && self.daemons[index].cut_off_until > self.now
    }

    fn schedule_dial(&mut self, index: usize, retry_after: Option<Duration>) {
        let random = self.rng.below(1_000) as f64 / 1_000.0;
        let daemon = &self.daemons[index];
        let stake = ReconnectUrgency::from_attempts(
            daemon.attempts.values().map(SimAttempt::reconnect_stake),
        );
        let retry = ReconnectState {
            failures: daemon.failed_dials,
            retry_after,
            shortest_lease: stake.remaining_lease(monotonic_time(self.now)),
            max_result_delay: stake.max_result_delay,
        };
        let wait = reconnect_delay::reconnect_delay(retry, random).as_millis();
        let wait = u64::try_from(wait).unwrap_or(u64::MAX);
        self.check_dial_wait(index, wait, retry_after);
        self.counts.dials += 1;
        let life = self.daemons[index].generation;
        let took = self.rng.between(1, 20);
        self.schedule(
            self.now + wait.saturating_add(took),
            ScheduledEvent::DaemonConnect {
                daemon: index,
                life,
            },
        );
    }

    /// L4: a daemon that could lose a lease reconnects while most of it is left, and results
    /// are sent soon after the relay is back.
    fn check_dial_wait(&self, index: usize, wait: u64, retry_after: Option<Duration>) {
        let wish = retry_after.map_or(0, |wish| u64::try_from(wish.as_millis()).unwrap_or(0));
        assert!(
            wait <= MAX_DIAL_WAIT_MS + wish,
            "L4: d{index} waits for {wait} ms before it dials"
        );
        // After a suspend, a daemon may have little lease time left, and may already be ending
        // the attempt.
        let slept = self.slept_recently(index);
        let held = self.daemons[index].attempts.values();
        for held in held {
            let left = held.granted_time.until.saturating_sub(self.now);
            assert!(
                !held.processes_alive || left == 0 || slept || wait <= left / 4,
                "L4: d{index} waits for {wait} ms, and the lease of {} has {left} left",
                held.re.attempt
            );
            assert!(
                !held.ended || held.processes_alive || wait <= MAX_TERMINAL_FRAME_WAIT_MS + wish,
                "L4: d{index} waits for {wait} ms with the last words of {}",
                held.re.attempt
            );
        }
    }
}
