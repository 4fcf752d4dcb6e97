//! Durations in text: parses `30s` and `1h 30m`, prints `1.2s` and `3m 05s`.

use std::time::Duration;

/// Parses `30s`, `250ms`, `1h 30m`. The relay gets whole milliseconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write a duration like 30s, 250ms or 1h30m"))
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Formats with at most two units, for columns.
pub(crate) fn format_short(ms: u64) -> String {
    let seconds = ms / 1000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0 => format!("{ms}ms"),
        1..=59 => format!("{seconds}.{}s", ms % 1000 / 100),
        60..=3599 => format!("{minutes}m {:02}s", seconds % 60),
        3600..=86_399 => format!("{hours}h {:02}m", minutes % 60),
        _ => format!("{days}d {:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_and_bare_numbers_are_refused() {
        let ms = |text| parse(text).map(millis);
        assert_eq!(ms("30s"), Ok(30_000));
        assert_eq!(ms("250ms"), Ok(250));
        assert_eq!(ms("1h 30m"), Ok(5_400_000));
        assert_eq!(ms("0s"), Ok(0));
        for bad in ["", "30", "fast", "-1s", "10 parsecs"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn durations_are_shown_with_at_most_two_units() {
        let shown = [740, 1_250, 59_999, 65_000, 3_720_000, 90_000_000].map(format_short);
        assert_eq!(
            shown,
            ["740ms", "1.2s", "59.9s", "1m 05s", "1h 02m", "1d 01h"]
        );
    }
}
