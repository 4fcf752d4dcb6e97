//! What is at stake while there is no stream: it decides how long the link may wait before it dials again.

use std::time::Duration;

use crate::time::Moment;

/// A relay that is back looks for its attempts in vain for two heartbeats at least; one heartbeat of those is the
/// daemon's for dialing.
const LONGEST: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stake {
    /// The earliest limit of a lease that is held: it must be renewed before.
    pub lease: Option<Moment>,
    /// Attempts are over and the relay has not heard how: when it is back, it waits no longer than a short while
    /// before it gives them up and lets somebody else do their work again. The most of it that may pass unused.
    pub last_words: Option<Duration>,
}

/// What one attempt adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// It may run until then, unless it is renewed.
    Lease(Moment),
    /// Nothing runs any more, and the relay has not heard how it ended. The length of its last grant, if there was one.
    LastWords(Option<Duration>),
    Nothing,
}

impl Stake {
    pub fn of(shares: impl Iterator<Item = Share>) -> Self {
        shares.fold(Self::default(), |stake, share| match share {
            Share::Lease(limit) => Self {
                lease: earlier(stake.lease, limit),
                ..stake
            },
            Share::LastWords(ttl) => Self {
                last_words: earlier(stake.last_words, hurry(ttl)),
                ..stake
            },
            Share::Nothing => stake,
        })
    }

    /// What is left of the shortest lease that is held; one that is over hurries nobody.
    pub fn lease_left(&self, now: Moment) -> Option<Duration> {
        let left = now.until(self.lease?);
        (!left.is_zero()).then_some(left)
    }
}

/// Below the two heartbeats of a lease of this length, which are at most two thirds of it.
fn hurry(ttl: Option<Duration>) -> Duration {
    ttl.map_or(LONGEST, |ttl| (ttl / 4).min(LONGEST))
}

fn earlier<T: Ord>(one: Option<T>, other: T) -> Option<T> {
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
            let hurry = hurry(Some(Duration::from_secs(ttl)));
            assert_eq!(hurry, Duration::from_millis(at_most));
            let heartbeat = Duration::from_secs(5).min(Duration::from_secs(ttl) / 3);
            assert!(hurry <= heartbeat, "{ttl}");
        }
        assert_eq!(hurry(None), LONGEST);
    }
}
