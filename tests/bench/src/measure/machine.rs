//! The machine that a run was measured on. Figures are only comparable on the same machine.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::clock;

/// Number of fdatasync calls that are timed before a run.
pub const SYNC_SAMPLES: usize = 32;
const SYNC_BLOCK: [u8; 4096] = [0x5a; 4096];
pub(crate) const TMPFS_MAGIC: i64 = 0x0102_1994;

#[derive(Clone, Debug)]
pub struct MachineInfo {
    pub cpu: String,
    pub cores: usize,
    pub memory_bytes: u64,
    pub kernel: String,
    pub filesystem: String,
    /// Median time of a 4 KiB write and its fdatasync in the relay's data directory.
    sync_median: Duration,
    pub load_1m: String,
}

impl MachineInfo {
    /// Describes this machine and times the disk below `data`.
    pub(crate) fn measure(data: &Path) -> io::Result<Self> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let uname = rustix::system::uname();
        Ok(Self {
            cpu: proc_field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: parse_kib(&proc_field(&meminfo, "MemTotal").unwrap_or_default()) * 1024,
            kernel: format!(
                "{} {}",
                uname.sysname().to_string_lossy(),
                uname.release().to_string_lossy()
            ),
            filesystem: filesystem_type(&mounts, &fs::canonicalize(data)?),
            sync_median: measure_sync(data)?,
            load_1m: load.split(' ').next().unwrap_or("?").to_owned(),
        })
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "cpu": self.cpu,
            "cores": self.cores,
            "memoryBytes": self.memory_bytes,
            "kernel": self.kernel,
            "filesystem": self.filesystem,
            "load1m": self.load_1m,
            // Always on: the relay has no switch for it. The time shows whether the disk really
            // syncs.
            "fdatasync": { "on": true, "medianMs": self.sync_ms() },
        })
    }

    /// Median time of a 4 KiB write and its fdatasync, in milliseconds.
    pub fn sync_ms(&self) -> f64 {
        self.sync_median.as_secs_f64() * 1000.0
    }
}

fn proc_field(text: &str, name: &str) -> Option<String> {
    let value = |line: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    };
    text.lines().find_map(value)
}

fn parse_kib(value: &str) -> u64 {
    let number = value.split(' ').next().unwrap_or_default();
    number.parse().unwrap_or(0)
}

/// The type of the filesystem that `path` is on: the longest mount point above it.
fn filesystem_type(mounts: &str, path: &Path) -> String {
    let mounted = mounts.lines().filter_map(|line| {
        let mut columns = line.split(' ').skip(1);
        let (point, kind) = (columns.next()?, columns.next()?);
        path.starts_with(point).then_some((point.len(), kind))
    });
    let closest = mounted.max_by_key(|(depth, _)| *depth);
    closest
        .map_or("unknown filesystem", |(_, kind)| kind)
        .to_owned()
}

fn measure_sync(data: &Path) -> io::Result<Duration> {
    let path = data.join("sync-probe");
    let mut file = File::create(&path)?;
    let mut times = Vec::with_capacity(SYNC_SAMPLES);
    for _ in 0..SYNC_SAMPLES {
        let begun = clock::instant();
        file.write_all(&SYNC_BLOCK)?;
        rustix::fs::fdatasync(&file)?;
        times.push(clock::instant().duration_since(begun));
    }
    times.sort_unstable();
    fs::remove_file(path)?;
    Ok(times[SYNC_SAMPLES / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_fields_are_found_by_name_and_the_longest_mount_point_wins() {
        assert_eq!(
            proc_field("a : 1\nmodel name\t: Some CPU\n", "model name").unwrap(),
            "Some CPU"
        );
        assert_eq!(parse_kib("2048 kB"), 2048);
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n";
        assert_eq!(filesystem_type(mounts, Path::new("/tmp/x")), "tmpfs");
        assert_eq!(filesystem_type(mounts, Path::new("/var/x")), "ext4");
    }
}
