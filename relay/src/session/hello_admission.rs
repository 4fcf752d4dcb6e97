//! How fast daemons are let in. After an outage all of them return at once, and each Hello costs the dispatcher a write and
//! a settlement; heartbeats of those who are back must not wait behind ten thousand of them.
//!
//! Two lanes, each with its own pace: daemons that hold attempts have leases to save and never wait behind idle ones.
//! Whoever comes a little too early waits on its stream; whoever would wait longer is told when to come back, and those
//! moments are spread at the same pace, so that the storm does not come twice.

use std::sync::{Arc, Mutex, PoisonError};

use baton_core::time::MonotonicTime;

use crate::config::HelloRates;

/// Longest wait on the stream. A daemon gives the answer to its Hello at least four seconds.
const STREAM_WAIT_MS: u64 = 3_000;
/// Longest time that anybody is sent away for.
const RETURN_WAIT_MS_MAX: u64 = 60_000;
/// A lane that was quiet lets in this much at once: what it lets in within half a second.
const BURST_MS: u64 = 500;
/// A relay that stops is not back earlier than this.
const RESTART_MS: u64 = 500;

/// What a daemon is at stake for.
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

/// The answer to one who wants in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdmissionDecision {
    /// Its turn is at this moment, which may have come already.
    AdmitAt(MonotonicTime),
    /// Not now: come back after this many milliseconds.
    RetryAfter(u64),
}

/// Shared by all sessions of a relay. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct HelloAdmission(Arc<Mutex<AdmissionLanes>>);

impl HelloAdmission {
    pub(crate) fn new(rates: HelloRates) -> Self {
        Self(Arc::new(Mutex::new(AdmissionLanes::new(rates))))
    }

    pub(super) fn decide(&self, caller: HelloClass, now: MonotonicTime) -> AdmissionDecision {
        self.lanes(|lanes| lanes.lane_of(caller).decide(now))
    }

    /// When one that is sent home now, because the relay stops, should be back.
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

/// A token bucket, kept as the moments that are given away. In microseconds: several may come in one millisecond.
#[derive(Debug)]
struct AdmissionLane {
    interval_us: u64,
    /// The next turn on the stream.
    next_turn_us: u64,
    /// The last moment that somebody was told to come back at.
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

    /// Gives away the next moment to come back at, no earlier than in `least_ms`.
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

    /// How long each of a crowd that comes at one moment waits on its stream, and how long those sent away stay away.
    fn crowd(admission: &HelloAdmission, caller: HelloClass, count: usize) -> (Vec<u64>, Vec<u64>) {
        let (mut waits, mut away) = (Vec::new(), Vec::new());
        for _ in 0..count {
            match admission.decide(caller, NOW) {
                AdmissionDecision::AdmitAt(at) => waits.push(at.since(NOW)),
                AdmissionDecision::RetryAfter(ms) => away.push(ms),
            }
        }
        (waits, away)
    }

    #[test]
    fn a_crowd_is_let_in_at_the_lanes_pace_and_the_rest_is_spread_behind_it() {
        let admission = admission();
        let (waits, away) = crowd(&admission, HelloClass::Idle, 9_000);
        // Half a second's worth at once, three seconds' worth on their streams.
        assert_eq!(waits.iter().filter(|wait| **wait == 0).count(), 251);
        assert!((1_750..=1_752).contains(&waits.len()), "{}", waits.len());
        assert!(waits.iter().all(|wait| *wait <= STREAM_WAIT_MS) && waits.is_sorted());
        assert!(away.iter().all(|ms| *ms >= STREAM_WAIT_MS) && away.is_sorted());
        // Nobody comes back in a second storm, and all are in long before a minute is over.
        let in_one_second = |from: u64| {
            away.iter()
                .filter(move |ms| (from..from + 1_000).contains(*ms))
        };
        assert!(in_one_second(5_000).count() <= 500);
        assert!(away.last().unwrap() < &20_000, "{:?}", away.last());
    }

    #[test]
    fn a_holder_never_waits_behind_idle_daemons() {
        let admission = admission();
        crowd(&admission, HelloClass::Idle, 9_000);
        let (waits, away) = crowd(&admission, HelloClass::Holder, 1_000);
        assert!(away.is_empty());
        assert!(waits.iter().max().unwrap() <= &500, "{:?}", waits.last());
    }

    #[test]
    fn those_who_come_back_when_told_are_let_in() {
        let admission = admission();
        let (_, away) = crowd(&admission, HelloClass::Idle, 9_000);
        for ms in away {
            let back = NOW + ms;
            let entry = admission.decide(HelloClass::Idle, back);
            assert!(
                matches!(entry, AdmissionDecision::AdmitAt(at) if at.since(back) <= 10),
                "{entry:?}"
            );
        }
    }

    #[test]
    fn nobody_is_sent_away_for_more_than_a_minute_and_a_quiet_lane_forgets() {
        let admission = admission();
        let (_, away) = crowd(&admission, HelloClass::Idle, 100_000);
        assert_eq!(away.iter().max(), Some(&RETURN_WAIT_MS_MAX));
        assert_eq!(
            admission.decide(HelloClass::Idle, NOW + 3_600_000),
            AdmissionDecision::AdmitAt(NOW + 3_600_000)
        );
    }

    #[test]
    fn a_relay_that_stops_spreads_the_return() {
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
