//! How long to wait before the next connection attempt. Pure: the random number, the relay's wish and
//! the leases at stake are arguments.

use std::time::Duration;

/// Ceiling of the first wait.
const FIRST_CEILING: Duration = Duration::from_millis(500);
/// No ceiling grows beyond this.
const MAX_CEILING: Duration = Duration::from_secs(60);

/// What the next wait depends on.
#[derive(Clone, Copy, Debug)]
pub struct ReconnectState {
    /// Attempts to connect that failed since the last healthy session.
    pub failures: u32,
    /// What the relay asked for when it turned the daemon away.
    pub retry_after: Option<Duration>,
    /// Time left on the shortest lease that is still held.
    pub shortest_lease: Option<Duration>,
    /// The most that a relay which is back may be kept waiting for the last words of attempts.
    pub max_result_delay: Option<Duration>,
}

/// Full jitter under a doubling ceiling; `random` is uniform in `0.0..1.0`.
///
/// The relay's wish is a lower bound. A held lease beats both: reconnecting must happen while there is
/// still time to renew, so a quarter of what is left is the most that is waited. Results that nobody has heard keep the
/// ceiling low: a relay that comes back waits for them only a little.
pub fn reconnect_delay(retry: ReconnectState, random: f64) -> Duration {
    let hurried_by = retry
        .max_result_delay
        .filter(|_| !mutant!(BackoffIgnoresLastWords));
    let ceiling = FIRST_CEILING
        .saturating_mul(1 << retry.failures.min(7))
        .min(hurried_by.unwrap_or(MAX_CEILING))
        .min(MAX_CEILING);
    let jittered = ceiling.mul_f64(random.clamp(0.0, 1.0));
    let wished = retry
        .retry_after
        .map_or(jittered, |wish| wish.saturating_add(jittered));
    match retry.shortest_lease {
        Some(_) if mutant!(BackoffIgnoresLease) => wished,
        Some(left) => wished.min(left / 4),
        None => wished,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: ReconnectState = ReconnectState {
        failures: 0,
        retry_after: None,
        shortest_lease: None,
        max_result_delay: None,
    };

    #[test]
    fn ceiling_doubles_from_half_a_second_to_a_minute_and_jitter_is_full() {
        let ceilings: Vec<u128> = [0, 1, 2, 6, 7, 8, u32::MAX]
            .map(|failures| reconnect_delay(ReconnectState { failures, ..IDLE }, 1.0).as_millis())
            .to_vec();
        assert_eq!(
            ceilings,
            [500, 1_000, 2_000, 32_000, 60_000, 60_000, 60_000]
        );
        assert_eq!(
            reconnect_delay(
                ReconnectState {
                    failures: 9,
                    ..IDLE
                },
                0.0
            ),
            Duration::ZERO
        );
        assert_eq!(
            reconnect_delay(
                ReconnectState {
                    failures: 1,
                    ..IDLE
                },
                0.25
            ),
            Duration::from_millis(250)
        );
    }

    #[test]
    fn the_relays_wish_is_kept_unless_a_lease_would_run_out() {
        let asked = ReconnectState {
            retry_after: Some(Duration::from_secs(20)),
            ..IDLE
        };
        assert!(reconnect_delay(asked, 0.0) >= Duration::from_secs(20));
        let holding = ReconnectState {
            shortest_lease: Some(Duration::from_secs(8)),
            ..asked
        };
        assert_eq!(reconnect_delay(holding, 0.9), Duration::from_secs(2));
        let ended = ReconnectState {
            shortest_lease: Some(Duration::ZERO),
            ..asked
        };
        assert_eq!(reconnect_delay(ended, 0.9), Duration::ZERO);
    }

    #[test]
    fn a_result_that_nobody_has_heard_is_not_kept_for_a_minute() {
        let holding = ReconnectState {
            failures: 9,
            max_result_delay: Some(Duration::from_secs(5)),
            ..IDLE
        };
        assert_eq!(reconnect_delay(holding, 1.0), Duration::from_secs(5));
        let first = ReconnectState {
            failures: 0,
            ..holding
        };
        assert_eq!(reconnect_delay(first, 1.0), FIRST_CEILING);
        let asked = ReconnectState {
            retry_after: Some(Duration::from_secs(20)),
            ..holding
        };
        assert!(reconnect_delay(asked, 0.0) >= Duration::from_secs(20));
    }
}
