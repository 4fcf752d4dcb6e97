//! Start and end times of processes by CLOCK_BOOTTIME, taken from the kernel and independent of
//! Baton: the start from /proc, the end from a pidfd.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;

use crate::host::process_census::LiveProcess;
use crate::wait::wait_within;

/// Unit of the times in /proc, on every architecture.
const TICKS_PER_SECOND: u64 = 100;

pub fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(
        now.tv_sec.unsigned_abs(),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

pub fn send_signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a pid is not zero");
    kill_process(pid, signal).expect("the process exists");
}

/// Whether a signal has stopped it.
pub fn is_stopped(pid: u32) -> bool {
    stat_fields(pid).is_some_and(|fields| fields.first().is_some_and(|state| state == "T"))
}

/// When the first of these started, or slightly earlier: the kernel reports hundredths of a
/// second.
pub fn earliest_start_time(processes: &[LiveProcess]) -> Duration {
    let start_times = processes
        .iter()
        .filter_map(|process| process_start_time(process.pid));
    start_times.min().expect("one of them is alive")
}

fn process_start_time(pid: u32) -> Option<Duration> {
    let ticks: u64 = stat_fields(pid)?.get(19)?.parse().ok()?;
    Some(Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND))
}

/// The fields of /proc/PID/stat after the name, which may contain any character.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = line.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// The processes of an attempt, including its shim, watched until they end.
#[derive(Debug)]
pub struct WatchedProcesses {
    pub task_id: String,
    pub attempt_id: String,
    ended_at: oneshot::Receiver<Duration>,
}

impl WatchedProcesses {
    /// Watches these processes.
    pub fn new(task_id: &str, attempt_id: &str, processes: &[LiveProcess]) -> Self {
        let handles: Vec<OwnedFd> = processes.iter().filter_map(open_process_handle).collect();
        assert!(!handles.is_empty(), "at least one process is alive");
        let (end_sender, ended_at) = oneshot::channel();
        // A thread of its own, so that nothing delays it and no caller has to wait for it.
        std::thread::spawn(move || end_sender.send(wait_for_all_ends(handles)));
        Self {
            task_id: task_id.to_owned(),
            attempt_id: attempt_id.to_owned(),
            ended_at,
        }
    }

    pub fn has_ended(&self) -> bool {
        !self.ended_at.is_empty()
    }

    /// When the last of them was seen to have ended; never before it did.
    pub async fn wait_for_end(self) -> Duration {
        let end = wait_within("the end of an attempt's processes", self.ended_at).await;
        end.expect("the watching thread reports the end")
    }
}

/// Refers to the process itself and not to its pid, which may be reused. None if it has ended
/// already.
fn open_process_handle(process: &LiveProcess) -> Option<OwnedFd> {
    let pid = Pid::from_raw(process.pid.cast_signed()).expect("a pid is not zero");
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn wait_for_all_ends(handles: Vec<OwnedFd>) -> Duration {
    for handle in handles {
        let mut ended = [PollFd::new(&handle, PollFlags::IN)];
        while poll(&mut ended, None).is_err() {}
    }
    boottime()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn measured_times_enclose_a_process_lifetime() {
        let before = boottime();
        let mut child = tokio::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let pid = child.id().unwrap();
        let process = LiveProcess {
            pid,
            command_line: String::new(),
        };
        let watched = WatchedProcesses::new("", "", &[process]);
        let began = process_start_time(pid).unwrap();
        let tick = Duration::from_millis(10);
        assert!(before <= began + tick && began <= boottime());
        send_signal(pid, Signal::STOP);
        crate::poll_until("the process to stop", || is_stopped(pid).then_some(())).await;
        assert!(!watched.has_ended(), "stopped is not dead");
        let killed = boottime();
        send_signal(pid, Signal::KILL);
        let end = watched.wait_for_end().await;
        assert!(killed <= end && end <= boottime());
        child.wait().await.unwrap();
    }
}
