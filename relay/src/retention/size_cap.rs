//! The number of record bytes that may stay so that the database file keeps below its limit.
//!
//! sled writes a log. It reuses freed space but hardly ever shrinks the file, and the file size
//! per record byte depends on the writes (measured: 1.1 to 7). Removing records therefore does
//! not shrink the file; it only stops the growth. Below six tenths of the limit nothing is
//! done. Above that, the cap is the present amount of records, lowered by twice the share by
//! which the file still grows. While the file does not grow and is below eight tenths of the
//! limit, the cap slowly rises again. Pure.

/// Where the cap becomes active, where it stops rising, and its minimum, as fractions of the
/// limit.
const ACTIVE_FROM: (u64, u64) = (6, 10);
const NO_RISE_FROM: (u64, u64) = (8, 10);
const MIN_CAP: (u64, u64) = (1, 16);
/// How far the cap shrinks when the file grows, as a multiple of the file's growth.
const SHRINK_FACTOR: u64 = 2;
const SHRINK_FACTOR_FULL: u64 = 8;
/// A pass without growth raises the cap by this fraction of itself: 1.5 % a minute with four
/// passes a second.
const RISE_DIVISOR: u64 = 16_384;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordSizeCap {
    active: Option<CapState>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct CapState {
    cap: u64,
    /// The largest file size so far.
    file: u64,
}

impl RecordSizeCap {
    /// Takes the present size of the file and of its records, and returns how many record bytes
    /// are too many.
    pub(super) fn excess_bytes(&mut self, limit: u64, file: u64, records: u64) -> u64 {
        if file <= fraction(limit, ACTIVE_FROM) {
            self.active = None;
            return 0;
        }
        let state = self.active.get_or_insert(CapState { cap: records, file });
        state.adjust(limit, file, records);
        records.saturating_sub(state.cap)
    }
}

impl CapState {
    fn adjust(&mut self, limit: u64, file: u64, records: u64) {
        let full = file > fraction(limit, NO_RISE_FROM);
        let grown = file.saturating_sub(self.file);
        if grown > 0 {
            let times = if full {
                SHRINK_FACTOR_FULL
            } else {
                SHRINK_FACTOR
            };
            let less = u128::from(records) * u128::from(times * grown) / u128::from(file);
            self.cap = self
                .cap
                .saturating_sub(u64::try_from(less).unwrap_or(u64::MAX));
            self.file = file;
        } else if !full {
            self.cap += self.cap / RISE_DIVISOR;
        }
        self.cap = self
            .cap
            .clamp(fraction(limit, MIN_CAP), fraction(limit, ACTIVE_FROM));
    }
}

fn fraction(whole: u64, (numerator, denominator): (u64, u64)) -> u64 {
    whole / denominator * numerator
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const LIMIT: u64 = 1_000 * MIB;

    /// A file that never shrinks. It needs `times` bytes for each record byte, and 1 % more
    /// each time that all records have been replaced, up to 50 % more.
    struct SimulatedFile {
        times: f64,
        size: u64,
        written: u64,
    }

    impl SimulatedFile {
        fn write(&mut self, records: u64, added: u64) -> u64 {
            self.written += added;
            let turns = self.written as f64 / records.max(1) as f64;
            let spread = 1.0 + (turns / 100.0).min(0.5);
            let needs = (records as f64 * self.times * spread) as u64;
            self.size = self.size.max(needs);
            self.size
        }
    }

    #[test]
    fn the_file_stays_under_its_limit_for_any_size_per_record() {
        for times in [1.1, 2.5, 7.0] {
            let mut cap = RecordSizeCap::default();
            let mut file = SimulatedFile {
                times,
                size: 0,
                written: 0,
            };
            let (mut records, mut largest) = (0, 0);
            // Write ten times the limit, one hundredth of it in each pass.
            for _ in 0..1_000 {
                records += LIMIT / 100;
                let size = file.write(records, LIMIT / 100);
                assert!(size <= LIMIT, "{times}: {} MiB", size / MIB);
                records -= cap.excess_bytes(LIMIT, size, records);
                largest = largest.max(records);
            }
            let kept = records as f64 * times / LIMIT as f64;
            assert!(
                kept > 0.3,
                "{times}: more records were removed than necessary: {kept}"
            );
        }
    }

    #[test]
    fn nothing_is_removed_below_the_mark_or_without_growth() {
        let mut cap = RecordSizeCap::default();
        assert_eq!(cap.excess_bytes(LIMIT, 600 * MIB, 500 * MIB), 0);
        for _ in 0..10_000 {
            assert_eq!(cap.excess_bytes(LIMIT, 700 * MIB, 200 * MIB), 0);
        }
    }

    #[test]
    fn a_lowered_limit_applies_at_once_and_never_empties_the_store() {
        let mut cap = RecordSizeCap::default();
        let too_many = cap.excess_bytes(LIMIT, 5_000 * MIB, 4_000 * MIB);
        assert_eq!(too_many, 3_400 * MIB);
        let mut cap = RecordSizeCap::default();
        let mut file = 800 * MIB;
        for _ in 0..1_000 {
            file += 100 * MIB;
            cap.excess_bytes(LIMIT, file, 700 * MIB);
        }
        let too_many = cap.excess_bytes(LIMIT, file, 700 * MIB);
        assert_eq!(700 * MIB - too_many, fraction(LIMIT, MIN_CAP));
    }

    #[test]
    fn the_cap_rises_slowly_while_the_file_has_room() {
        let mut cap = RecordSizeCap::default();
        cap.excess_bytes(LIMIT, 700 * MIB, 100 * MIB);
        for _ in 0..4 * 3_600 {
            cap.excess_bytes(LIMIT, 700 * MIB, 100 * MIB);
        }
        assert_eq!(
            cap.excess_bytes(LIMIT, 700 * MIB, 200 * MIB),
            0,
            "the cap must have risen within an hour"
        );
        for _ in 0..3_600 {
            cap.excess_bytes(LIMIT, 950 * MIB, 200 * MIB);
        }
        assert!(
            cap.excess_bytes(LIMIT, 950 * MIB, 200 * MIB) > 0,
            "the cap must not rise while the file is nearly full"
        );
    }
}
