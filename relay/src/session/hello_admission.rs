//! Rate limit for Hellos. After an outage all daemons reconnect at once, and each Hello costs
//! the dispatcher a write and a settlement. Heartbeats of daemons that are already back must
//! not wait behind ten thousand Hellos.
//!
//! There are two lanes, each with its own rate: daemons that hold attempts have leases to renew
//! and never wait behind idle daemons. A daemon with a short wait waits on its stream. A daemon
//! with a longer wait gets a time to reconnect; these times are spread at the same rate, so
//! that the daemons do not all return at once again.

use std::sync::{Arc, Mutex, PoisonError};

use baton_core::time::MonotonicTime;

use crate::config::HelloRates;

/// Longest wait on the stream. A daemon waits at least four seconds for the answer to its
/// Hello.
const STREAM_WAIT_MS: u64 = 3_000;
/// Longest time until a postponed daemon may reconnect.
const RETURN_WAIT_MS_MAX: u64 = 60_000;
/// Burst of a lane that was idle: the number of Hellos that it admits in this time.
const BURST_MS: u64 = 500;
/// Shortest time that a restart of the relay takes.
const RESTART_MS: u64 = 500;

/// The lane of a Hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelloClass {
    /// Its Hello lists attempts.
    Holder,
    Idle,
}

impl HelloClass {
    pub(super) fn from_holding(holds: bool) -> Self {
        if holds { Self::Holder } else { Self::Idle }
    }
}

/// The decision about one Hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdmissionDecision {
    /// Admit it at this time, which may be in the past.
    AdmitAt(MonotonicTime),
    /// Do not admit it. The daemon may reconnect after this many milliseconds.
    RetryAfter(u64),
}

/// Decides when Hellos are admitted. All sessions of a relay share it through clones.
#[derive(Clone, Debug)]
pub(crate) struct HelloAdmission(Arc<Mutex<AdmissionLanes>>);

impl HelloAdmission {
    pub(crate) fn new(rates: HelloRates) -> Self {
        Self(Arc::new(Mutex::new(AdmissionLanes::new(rates))))
    }

    pub(super) fn decide(&self, caller: HelloClass, now: MonotonicTime) -> AdmissionDecision {
        self.lanes(|lanes| lanes.lane_of(caller).decide(now))
    }

    /// When a daemon should reconnect whose stream ends now because the relay stops.
    pub(super) fn return_after_ms(&self, caller: HelloClass, now: MonotonicTime) -> u64 {
        self.lanes(|lanes| lanes.lane_of(caller).reserve_return_ms(now, RESTART_MS))
    }

    fn lanes<T>(&self, with: impl FnOnce(&mut AdmissionLanes) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[derive(Debug)]
struct AdmissionLanes {
    holders: AdmissionLane,
    idle: AdmissionLane,
}

impl AdmissionLanes {
    fn new(rates: HelloRates) -> Self {
        Self {
            holders: AdmissionLane::new(rates.holders_per_second),
            idle: AdmissionLane::new(rates.idle_per_second),
        }
    }

    fn lane_of(&mut self, caller: HelloClass) -> &mut AdmissionLane {
        match caller {
            HelloClass::Holder => &mut self.holders,
            HelloClass::Idle => &mut self.idle,
        }
    }
}

/// A token bucket, stored as the next free times. They are in microseconds, because a lane may
/// admit several Hellos in one millisecond.
#[derive(Debug)]
struct AdmissionLane {
    interval_us: u64,
    /// The next free time for a daemon that waits on its stream.
    next_turn_us: u64,
    /// The latest time that was given to a daemon for its reconnect.
    last_return_us: u64,
}

impl AdmissionLane {
    fn new(per_second: u32) -> Self {
        Self {
            interval_us: (1_000_000 / u64::from(per_second.max(1))).max(1),
            next_turn_us: 0,
            last_return_us: 0,
        }
    }

    fn decide(&mut self, now: MonotonicTime) -> AdmissionDecision {
        let now_us = now.0 * 1_000;
        let turn_us = self
            .next_turn_us
            .max(now_us.saturating_sub(BURST_MS * 1_000));
        if turn_us > now_us + STREAM_WAIT_MS * 1_000 {
            return AdmissionDecision::RetryAfter(
                self.reserve_return_ms(now, turn_us.saturating_sub(now_us) / 1_000),
            );
        }
        self.next_turn_us = turn_us + self.interval_us;
        AdmissionDecision::AdmitAt(MonotonicTime(turn_us.max(now_us).div_ceil(1_000)))
    }

    /// Reserves the next time for a reconnect, at least `least_ms` from now.
    fn reserve_return_ms(&mut self, now: MonotonicTime, least_ms: u64) -> u64 {
        let now_us = now.0 * 1_000;
        let at_us = (self.last_return_us + self.interval_us).max(now_us + least_ms * 1_000);
        if at_us > now_us + RETURN_WAIT_MS_MAX * 1_000 {
            return RETURN_WAIT_MS_MAX;
        }
        self.last_return_us = at_us;
        (at_us - now_us).div_ceil(1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: MonotonicTime = MonotonicTime(1_000_000);

    fn admission() -> HelloAdmission {
        HelloAdmission::new(HelloRates {
            holders_per_second: 1_000,
            idle_per_second: 500,
        })
    }

    /// Sends `count` Hellos at one time. Returns the waits on the stream and the times to
    /// reconnect.
    fn burst(admission: &HelloAdmission, caller: HelloClass, count: usize) -> (Vec<u64>, Vec<u64>) {
        let (mut waits, mut reconnects) = (Vec::new(), Vec::new());
        for _ in 0..count {
            match admission.decide(caller, NOW) {
                AdmissionDecision::AdmitAt(at) => waits.push(at.since(NOW)),
                AdmissionDecision::RetryAfter(ms) => reconnects.push(ms),
            }
        }
        (waits, reconnects)
    }

    #[test]
    fn a_burst_is_admitted_at_the_lanes_rate_and_the_rest_is_spread() {
        let admission = admission();
        let (waits, reconnects) = burst(&admission, HelloClass::Idle, 9_000);
        // The Hellos of half a second are admitted at once, those of three seconds wait on
        // their streams.
        assert_eq!(waits.iter().filter(|wait| **wait == 0).count(), 251);
        assert!((1_750..=1_752).contains(&waits.len()), "{}", waits.len());
        assert!(waits.iter().all(|wait| *wait <= STREAM_WAIT_MS) && waits.is_sorted());
        assert!(reconnects.iter().all(|ms| *ms >= STREAM_WAIT_MS) && reconnects.is_sorted());
        // The reconnects are spread, and all daemons are admitted long before a minute is over.
        let in_one_second = |from: u64| {
            reconnects
                .iter()
                .filter(move |ms| (from..from + 1_000).contains(*ms))
        };
        assert!(in_one_second(5_000).count() <= 500);
        assert!(
            reconnects.last().unwrap() < &20_000,
            "{:?}",
            reconnects.last()
        );
    }

    #[test]
    fn a_holder_never_waits_behind_idle_daemons() {
        let admission = admission();
        burst(&admission, HelloClass::Idle, 9_000);
        let (waits, reconnects) = burst(&admission, HelloClass::Holder, 1_000);
        assert!(reconnects.is_empty());
        assert!(waits.iter().max().unwrap() <= &500, "{:?}", waits.last());
    }

    #[test]
    fn daemons_that_reconnect_at_their_time_are_admitted() {
        let admission = admission();
        let (_, reconnects) = burst(&admission, HelloClass::Idle, 9_000);
        for ms in reconnects {
            let back = NOW + ms;
            let entry = admission.decide(HelloClass::Idle, back);
            assert!(
                matches!(entry, AdmissionDecision::AdmitAt(at) if at.since(back) <= 10),
                "{entry:?}"
            );
        }
    }

    #[test]
    fn a_postponed_daemon_waits_at_most_a_minute_and_an_idle_lane_resets() {
        let admission = admission();
        let (_, reconnects) = burst(&admission, HelloClass::Idle, 100_000);
        assert_eq!(reconnects.iter().max(), Some(&RETURN_WAIT_MS_MAX));
        assert_eq!(
            admission.decide(HelloClass::Idle, NOW + 3_600_000),
            AdmissionDecision::AdmitAt(NOW + 3_600_000)
        );
    }

    #[test]
    fn a_stopping_relay_spreads_the_reconnects() {
        let admission = admission();
        let back: Vec<u64> = (0..1_000)
            .map(|_| admission.return_after_ms(HelloClass::Idle, NOW))
            .collect();
        assert_eq!(back[0], RESTART_MS);
        assert!((2_490..=2_510).contains(&back[999]), "{}", back[999]);
        assert_eq!(
            admission.return_after_ms(HelloClass::Holder, NOW),
            RESTART_MS
        );
    }
}
