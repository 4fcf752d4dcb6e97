//! Fresh ids, secrets and jitter for the core: the relay's only randomness.

use std::sync::{Arc, Mutex};

use baton_core::time::IdSource;
use rand::{Rng, RngCore};
use uuid::{ContextV7, Timestamp, Uuid};

use crate::clock::RelayClock;

/// Ids that rise in the order of creation (UUIDv7). Lists, the queue after a restart and the
/// import rely on that order. A wall clock that is set back must not change it, so ids then
/// continue from the last time used. Ascending keys also halve the store's size and work.
/// Clones share one order.
#[derive(Clone, Debug)]
pub(crate) struct OrderedIds {
    clock: RelayClock,
    last: Arc<Mutex<ContextV7>>,
}

impl OrderedIds {
    /// Ids above `newest`, the newest id created by earlier runs.
    pub(crate) fn starting_above(newest: Option<Uuid>, clock: RelayClock) -> Self {
        let ids = Self {
            clock,
            last: Arc::new(Mutex::new(ContextV7::new())),
        };
        if let Some(made_at) = newest.and_then(|id| id.get_timestamp()) {
            let (seconds, nanos) = made_at.to_unix();
            // The order within the millisecond is unknown, so continue with the next one.
            let _used = ids.id_at(seconds * 1_000 + u64::from(nanos) / 1_000_000 + 1);
        }
        ids
    }

    pub(crate) fn next_id(&self) -> Uuid {
        self.id_at(self.clock.now().wall.0)
    }

    fn id_at(&self, wall_ms: u64) -> Uuid {
        let nanos = u32::try_from(wall_ms % 1_000).unwrap_or(0) * 1_000_000;
        Uuid::new_v7(Timestamp::from_unix(&*self.last, wall_ms / 1_000, nanos))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SystemIdSource {
    pub(crate) ids: OrderedIds,
}

impl IdSource for SystemIdSource {
    fn new_id(&mut self) -> Uuid {
        self.ids.next_id()
    }

    fn new_secret(&mut self) -> [u8; 32] {
        let mut secret = [0; 32];
        rand::rng().fill_bytes(&mut secret);
        secret
    }

    fn jitter_millionths(&mut self) -> u32 {
        rand::rng().random_range(0..1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A_DAY_MS: i64 = 24 * 60 * 60 * 1_000;

    #[test]
    fn ids_rise_over_wall_clock_jumps_and_restarts() {
        let (clock, control) = RelayClock::controlled();
        let mut made = Vec::new();
        for jump in [0, A_DAY_MS, -2 * A_DAY_MS, A_DAY_MS / 2] {
            let ids = OrderedIds::starting_above(made.last().copied(), clock.clone());
            made.extend([ids.next_id(), ids.next_id()]);
            control.jump_wall(jump);
            made.extend([ids.clone().next_id(), ids.next_id()]);
        }
        let rising = made.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(rising, "{made:?}");
    }

    #[test]
    fn ids_of_a_new_relay_contain_their_creation_time() {
        let (clock, _) = RelayClock::controlled();
        let before = clock.now().wall.0;
        let (seconds, nanos) = OrderedIds::starting_above(None, clock.clone())
            .next_id()
            .get_timestamp()
            .unwrap()
            .to_unix();
        let made = seconds * 1_000 + u64::from(nanos) / 1_000_000;
        assert!((before..=clock.now().wall.0).contains(&made));
    }
}
