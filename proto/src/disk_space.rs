//! The free disk space that a server requires before it accepts more work. Relay and daemon
//! share one rule, so that operators have only one to learn.

/// The rule is one percent of the disk, but at least this much, so that running work can
/// finish.
const MIN_FREE_BYTES: u64 = 64 << 20;
/// The upper limit: running work does not need more space because the disk is large.
const MAX_FREE_BYTES: u64 = 512 << 20;

/// The threshold for a disk of `total` bytes. With less free space, no new work is accepted.
pub fn low_disk_space_threshold(total: u64) -> u64 {
    (total / 100).clamp(MIN_FREE_BYTES, MAX_FREE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_is_one_percent_between_64_and_512_mib() {
        const GIB: u64 = 1 << 30;
        assert_eq!(low_disk_space_threshold(0), 64 << 20);
        assert_eq!(low_disk_space_threshold(GIB), 64 << 20);
        assert_eq!(low_disk_space_threshold(20 * GIB), GIB / 5);
        assert_eq!(low_disk_space_threshold(250 * GIB), 512 << 20);
        assert_eq!(low_disk_space_threshold(u64::MAX), 512 << 20);
    }
}
