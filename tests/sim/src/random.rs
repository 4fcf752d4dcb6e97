//! The only source of randomness: one seed gives one history. Also creates ids and secrets for
//! the core.

use baton_core::time::IdSource;
use uuid::Uuid;

/// Splitmix64: small, and good enough to choose faults.
#[derive(Clone, Debug)]
pub(crate) struct SeededRng(u64);

impl SeededRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x5ea1_ed00_b470_0000)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`; zero for zero.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next_u64() % n }
    }

    /// Uniform in `least..=most`.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least) + 1)
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// `None` for an empty slice.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let at = usize::try_from(self.below(from.len() as u64)).ok()?;
        from.get(at).copied()
    }

    pub(crate) fn random_index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }
}

/// Ids that increase with time, like UUIDv7, and never repeat across restarts of the relay.
#[derive(Debug)]
pub(crate) struct SeededIdSource {
    rng: SeededRng,
    count: u64,
}

impl SeededIdSource {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: SeededRng::new(seed.wrapping_mul(31)),
            count: 0,
        }
    }
}

impl IdSource for SeededIdSource {
    fn new_id(&mut self) -> Uuid {
        self.count += 1;
        Uuid::from_u64_pair(self.count, self.rng.next_u64())
    }

    fn new_secret(&mut self) -> [u8; 32] {
        self.count += 1;
        let mut secret = [0; 32];
        secret[..8].copy_from_slice(&self.count.to_be_bytes());
        secret[8..16].copy_from_slice(&self.rng.next_u64().to_be_bytes());
        secret
    }

    fn jitter_millionths(&mut self) -> u32 {
        u32::try_from(self.rng.below(1_000_000)).unwrap_or(0)
    }
}
