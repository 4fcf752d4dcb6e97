//! The only file of this crate that reads a clock.

use std::time::{Duration, Instant};

/// The current time, for measuring how long something took.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock seam of the load generator"
)]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
