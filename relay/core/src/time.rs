//! Time as an argument: monotonic time for decisions, wall time for display.

use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// A monotonic time in milliseconds since an arbitrary start of this process. It is never
/// stored, because it is meaningless after a restart. Records contain durations and consumed
/// budgets instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MonotonicTime(pub u64);

impl MonotonicTime {
    /// Milliseconds from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: MonotonicTime) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for MonotonicTime {
    type Output = MonotonicTime;
    fn add(self, ms: u64) -> MonotonicTime {
        MonotonicTime(self.0.saturating_add(ms))
    }
}

impl Sub<u64> for MonotonicTime {
    type Output = MonotonicTime;
    fn sub(self, ms: u64) -> MonotonicTime {
        MonotonicTime(self.0.saturating_sub(ms))
    }
}

/// Unix milliseconds, for display, retention and credential expiry only. A jump of the wall
/// clock changes no lease and no timer.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
pub struct WallTime(pub u64);

/// Both clocks, read once by the shell for each input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ClockReading {
    pub monotonic: MonotonicTime,
    pub wall: WallTime,
}

/// The only source of new ids, secrets and jitter for the core. The shell provides it; a
/// simulation provides a seeded one.
pub trait IdSource {
    fn new_id(&mut self) -> uuid::Uuid;
    fn new_secret(&mut self) -> [u8; 32];
    /// Uniform in `0..1_000_000`; used for jitter.
    fn jitter_millionths(&mut self) -> u32;
}
