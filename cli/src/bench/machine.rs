//! What a run was measured on. A figure without its machine says nothing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::clock;
use crate::render::progress_line::format_size;

/// Syncs that are timed before a run.
const SYNC_SAMPLES: usize = 32;
const SYNC_BLOCK: [u8; 4096] = [0x5a; 4096];
pub(super) const TMPFS_MAGIC: i64 = 0x0102_1994;

#[derive(Clone, Debug)]
pub(crate) struct MachineInfo {
    cpu: String,
    cores: usize,
    memory_bytes: u64,
    kernel: String,
    filesystem: String,
    /// Median time of a 4 KiB write and its fdatasync where the relay's data is.
    sync_median: Duration,
    load_1m: String,
}

impl MachineInfo {
    /// Looks at this machine, and at the disk below `data`.
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
            // The relay has no switch that turns it off; how long it takes says whether the disk means it.
            "fdatasync": { "on": true, "medianMs": self.sync_ms() },
        })
    }

    pub(crate) fn lines(&self) -> [String; 2] {
        [
            format!(
                "machine: {}, {} cores, {} memory, {}, {}, load {}",
                self.cpu,
                self.cores,
                format_size(self.memory_bytes),
                self.kernel,
                self.filesystem,
                self.load_1m
            ),
            format!(
                "fdatasync: on for every commit; 4 KiB take {:.2} ms on this disk (median of {SYNC_SAMPLES})",
                self.sync_ms()
            ),
        ]
    }

    fn sync_ms(&self) -> f64 {
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

/// The type of what is mounted closest above `path`.
fn filesystem_type(mounts: &str, path: &Path) -> String {
    let mounted = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (point, kind) = (words.next()?, words.next()?);
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
    fn files_of_proc_are_read_by_name_and_the_closest_mount_counts() {
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
