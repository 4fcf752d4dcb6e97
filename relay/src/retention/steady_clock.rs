//! The time that ages are computed from: the wall clock, unless it jumps far ahead of the
//! monotonic clock. A clock set to another year by mistake must not make everything old enough
//! to remove. A restart accepts the wall clock again. Pure.

use baton_core::time::{ClockReading, MonotonicTime, WallTime};

/// An ordinary clock correction is smaller than this.
const LEAP_MS: u64 = 60 * 60 * 1_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct SteadyWallClock {
    at: MonotonicTime,
    wall: WallTime,
    leapt: bool,
}

impl SteadyWallClock {
    pub(super) fn new(now: ClockReading) -> Self {
        Self {
            at: now.monotonic,
            wall: now.wall,
            leapt: false,
        }
    }

    pub(super) fn now(&mut self, now: ClockReading) -> WallTime {
        let expected = WallTime(self.wall.0.saturating_add(now.monotonic.since(self.at)));
        let leaps = now.wall.0 > expected.0.saturating_add(LEAP_MS);
        if leaps && !self.leapt {
            tracing::warn!(
                ahead_ms = now.wall.0 - expected.0,
                "wall clock jumped ahead; retention ignores the jump until the relay restarts"
            );
        }
        self.leapt = leaps;
        (self.at, self.wall) = (now.monotonic, if leaps { expected } else { now.wall });
        self.wall
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(at: u64, wall: u64) -> ClockReading {
        ClockReading {
            monotonic: MonotonicTime(at),
            wall: WallTime(wall),
        }
    }

    #[test]
    fn clock_corrections_are_accepted_and_large_jumps_are_not() {
        let mut steady = SteadyWallClock::new(now(0, 1_000_000));
        assert_eq!(steady.now(now(10, 1_000_010)), WallTime(1_000_010));
        assert_eq!(
            steady.now(now(20, 1_060_000)),
            WallTime(1_060_000),
            "corrected"
        );
        assert_eq!(steady.now(now(30, 900_000)), WallTime(900_000), "set back");
        let year = 365 * 24 * LEAP_MS;
        assert_eq!(steady.now(now(40, 900_000 + year)), WallTime(900_010));
        assert_eq!(steady.now(now(50, 900_010 + year)), WallTime(900_020));
        assert_eq!(
            steady.now(now(60, 900_030)),
            WallTime(900_030),
            "corrected again"
        );
    }
}
