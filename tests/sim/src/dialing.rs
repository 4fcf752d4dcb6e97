//! How a daemon comes back: the daemon's own stake and backoff say when it dials, the world whether anybody answers.

use std::time::Duration;

use baton_daemon_core::backoff::{self, Retry};
use baton_daemon_core::stake::Stake;

use crate::held::{Held, moment};
use crate::world::{Event, World};

/// No daemon that has something to lose is away for longer between two dials than it must be, and none for longer than this.
const LONGEST_MS: u64 = 60_000;
/// A relay that is back waits for last words a little longer than that.
const LAST_WORDS_MS: u64 = 5_000;

impl World {
    /// The stream is gone on this side; another is tried soon, while attempts go on.
    pub(crate) fn lost_conn(&mut self, index: usize) {
        let daemon = &mut self.daemons[index];
        daemon.conn = None;
        daemon.failures = 0;
        daemon.welcomed = false;
        daemon.life += 1;
        let long = self.options.long_outages && !self.healing && self.rng.chance(40);
        let worst = match (long, self.rng.chance(20)) {
            (true, true) => 300_000,
            (true, false) => 80_000,
            (false, _) => 2_000,
        };
        self.daemons[index].cut_off_until = self.now + self.rng.between(1, worst);
        self.dial_later(index, None);
    }

    /// Nobody answered, or a relay that is too busy asked for some patience.
    pub(crate) fn dialed_in_vain(&mut self, index: usize) {
        self.daemons[index].failures += 1;
        let busy = self.relay.core.is_some() && self.rng.chance(30);
        let wish = busy.then(|| Duration::from_millis(self.rng.between(100, 30_000)));
        self.dial_later(index, wish);
    }

    pub(crate) fn is_cut_off(&self, index: usize) -> bool {
        !self.healing && self.daemons[index].cut_off_until > self.now
    }

    fn dial_later(&mut self, index: usize, retry_after: Option<Duration>) {
        let random = self.rng.below(1_000) as f64 / 1_000.0;
        let daemon = &self.daemons[index];
        let stake = Stake::of(daemon.held.values().map(Held::at_stake));
        let retry = Retry {
            failures: daemon.failures,
            retry_after,
            shortest_lease: stake.lease_left(moment(self.now)),
            last_words: stake.last_words,
        };
        let wait = backoff::delay(retry, random).as_millis();
        let wait = u64::try_from(wait).unwrap_or(u64::MAX);
        self.judge_wait(index, wait, retry_after);
        self.counts.dials += 1;
        let life = self.daemons[index].life;
        let took = self.rng.between(1, 20);
        self.at(
            self.now + wait.saturating_add(took),
            Event::Connect {
                daemon: index,
                life,
            },
        );
    }

    /// L4: who could lose a lease comes back while most of it is left, and results are not kept from a relay that is back.
    fn judge_wait(&self, index: usize, wait: u64, retry_after: Option<Duration>) {
        let wish = retry_after.map_or(0, |wish| u64::try_from(wish.as_millis()).unwrap_or(0));
        assert!(
            wait <= LONGEST_MS + wish,
            "L4: d{index} waits for {wait} ms before it dials"
        );
        // Whoever wakes finds what its sleep has left, and may be ending it already.
        let slept = self.has_slept(index);
        let held = self.daemons[index].held.values();
        for held in held {
            let left = held.rights.until.saturating_sub(self.now);
            assert!(
                !held.alive || left == 0 || slept || wait <= left / 4,
                "L4: d{index} waits for {wait} ms, and the lease of {} has {left} left",
                held.re.attempt
            );
            assert!(
                !held.ended || held.alive || wait <= LAST_WORDS_MS + wish,
                "L4: d{index} waits for {wait} ms with the last words of {}",
                held.re.attempt
            );
        }
    }
}
