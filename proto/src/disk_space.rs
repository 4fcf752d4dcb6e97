//! How much of its disk a server wants free before it takes more work: one rule for relays and daemons, so that an operator
//! has to know one. Pure.

/// A hundredth of the disk, but at least this much: what runs has to finish in it.
const MIN_FREE_BYTES: u64 = 64 << 20;
/// And at most this much: what runs does not need more because the disk is large.
const MAX_FREE_BYTES: u64 = 512 << 20;

/// Less free space than this, on a disk of `total` bytes, and no new work is taken.
pub fn low_disk_space_threshold(total: u64) -> u64 {
    (total / 100).clamp(MIN_FREE_BYTES, MAX_FREE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_a_hundredth_between_64_and_512_mib() {
        const GIB: u64 = 1 << 30;
        assert_eq!(low_disk_space_threshold(0), 64 << 20);
        assert_eq!(low_disk_space_threshold(GIB), 64 << 20);
        assert_eq!(low_disk_space_threshold(20 * GIB), GIB / 5);
        assert_eq!(low_disk_space_threshold(250 * GIB), 512 << 20);
        assert_eq!(low_disk_space_threshold(u64::MAX), 512 << 20);
    }
}
