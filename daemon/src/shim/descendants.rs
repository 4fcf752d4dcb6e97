//! The processes that are left of an attempt: all descendants of the shim. The shim is their
//! subreaper, so an orphan becomes its child, in whatever session or group it is. A scan may
//! miss a process that is being reparented, and the next scan finds it.

use std::collections::BTreeSet;
use std::io;

use baton_daemon_core::termination_sequence::{ScanResult, TerminationSignal};
use rustix::event::{Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};

use crate::process::{ProcessId, ProcessStat, descendants, read_stat, signal_one};

/// How often all processes are stopped before they are killed.
const STOP_ROUNDS: usize = 20;
/// The pause between the rounds of [`kill_all_descendants`] at first, and the longer one after
/// that many rounds.
const FIRST_PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};
const FIRST_PAUSE_ROUNDS: usize = 500;
const LATER_PAUSE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// What is known of the child without a scan.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChildGroup {
    /// Its process group, which has the child's pid.
    pub(super) group: i32,
    pub(super) is_unreaped: bool,
}

/// The processes of one scan, by identity.
#[derive(Debug, Default)]
pub(super) struct LiveDescendants(Vec<ProcessStat>);

impl LiveDescendants {
    pub(super) fn scan() -> io::Result<Self> {
        descendants(std::process::id().cast_signed()).map(Self)
    }

    /// A child that was not reaped exists, whatever the scan has found.
    pub(super) fn summary(&self, child: ChildGroup) -> ScanResult {
        let outside = self.0.iter().filter(|stat| stat.group != child.group);
        ScanResult::Members {
            living: self.0.len().max(usize::from(child.is_unreaped)),
            outside_group: outside.count(),
        }
    }

    /// Whether any of them is still alive. Cheap; it does not see processes that were forked
    /// since.
    pub(super) fn any_alive(&self) -> bool {
        self.0.iter().any(|member| {
            let now = read_stat(member.id.pid).ok().flatten();
            now.is_some_and(|now| now.id == member.id && !now.is_zombie())
        })
    }

    pub(super) fn signal(&mut self, child: ChildGroup, step: TerminationSignal) {
        match step {
            TerminationSignal::Term => self.send_signal(child, Signal::TERM),
            TerminationSignal::Kill => {
                self.stop_all(child);
                self.send_signal(child, Signal::KILL);
            }
        }
    }

    /// Stops all processes until a scan finds no new ones. Processes that fork as fast as
    /// others die would never end. Stopped ones do not fork, and keep their entries in the
    /// process table, so that the rest reaches the limit of processes.
    fn stop_all(&mut self, child: ChildGroup) {
        for _ in 0..STOP_ROUNDS {
            if self.0.iter().all(|stat| stat.group == child.group) {
                return;
            }
            self.send_signal(child, Signal::STOP);
            let known: BTreeSet<ProcessId> = self.0.iter().map(|stat| stat.id).collect();
            let mut new = Self::scan().map_or(Vec::new(), |now| now.0);
            new.retain(|stat| !known.contains(&stat.id));
            if new.is_empty() {
                return;
            }
            self.0.extend(new);
        }
    }

    /// Signals all of them: the child's group by one call, which no fork can escape, the others
    /// one by one.
    fn send_signal(&self, child: ChildGroup, signal: Signal) {
        // A group id is not reused while its leader is not reaped or it has a living member.
        let is_ours = child.is_unreaped || self.0.iter().any(|stat| stat.group == child.group);
        if is_ours && let Some(group) = Pid::from_raw(child.group) {
            let _ = kill_process_group(group, signal); // Empty by now is fine.
        }
        for member in self.0.iter().filter(|stat| stat.group != child.group) {
            signal_one(member.id, signal);
        }
    }
}

/// What reaping has shown.
#[derive(Debug, Default)]
pub(super) struct ReapResult {
    /// The exit of the child itself, if it was reaped.
    pub(super) child: Option<WaitStatus>,
    /// There is no child left, and so no descendant.
    pub(super) no_children_left: bool,
}

/// Reaps all dead children without waiting for living ones.
pub(super) fn reap_dead(child: ProcessId) -> ReapResult {
    let mut reaped = ReapResult::default();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == child.pid => {
                reaped.child = Some(status);
            }
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => {
                reaped.no_children_left = true;
                return reaped;
            }
            Ok(None) | Err(_) => return reaped,
        }
    }
}

/// Kills all descendants without a plan or a time limit, and returns when none is left: without
/// the shim they would have no owner. For what outlived its report, and for a shim that failed.
pub(super) fn kill_all_descendants() {
    const NO_CHILD: ChildGroup = ChildGroup {
        group: 0,
        is_unreaped: false,
    };
    for round in 0_usize.. {
        let no_child = ProcessId {
            pid: 0,
            start_time: 0,
        };
        if reap_dead(no_child).no_children_left {
            return;
        }
        if let Ok(mut members) = LiveDescendants::scan() {
            members.signal(NO_CHILD, TerminationSignal::Kill);
        }
        let pause = if round < FIRST_PAUSE_ROUNDS {
            &FIRST_PAUSE
        } else {
            &LATER_PAUSE
        };
        let _ = poll(&mut [], Some(pause));
    }
}
