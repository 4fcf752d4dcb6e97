//! Wall times on the wire. They are for display, retention and credential expiry only; no lease
//! or deadline depends on them.

use prost_types::Timestamp;

/// Milliseconds since 1970 as a wire timestamp.
pub fn timestamp_from_ms(unix_ms: u64) -> Timestamp {
    let seconds =
        i64::try_from(unix_ms / 1_000).expect("u64 milliseconds divided by 1000 fit in i64");
    let nanos = i32::try_from(unix_ms % 1_000 * 1_000_000)
        .expect("less than a second of nanoseconds fits in i32");
    Timestamp { seconds, nanos }
}

/// Milliseconds since 1970. Earlier times become 0, and invalid nanoseconds are clamped.
pub fn timestamp_to_ms(time: &Timestamp) -> u64 {
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    let millis = u64::try_from(time.nanos).unwrap_or(0).min(999_999_999) / 1_000_000;
    seconds.saturating_mul(1_000).saturating_add(millis)
}
