//! Whether the machine has memory for more work. Below the configured floor new attempts are
//! refused, before the kernel has to kill running ones. Pure, except for `measure_machine`,
//! which reads the kernel's figures.

use std::fmt;
use std::fs;
use std::path::Path;

/// Bytes that programs may still use, and the total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AvailableMemory {
    pub(crate) available: u64,
    pub(crate) total: u64,
}

impl AvailableMemory {
    pub(crate) fn available_percent(self) -> u32 {
        let percent = u128::from(self.available) * 100 / u128::from(self.total.max(1));
        u32::try_from(percent.min(100)).unwrap_or(100)
    }
}

/// The load of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MachineUsage {
    pub(crate) memory: Option<AvailableMemory>,
    /// The average over a minute.
    pub(crate) load_1m: Option<f64>,
}

/// The last measurement, and how much memory must be available.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryMonitor {
    floor_percent: u32,
    latest: MachineUsage,
}

impl MemoryMonitor {
    pub(crate) fn new(floor_percent: u32) -> Self {
        Self {
            floor_percent,
            latest: measure_machine(),
        }
    }

    pub(crate) fn on_measured(&mut self, usage: MachineUsage) {
        self.latest = usage;
    }

    pub(crate) fn latest(&self) -> MachineUsage {
        self.latest
    }

    /// An unknown amount counts as enough.
    pub(crate) fn is_low(&self) -> bool {
        let percent = self.latest.memory.map(AvailableMemory::available_percent);
        percent.is_some_and(|percent| percent < self.floor_percent)
    }
}

impl fmt::Display for MemoryMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(memory_share) = self.latest.memory else {
            return write!(f, "the amount of available memory is unknown");
        };
        write!(
            f,
            "{} MiB of {} MiB of memory are available ({} %), and {} % are required for new work",
            memory_share.available >> 20,
            memory_share.total >> 20,
            memory_share.available_percent(),
            self.floor_percent
        )
    }
}

/// The current figures. A control group of this process may allow less than the machine has.
pub(crate) fn measure_machine() -> MachineUsage {
    let whole = fs::read_to_string("/proc/meminfo").ok();
    let whole = whole.as_deref().and_then(parse_meminfo);
    let group = own_control_group().and_then(|group| control_group_memory(Path::new(&group)));
    let smaller = |one: AvailableMemory, other: AvailableMemory| {
        if one.available <= other.available {
            one
        } else {
            other
        }
    };
    let memory = match (whole, group) {
        (Some(whole), Some(group)) => Some(smaller(group, whole)),
        (whole, group) => whole.or(group),
    };
    let load = fs::read_to_string("/proc/loadavg").ok();
    let load = load.as_deref().and_then(|text| text.split(' ').next());
    MachineUsage {
        memory,
        load_1m: load.and_then(|load| load.parse().ok()),
    }
}

fn parse_meminfo(meminfo: &str) -> Option<AvailableMemory> {
    let of = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    };
    Some(AvailableMemory {
        available: of("MemAvailable:")?,
        total: of("MemTotal:")?,
    })
}

/// The directory of this process's control group, when there is only one hierarchy.
fn own_control_group() -> Option<String> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(format!("/sys/fs/cgroup{path}"))
}

/// `None` without a limit. Cached files do not count as used, because the kernel can drop them.
fn control_group_memory(group: &Path) -> Option<AvailableMemory> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    let total: u64 = read("memory.max")?.trim().parse().ok()?;
    let current: u64 = read("memory.current")?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let cached = stat
        .lines()
        .find_map(|line| line.strip_prefix("inactive_file "));
    let cached: u64 = cached.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    Some(AvailableMemory {
        available: total.saturating_sub(current.saturating_sub(cached)),
        total,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_below_the_floor_is_low_and_an_unknown_amount_is_not() {
        let at = |available, floor_percent| MemoryMonitor {
            floor_percent,
            latest: MachineUsage {
                memory: Some(AvailableMemory {
                    available,
                    total: 1000 << 20,
                }),
                load_1m: None,
            },
        };
        assert!(!at(100 << 20, 10).is_low());
        let low = at((100 << 20) - 1, 10);
        assert!(low.is_low());
        assert!(
            low.to_string().contains("(9 %), and 10 % are required"),
            "{low}"
        );
        assert!(!at(0, 0).is_low(), "switched off");
        let mut unknown = at(0, 10);
        unknown.on_measured(MachineUsage::default());
        assert!(!unknown.is_low());
    }

    #[test]
    fn memory_figures_of_the_kernel_are_parsed() {
        let memory_share =
            parse_meminfo("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   250 kB\n");
        assert_eq!(memory_share.unwrap().available_percent(), 25);
        assert_eq!(parse_meminfo("MemTotal: 1000 kB\n"), None);
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        put("memory.max", "max\n");
        put("memory.current", "500\n");
        assert_eq!(control_group_memory(dir.path()), None, "no limit");
        put("memory.max", "1000\n");
        put("memory.stat", "anon 1\ninactive_file 100\n");
        assert_eq!(control_group_memory(dir.path()).unwrap().available, 600);
        assert!(measure_machine().memory.is_some());
    }
}
