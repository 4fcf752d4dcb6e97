//! Whether the worker's disk can store more. Pure. A full disk is a state and not an error: new
//! work is refused before the disk is full, attempts whose frames cannot be stored fail and are
//! reported from memory, and the daemon goes on when there is room again.

use std::fmt;

use baton_proto::low_disk_space_threshold;

/// The state of the disk under the data directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskState {
    #[default]
    Fine,
    /// There is little room: running attempts go on, new work is refused.
    Low,
    /// A write failed: new work is refused until one succeeds.
    Failing,
}

impl fmt::Display for DiskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fine => "there is enough room",
            Self::Low => "the disk under the data directory is nearly full",
            Self::Failing => "the disk under the data directory refuses writes",
        })
    }
}

/// Bytes that this process may still write, and the size of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeSpace {
    pub(crate) free: u64,
    pub(crate) total: u64,
}

impl FreeSpace {
    pub(crate) fn free_percent(self) -> u32 {
        let percent = u128::from(self.free) * 100 / u128::from(self.total.max(1));
        u32::try_from(percent.min(100)).unwrap_or(100)
    }

    fn required_free(self) -> u64 {
        low_disk_space_threshold(self.total)
    }
}

/// The last measurement and whether writes fail.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskMonitor {
    /// `None` until the first measurement.
    space: Option<FreeSpace>,
    failing: bool,
}

impl DiskMonitor {
    pub(crate) fn state(&self) -> DiskState {
        let low = self
            .space
            .is_some_and(|space| space.free < space.required_free());
        match (self.failing, low) {
            (true, _) => DiskState::Failing,
            (false, true) => DiskState::Low,
            (false, false) => DiskState::Fine,
        }
    }

    pub(crate) fn space(&self) -> Option<FreeSpace> {
        self.space
    }

    pub(crate) fn on_write_failed(&mut self) {
        self.failing = true;
    }

    /// A measurement, with the result of a probe write if one was needed.
    pub(crate) fn on_measured(&mut self, space: Option<FreeSpace>, is_writable: bool) {
        self.space = space.or(self.space);
        if !is_writable {
            self.failing = true;
        } else if self
            .space
            .is_none_or(|space| space.free >= space.required_free())
        {
            self.failing = false;
        }
    }
}

impl fmt::Display for DiskMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.state())?;
        match self.space {
            Some(space) => write!(
                f,
                ": {} MiB of {} MiB are free and {} MiB are required",
                space.free >> 20,
                space.total >> 20,
                space.required_free() >> 20
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn looked(free: u64, total: u64) -> DiskMonitor {
        let mut disk = DiskMonitor::default();
        disk.on_measured(Some(FreeSpace { free, total }), true);
        disk
    }

    #[test]
    fn the_disk_is_low_by_the_shared_threshold() {
        assert_eq!(DiskMonitor::default().state(), DiskState::Fine);
        let threshold = low_disk_space_threshold(GIB);
        assert_eq!(looked(threshold, GIB).state(), DiskState::Fine);
        assert_eq!(looked(threshold - 1, GIB).state(), DiskState::Low);
        assert_eq!(looked(GIB, 1000 * GIB).state(), DiskState::Fine);
        let full = looked(5 << 20, 96 << 20);
        let text = full.to_string();
        assert!(
            text.contains("5 MiB of 96 MiB are free and 64 MiB are required"),
            "{text}"
        );
        assert_eq!(full.space().unwrap().free_percent(), 5);
    }

    #[test]
    fn a_failed_write_counts_until_one_succeeds_with_enough_room() {
        let mut disk = looked(GIB, GIB);
        disk.on_write_failed();
        assert_eq!(disk.state(), DiskState::Failing);
        disk.on_measured(
            Some(FreeSpace {
                free: 1,
                total: GIB,
            }),
            true,
        );
        assert_eq!(disk.state(), DiskState::Failing, "one write is not room");
        let roomy = Some(FreeSpace {
            free: GIB,
            total: GIB,
        });
        disk.on_measured(roomy, false);
        assert_eq!(disk.state(), DiskState::Failing);
        disk.on_measured(roomy, true);
        assert_eq!(disk.state(), DiskState::Fine);
    }
}
