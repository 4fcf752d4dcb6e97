//! Fresh ids, secrets and jitter for the core: the relay's only randomness.

use baton_core::time::Mint;
use rand::{Rng, RngCore};
use uuid::Uuid;

/// Ids in time order (UUIDv7): keys that arrive in order halve the store's size and work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SystemMint;

impl Mint for SystemMint {
    fn id(&mut self) -> Uuid {
        Uuid::now_v7()
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
