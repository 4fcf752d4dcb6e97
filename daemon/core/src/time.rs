//! The daemon's time line. `daemon/src/clock.rs` reads the clock.

use std::time::Duration;

/// A point in time in milliseconds since boot. It is never sent to another machine; shims on
/// the same machine use the same clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(u64);

impl BootTime {
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    pub const fn as_millis(self) -> u64 {
        self.0
    }

    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(whole_millis(wait)))
    }

    pub fn before(self, lead: Duration) -> Self {
        Self(self.0.saturating_sub(whole_millis(lead)))
    }

    /// Time left until `later`; zero once it has passed.
    pub fn until(self, later: Self) -> Duration {
        Duration::from_millis(later.0.saturating_sub(self.0))
    }
}

/// Milliseconds for messages and files; a longer duration is capped.
pub fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
