//! When processes began and when they ended, by CLOCK_BOOTTIME. Nobody's word is taken for it: the kernel says when a
//! process began, and a handle on it tells its end, whoever caused that.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;

use crate::host::process_census::LiveProcess;
use crate::wait::wait_within;

/// Of the times in /proc, on every architecture.
const TICKS_PER_SECOND: u64 = 100;

pub fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(
        now.tv_sec.unsigned_abs(),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

pub fn send_signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process has a number");
    kill_process(pid, signal).expect("the process is there");
}

/// Whether a signal has stopped it.
pub fn is_stopped(pid: u32) -> bool {
    stat_fields(pid).is_some_and(|fields| fields.first().is_some_and(|state| state == "T"))
}

/// When the first of these began, or a little earlier: the kernel tells it in hundredths of a second.
pub fn earliest_start_time(processes: &[LiveProcess]) -> Duration {
    let began = processes
        .iter()
        .filter_map(|process| process_start_time(process.pid));
    began.min().expect("one of them lives")
}

fn process_start_time(pid: u32) -> Option<Duration> {
    let ticks: u64 = stat_fields(pid)?.get(19)?.parse().ok()?;
    Some(Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND))
}

/// What /proc says of it after its name, which may hold anything.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = line.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// The processes of an attempt, its shim among them, watched to their end.
#[derive(Debug)]
pub struct WatchedProcesses {
    pub task_id: String,
    pub attempt_id: String,
    ended_at: oneshot::Receiver<Duration>,
}

impl WatchedProcesses {
    /// Those that live now.
    pub fn new(task_id: &str, attempt_id: &str, processes: &[LiveProcess]) -> Self {
        let handles: Vec<OwnedFd> = processes.iter().filter_map(open_process_handle).collect();
        assert!(!handles.is_empty(), "there is somebody to watch");
        let (said, ended_at) = oneshot::channel();
        // A thread that nothing else keeps busy, and that nobody has to wait for.
        std::thread::spawn(move || said.send(wait_for_all_ends(handles)));
        Self {
            task_id: task_id.to_owned(),
            attempt_id: attempt_id.to_owned(),
            ended_at,
        }
    }

    pub fn has_ended(&self) -> bool {
        !self.ended_at.is_empty()
    }

    /// When the last of them was seen to have ended: not before it did.
    pub async fn wait_for_end(self) -> Duration {
        let end = wait_within("the end of an attempt's processes", self.ended_at).await;
        end.expect("the watch goes on")
    }
}

/// On a process and not on its number, which the next one may get. None if it has ended since it was seen.
fn open_process_handle(process: &LiveProcess) -> Option<OwnedFd> {
    let pid = Pid::from_raw(process.pid.cast_signed()).expect("a process has a number");
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
    async fn a_process_begins_and_ends_within_what_is_measured() {
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
        crate::poll_until("it to stop", || is_stopped(pid).then_some(())).await;
        assert!(!watched.has_ended(), "stopped is not dead");
        let killed = boottime();
        send_signal(pid, Signal::KILL);
        let end = watched.wait_for_end().await;
        assert!(killed <= end && end <= boottime());
        child.wait().await.unwrap();
    }
}
