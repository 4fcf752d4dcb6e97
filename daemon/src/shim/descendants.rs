//! Who is left of an attempt: all descendants of the shim. It is their subreaper, so an orphan becomes its
//! child, whatever session or group it is in; a look may miss one that is between two parents, and the next
//! look finds it.

use std::collections::BTreeSet;
use std::fs;

use rustix::event::{Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};

use super::ladder::{Rung, Sight};
use crate::process::{ProcessId, ProcessStat, process_table, read_stat, signal_one};

/// How often, and how far apart, [`kill_all`] looks.
const KILL_ALL_LOOKS: usize = 500;
const BETWEEN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// The members of one look, by identity.
#[derive(Debug, Default)]
pub(super) struct Members(Vec<ProcessStat>);

impl Members {
    /// Looks now: from parent to child where the kernel lists children, which costs the same on a machine with ten
    /// thousand processes; else, and when that shows nobody, at all processes that there are.
    pub(super) fn look() -> Self {
        let own = std::process::id().cast_signed();
        let found = descend(own).filter(|found| !found.is_empty());
        Self(found.unwrap_or_else(|| below(own, process_table())))
    }

    pub(super) fn sight(&self, group: i32) -> Sight {
        let outside = self.0.iter().filter(|stat| stat.group != group).count();
        Sight::Members {
            living: self.0.len(),
            outside,
        }
    }

    /// Whether any of them is still there. Cheap; says nothing about processes forked since.
    pub(super) fn any_alive(&self) -> bool {
        self.0.iter().any(|member| {
            read_stat(member.id.pid).is_some_and(|now| now.id == member.id && !now.is_zombie())
        })
    }

    /// Signals all of them: `group` by one call, which no fork can slip through, the others one by one.
    pub(super) fn signal(&self, group: i32, rung: Rung) {
        let signal = match rung {
            Rung::Term => Signal::TERM,
            Rung::Kill => Signal::KILL,
        };
        // A group with a living member of ours cannot have been given to anyone else.
        if self.0.iter().any(|stat| stat.group == group)
            && let Some(group) = Pid::from_raw(group)
        {
            let _ = kill_process_group(group, signal); // Empty by now is fine.
        }
        for member in self.0.iter().filter(|stat| stat.group != group) {
            signal_one(member.id, signal);
        }
    }
}

/// Everybody below `root`, the dead left out.
fn descend(root: i32) -> Option<Vec<ProcessStat>> {
    let mut open = children(root)?;
    let mut found = Vec::new();
    while let Some(pid) = open.pop() {
        // Gone since is not there, and its children have another parent by now.
        open.extend(children(pid).unwrap_or_default());
        found.extend(read_stat(pid).filter(|stat| !stat.is_zombie()));
    }
    Some(found)
}

/// The children of all threads of a process. `None` where the kernel does not list them. A list that is read while
/// children come and go may lack some.
fn children(pid: i32) -> Option<Vec<i32>> {
    let mut children = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let list = fs::read_to_string(thread.ok()?.path().join("children")).ok()?;
        let pids = list.split_ascii_whitespace();
        children.extend(pids.filter_map(|pid| pid.parse::<i32>().ok()));
    }
    Some(children)
}

/// Everybody in the table whose line of parents leads to `root`, the dead left out.
fn below(root: i32, table: Vec<ProcessStat>) -> Vec<ProcessStat> {
    let mut family = BTreeSet::from([root]);
    let mut open = table;
    let mut found = Vec::new();
    loop {
        let before = family.len();
        open.retain(|stat| {
            let belongs = family.contains(&stat.parent);
            if belongs {
                family.insert(stat.id.pid);
                found.push(*stat);
            }
            !belongs
        });
        if family.len() == before {
            found.retain(|stat| !stat.is_zombie());
            return found;
        }
    }
}

/// What waiting for the dead has shown.
#[derive(Debug, Default)]
pub(super) struct Reaped {
    /// How the child itself ended, if it was among them.
    pub(super) child: Option<WaitStatus>,
    /// There is no child left, and so no descendant.
    pub(super) nobody_left: bool,
}

/// Waits for everybody who is dead, without waiting for anybody who is not.
pub(super) fn reap(child: ProcessId) -> Reaped {
    let mut reaped = Reaped::default();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == child.pid => {
                reaped.child = Some(status);
            }
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => {
                reaped.nobody_left = true;
                return reaped;
            }
            Ok(None) | Err(_) => return reaped,
        }
    }
}

/// The last resort of a shim that broke: ends everybody without asking for a plan or a clock.
pub(super) fn kill_all() {
    const NO_GROUP: i32 = 0;
    for _ in 0..KILL_ALL_LOOKS {
        let nobody = ProcessId {
            pid: 0,
            start_time: 0,
        };
        if reap(nobody).nobody_left {
            return;
        }
        Members::look().signal(NO_GROUP, Rung::Kill);
        let _ = poll(&mut [], Some(&BETWEEN));
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_child_is_found_from_its_parent() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let (own, pid) = (std::process::id().cast_signed(), child.id().cast_signed());
        // A kernel need not list them. Other tests have threads and children that come and go, so one look may miss it.
        let listed = fs::exists("/proc/thread-self/children").unwrap();
        let found = (0..1_000).any(|_| {
            let found = descend(own).unwrap_or_default();
            found.iter().any(|stat| stat.id.pid == pid)
        });
        assert_eq!(found, listed);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn descendants_are_found_in_any_order_and_strangers_are_not() {
        let table = vec![
            ProcessStat::sample(103, 102, 102, 102, 53),
            ProcessStat::sample(102, 101, 102, 102, 52), // left by setsid
            ProcessStat::sample(9, 1, 9, 9, 10),         // the shim
            ProcessStat::sample(101, 9, 101, 9, 51),
            ProcessStat::sample(104, 9, 80, 80, 54), // an orphan that came back
            ProcessStat::sample(200, 1, 101, 9, 60), // a stranger
        ];
        let found = Members(below(9, table));
        let mut pids: Vec<i32> = found.0.iter().map(|stat| stat.id.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [101, 102, 103, 104]);
        let expected = Sight::Members {
            living: 4,
            outside: 3,
        };
        assert_eq!(found.sight(101), expected);
    }
}
