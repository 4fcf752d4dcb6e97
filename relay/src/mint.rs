//! Fresh ids, secrets and jitter for the core: the relay's only randomness.

use std::sync::{Arc, Mutex};

use baton_core::time::Mint;
use rand::{Rng, RngCore};
use uuid::{ContextV7, Timestamp, Uuid};

use crate::clock::Clock;

/// Ids that rise in the order of their making (UUIDv7). Lists, the queue after a restart and what an import holds back
/// go by that order, so a wall clock that is set back must not change it: then the last time that was used counts on.
/// Keys that arrive in order also halve the store's size and work. Clones share one order.
#[derive(Clone, Debug)]
pub(crate) struct Ids {
    clock: Clock,
    last: Arc<Mutex<ContextV7>>,
}

impl Ids {
    /// Above `newest`, the newest that earlier runs have made.
    pub(crate) fn above(newest: Option<Uuid>, clock: Clock) -> Self {
        let ids = Self {
            clock,
            last: Arc::new(Mutex::new(ContextV7::new())),
        };
        if let Some(made_at) = newest.and_then(|id| id.get_timestamp()) {
            let (seconds, nanos) = made_at.to_unix();
            // Within its millisecond it may have been any.
            let _used = ids.made_at(seconds * 1_000 + u64::from(nanos) / 1_000_000 + 1);
        }
        ids
    }

    pub(crate) fn fresh(&self) -> Uuid {
        self.made_at(self.clock.now().wall.0)
    }

    fn made_at(&self, wall_ms: u64) -> Uuid {
        let nanos = u32::try_from(wall_ms % 1_000).unwrap_or(0) * 1_000_000;
        Uuid::new_v7(Timestamp::from_unix(&*self.last, wall_ms / 1_000, nanos))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SystemMint {
    pub(crate) ids: Ids,
}

impl Mint for SystemMint {
    fn id(&mut self) -> Uuid {
        self.ids.fresh()
    }

    fn secret(&mut self) -> [u8; 32] {
        let mut secret = [0; 32];
        rand::rng().fill_bytes(&mut secret);
        secret
    }

    fn millionth(&mut self) -> u32 {
        rand::rng().random_range(0..1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A_DAY_MS: i64 = 24 * 60 * 60 * 1_000;

    #[test]
    fn ids_rise_whatever_the_wall_clock_does_and_over_a_restart() {
        let (clock, control) = Clock::controlled();
        let mut made = Vec::new();
        for jump in [0, A_DAY_MS, -2 * A_DAY_MS, A_DAY_MS / 2] {
            let ids = Ids::above(made.last().copied(), clock.clone());
            made.extend([ids.fresh(), ids.fresh()]);
            control.jump_wall(jump);
            made.extend([ids.clone().fresh(), ids.fresh()]);
        }
        let rising = made.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(rising, "{made:?}");
    }

    #[test]
    fn ids_of_a_new_relay_tell_when_they_were_made() {
        let (clock, _) = Clock::controlled();
        let before = clock.now().wall.0;
        let (seconds, nanos) = Ids::above(None, clock.clone())
            .fresh()
            .get_timestamp()
            .unwrap()
            .to_unix();
        let made = seconds * 1_000 + u64::from(nanos) / 1_000_000;
        assert!((before..=clock.now().wall.0).contains(&made));
    }
}
