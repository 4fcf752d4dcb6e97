//! The relay under measurement, as a child process, so that its memory and processor time are
//! separate from the load generator's.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;

use crate::error::BenchError;

/// Text before the address in the line that a started relay prints.
pub const LISTENING_ON: &str = "listening on ";
/// File in the relay's data directory with the token of its first administrator.
pub const ADMIN_TOKEN_FILE: &str = "admin.token";

const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(60);
const LOG_TAIL_LINES: usize = 20;
/// USER_HZ, the unit of processor times in /proc; it does not depend on the kernel's own tick.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug)]
pub(crate) struct MeasuredRelay {
    pub url: String,
    child: Child,
    data: PathBuf,
    log_tail: Arc<Mutex<VecDeque<String>>>,
    last_cpu_seconds: f64,
}

/// How the relay is started; a restart uses the same command.
#[derive(Clone, Debug)]
pub(crate) struct RelayStartCommand {
    /// The baton executable to start.
    pub program: PathBuf,
    pub arguments: Vec<String>,
}

impl MeasuredRelay {
    /// Starts the relay on a free loopback port and waits until it listens.
    pub(crate) async fn start(data: &Path, start: &RelayStartCommand) -> Result<Self, BenchError> {
        let mut child = Command::new(&start.program)
            .args(["relay", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .args(&start.arguments)
            .env_remove("OTEL_EXPORTER_OTLP_ENDPOINT")
            .env_remove("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| BenchError::local("start the relay", error))?;
        let stderr = child.stderr.take().expect("stderr is piped just above");
        let log_tail = Arc::new(Mutex::new(VecDeque::new()));
        let mut lines = BufReader::new(stderr).lines();
        let url = timeout(START_LIMIT, read_listen_address(&mut lines, &log_tail)).await;
        let Ok(Some(url)) = url else {
            return Err(BenchError::local(
                "the relay did not start",
                log_text(&log_tail),
            ));
        };
        tokio::spawn(collect_log_tail(lines, log_tail.clone()));
        Ok(Self {
            url,
            child,
            data: data.to_owned(),
            log_tail,
            last_cpu_seconds: 0.0,
        })
    }

    pub(crate) fn admin_token(&self) -> Result<String, BenchError> {
        let path = self.data.join(ADMIN_TOKEN_FILE);
        let token = fs::read_to_string(&path)
            .map_err(|error| BenchError::local(format!("read {}", path.display()), error))?;
        Ok(token.trim().to_owned())
    }

    /// Current and peak memory, and processor time since the previous call.
    pub(crate) fn usage(&mut self) -> ProcessUsage {
        let pid = self.child.id().unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let cpu = cpu_ticks(&stat) as f64 / TICKS_PER_SECOND;
        let before = std::mem::replace(&mut self.last_cpu_seconds, cpu);
        ProcessUsage {
            resident: status_bytes(&status, "VmRSS:"),
            peak: status_bytes(&status, "VmHWM:"),
            cpu_seconds: cpu - before,
        }
    }

    /// Allocated bytes of the data directory.
    pub(crate) fn disk_bytes(&self) -> u64 {
        allocated_bytes(&self.data).unwrap_or(0)
    }

    /// Sends SIGKILL and waits until the process has ended.
    pub(crate) async fn kill(mut self) -> Result<(), BenchError> {
        let killed = self.child.kill().await;
        killed.map_err(|error| BenchError::local("kill the relay", error))
    }

    /// Stops the relay cleanly with SIGTERM.
    pub(crate) async fn stop(mut self) -> Result<(), BenchError> {
        let pid = self
            .child
            .id()
            .and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid {
            kill_process(pid, Signal::TERM).map_err(|e| BenchError::local("stop the relay", e))?;
        }
        match timeout(STOP_LIMIT, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(_) | Err(_) => Err(BenchError::local(
                "the relay did not stop cleanly",
                log_text(&self.log_tail),
            )),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessUsage {
    pub resident: u64,
    pub peak: u64,
    /// User and system time together.
    pub cpu_seconds: f64,
}

async fn read_listen_address(
    lines: &mut Lines<BufReader<ChildStderr>>,
    log_tail: &Mutex<VecDeque<String>>,
) -> Option<String> {
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some((_, rest)) = line.split_once(LISTENING_ON) {
            return rest.split([',', ' ']).next().map(str::to_owned);
        }
        push_log_line(log_tail, line);
    }
    None
}

async fn collect_log_tail(
    mut lines: Lines<BufReader<ChildStderr>>,
    log_tail: Arc<Mutex<VecDeque<String>>>,
) {
    while let Ok(Some(line)) = lines.next_line().await {
        push_log_line(&log_tail, line);
    }
}

fn push_log_line(log_tail: &Mutex<VecDeque<String>>, line: String) {
    let mut tail = log_tail.lock().expect("no code panics under this lock");
    if tail.len() == LOG_TAIL_LINES {
        tail.pop_front();
    }
    tail.push_back(line);
}

fn log_text(log_tail: &Mutex<VecDeque<String>>) -> String {
    let tail = log_tail.lock().expect("no code panics under this lock");
    let lines: Vec<&str> = tail.iter().map(String::as_str).collect();
    if lines.is_empty() {
        "it printed no log line".to_owned()
    } else {
        lines.join(" | ")
    }
}

fn status_bytes(status: &str, field: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Fields 14 and 15 of /proc/PID/stat, counted after the name because that may contain spaces.
fn cpu_ticks(stat: &str) -> u64 {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields = after_name.split_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum()
}

fn allocated_bytes(path: &Path) -> io::Result<u64> {
    let meta = fs::symlink_metadata(path)?;
    let mut bytes = meta.blocks() * 512;
    if meta.is_dir() {
        for entry in fs::read_dir(path)? {
            // The relay is running and may remove a file meanwhile.
            bytes += allocated_bytes(&entry?.path()).unwrap_or(0);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read_by_field() {
        let status = "Name:\tbaton\nVmHWM:\t   2048 kB\nVmRSS:\t   1024 kB\n";
        assert_eq!(status_bytes(status, "VmRSS:"), 1024 * 1024);
        assert_eq!(status_bytes(status, "VmHWM:"), 2048 * 1024);
        let stat = "42 (a (b) c) S 1 1 1 0 -1 0 0 0 0 0 300 200 0 0 20 0 8 0";
        assert_eq!(cpu_ticks(stat), 500);
    }
}
