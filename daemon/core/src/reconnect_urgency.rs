//! What the daemon could lose while it has no stream. This decides how soon it must reconnect.

use std::time::Duration;

use crate::time::BootTime;

/// After a restart, the relay waits at least two heartbeats before it gives an attempt up. One
/// of them is left for connecting.
const MAX_RESULT_DELAY: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReconnectUrgency {
    /// The earliest limit of a held lease, which must be renewed before then.
    pub earliest_lease_limit: Option<BootTime>,
    /// Longest reconnect delay while finished attempts are unreported. A relay that is back
    /// waits only briefly before it gives such an attempt up and starts its work again.
    pub max_result_delay: Option<Duration>,
}

/// What one attempt adds to the urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptUrgency {
    /// It may run until this limit unless it is renewed.
    Lease(BootTime),
    /// It has ended, and the relay has no result yet. Holds the length of its last grant, if
    /// any.
    UnreportedResult(Option<Duration>),
    Nothing,
}

impl ReconnectUrgency {
    pub fn from_attempts(attempts: impl Iterator<Item = AttemptUrgency>) -> Self {
        attempts.fold(Self::default(), |urgency, attempt| match attempt {
            AttemptUrgency::Lease(limit) => Self {
                earliest_lease_limit: earliest(urgency.earliest_lease_limit, limit),
                ..urgency
            },
            AttemptUrgency::UnreportedResult(ttl) => Self {
                max_result_delay: earliest(urgency.max_result_delay, result_delay_limit(ttl)),
                ..urgency
            },
            AttemptUrgency::Nothing => urgency,
        })
    }

    /// Time left on the shortest held lease. An expired lease is not urgent any more.
    pub fn remaining_lease(&self, now: BootTime) -> Option<Duration> {
        let left = now.until(self.earliest_lease_limit?);
        (!left.is_zero()).then_some(left)
    }
}

/// At most one heartbeat interval of a lease of this length (a third of it).
fn result_delay_limit(ttl: Option<Duration>) -> Duration {
    ttl.map_or(MAX_RESULT_DELAY, |ttl| (ttl / 4).min(MAX_RESULT_DELAY))
}

fn earliest<T: Ord>(one: Option<T>, other: T) -> Option<T> {
    Some(match one {
        Some(one) => one.min(other),
        None => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_delay_stays_within_one_heartbeat_of_a_short_lease() {
        for (ttl, at_most) in [(5, 1_250), (12, 3_000), (30, 5_000), (86_400, 5_000)] {
            let delay = result_delay_limit(Some(Duration::from_secs(ttl)));
            assert_eq!(delay, Duration::from_millis(at_most));
            let heartbeat = Duration::from_secs(5).min(Duration::from_secs(ttl) / 3);
            assert!(delay <= heartbeat, "{ttl}");
        }
        assert_eq!(result_delay_limit(None), MAX_RESULT_DELAY);
    }
}
