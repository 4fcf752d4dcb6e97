//! Delay before the next attempt to connect. Pure: the random number, the relay's retry-after
//! and the leases at risk are arguments.

use std::time::Duration;

/// Ceiling of the first delay.
const FIRST_CEILING: Duration = Duration::from_millis(500);
/// Upper bound of every ceiling.
const MAX_CEILING: Duration = Duration::from_secs(60);

/// Inputs of the next delay.
#[derive(Clone, Copy, Debug)]
pub struct ReconnectState {
    /// Failed attempts to connect since the last healthy session.
    pub failures: u32,
    /// Delay that the relay requested when it refused the daemon.
    pub retry_after: Option<Duration>,
    /// Time left on the shortest lease that is still held.
    pub shortest_lease: Option<Duration>,
    /// Longest time that a relay that is back may wait for unreported results.
    pub max_result_delay: Option<Duration>,
}

/// Full jitter under a doubling ceiling; `random` is uniform in `0.0..1.0`.
///
/// The relay's retry-after is a lower bound. A held lease overrides both: the daemon must
/// reconnect while there is still time to renew, so it waits at most a quarter of the remaining
/// lease. Unreported results keep the ceiling low, because a relay that comes back waits for
/// them only briefly.
pub fn reconnect_delay(retry: ReconnectState, random: f64) -> Duration {
    let result_ceiling = retry
        .max_result_delay
        .filter(|_| !mutant!(BackoffIgnoresLastWords));
    let ceiling = FIRST_CEILING
        .saturating_mul(1 << retry.failures.min(7))
        .min(result_ceiling.unwrap_or(MAX_CEILING))
        .min(MAX_CEILING);
    let jittered = ceiling.mul_f64(random.clamp(0.0, 1.0));
    let delay = retry
        .retry_after
        .map_or(jittered, |retry_after| retry_after.saturating_add(jittered));
    match retry.shortest_lease {
        Some(_) if mutant!(BackoffIgnoresLease) => delay,
        Some(left) => delay.min(left / 4),
        None => delay,
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
    fn retry_after_is_respected_unless_a_lease_would_expire() {
        let with_retry_after = ReconnectState {
            retry_after: Some(Duration::from_secs(20)),
            ..IDLE
        };
        assert!(reconnect_delay(with_retry_after, 0.0) >= Duration::from_secs(20));
        let holding = ReconnectState {
            shortest_lease: Some(Duration::from_secs(8)),
            ..with_retry_after
        };
        assert_eq!(reconnect_delay(holding, 0.9), Duration::from_secs(2));
        let ended = ReconnectState {
            shortest_lease: Some(Duration::ZERO),
            ..with_retry_after
        };
        assert_eq!(reconnect_delay(ended, 0.9), Duration::ZERO);
    }

    #[test]
    fn an_unreported_result_lowers_the_reconnect_ceiling() {
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
        let with_retry_after = ReconnectState {
            retry_after: Some(Duration::from_secs(20)),
            ..holding
        };
        assert!(reconnect_delay(with_retry_after, 0.0) >= Duration::from_secs(20));
    }
}
