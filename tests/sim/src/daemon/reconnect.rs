//! How a daemon comes back: the daemon's own stake and backoff say when it dials, the world whether anybody answers.

use std::time::Duration;

use baton_daemon_core::reconnect_delay;
use baton_daemon_core::reconnect_delay::ReconnectState;
use baton_daemon_core::reconnect_urgency::ReconnectUrgency;

use crate::daemon::sim_attempt::{SimAttempt, monotonic_time};
use crate::simulation::{ScheduledEvent, Simulation};

/// No daemon that has something to lose is away for longer between two dials than it must be, and none for longer than this.
const MAX_DIAL_WAIT_MS: u64 = 60_000;
/// A relay that is back waits for last words a little longer than that.
const MAX_TERMINAL_FRAME_WAIT_MS: u64 = 5_000;

impl Simulation {
    /// The stream is gone on this side; another is tried soon, while attempts go on.
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

    /// Nobody answered, or a relay that is too busy asked for some patience.
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

    /// L4: who could lose a lease comes back while most of it is left, and results are not kept from a relay that is back.
    fn check_dial_wait(&self, index: usize, wait: u64, retry_after: Option<Duration>) {
        let wish = retry_after.map_or(0, |wish| u64::try_from(wish.as_millis()).unwrap_or(0));
        assert!(
            wait <= MAX_DIAL_WAIT_MS + wish,
            "L4: d{index} waits for {wait} ms before it dials"
        );
        // Whoever wakes finds what its sleep has left, and may be ending it already.
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
