//! The only file of the command line that reads clocks. Other code gets times as arguments.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Unix time in milliseconds, to show ages.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock seam of the command line"
)]
pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The monotonic time, to measure durations.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock seam of the command line"
)]
pub(crate) fn instant() -> Instant {
    Instant::now()
}
