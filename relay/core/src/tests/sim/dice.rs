//! Chance from a seed: a failing history is found again by its number (`BATON_SEEDS` says how many are tried).

/// xorshift: small, seeded, the same everywhere.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % most
    }

    /// Once in so many throws.
    pub(super) fn one_in(&mut self, throws: u64) -> bool {
        self.below(throws) == 0
    }
}
