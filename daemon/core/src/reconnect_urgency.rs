//! What is at stake while there is no stream: it decides how long the link may wait before it dials again.

use std::time::Duration;

use crate::time::BootTime;

/// A relay that is back looks for its attempts in vain for two heartbeats at least; one heartbeat of those is the
/// daemon's for dialing.
const MAX_RESULT_DELAY: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReconnectUrgency {
    /// The earliest limit of a lease that is held: it must be renewed before.
    pub earliest_lease_limit: Option<BootTime>,
    /// Attempts are over and the relay has not heard how: when it is back, it waits no longer than a short while
    /// before it gives them up and lets somebody else do their work again. The most of it that may pass unused.
    pub max_result_delay: Option<Duration>,
}

/// What one attempt adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptUrgency {
    /// It may run until then, unless it is renewed.
    Lease(BootTime),
    /// Nothing runs any more, and the relay has not heard how it ended. The length of its last grant, if there was one.
    UnreportedResult(Option<Duration>),
    Nothing,
}

impl ReconnectUrgency {
    pub fn from_attempts(shares: impl Iterator<Item = AttemptUrgency>) -> Self {
        shares.fold(Self::default(), |stake, share| match share {
            AttemptUrgency::Lease(limit) => Self {
                earliest_lease_limit: earliest(stake.earliest_lease_limit, limit),
                ..stake
            },
            AttemptUrgency::UnreportedResult(ttl) => Self {
                max_result_delay: earliest(stake.max_result_delay, result_delay_limit(ttl)),
                ..stake
            },
            AttemptUrgency::Nothing => stake,
        })
    }

    /// What is left of the shortest lease that is held; one that is over hurries nobody.
    pub fn remaining_lease(&self, now: BootTime) -> Option<Duration> {
        let left = now.until(self.earliest_lease_limit?);
        (!left.is_zero()).then_some(left)
    }
}

/// Below the two heartbeats of a lease of this length, which are at most two thirds of it.
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
    fn last_words_of_a_short_lease_are_told_within_its_two_heartbeats() {
        for (ttl, at_most) in [(5, 1_250), (12, 3_000), (30, 5_000), (86_400, 5_000)] {
            let hurry = result_delay_limit(Some(Duration::from_secs(ttl)));
            assert_eq!(hurry, Duration::from_millis(at_most));
            let heartbeat = Duration::from_secs(5).min(Duration::from_secs(ttl) / 3);
            assert!(hurry <= heartbeat, "{ttl}");
        }
        assert_eq!(result_delay_limit(None), MAX_RESULT_DELAY);
    }
}
