//! Which processes belong to an attempt: children of its children, members of its process groups and
//! sessions, and whoever carries its marker in the environment, so that a grandchild that left by
//! setsid and a double fork is found too. What was once recognised stays recognised, by pid and start
//! time. Only looks; signals are sent elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use super::stat::{self, ProcessStat};
use super::{ATTEMPT_MARKER, ProcessId};

#[derive(Debug)]
pub(crate) struct Family {
    root: ProcessId,
    attempt_id: String,
    /// Everything ever recognised, pid to start time.
    known: BTreeMap<i32, u64>,
    /// Process groups and sessions that a member leads or led.
    groups: BTreeSet<i32>,
    sessions: BTreeSet<i32>,
}

/// The members of a family in one look at the process table.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) living: Vec<ProcessStat>,
    pub(super) zombies: Vec<ProcessStat>,
}

impl Family {
    /// `root` must lead its own process group.
    pub(crate) fn new(root: ProcessId, attempt_id: &str) -> Self {
        Self {
            root,
            attempt_id: attempt_id.to_owned(),
            known: BTreeMap::from([(root.pid, root.start_time)]),
            groups: BTreeSet::from([root.pid]),
            sessions: BTreeSet::new(),
        }
    }

    pub(crate) fn root(&self) -> ProcessId {
        self.root
    }

    /// Looks at the process table now. Blocks for the time of a walk through /proc.
    pub(super) fn look(&mut self) -> Members {
        let attempt_id = self.attempt_id.clone();
        let own = std::process::id().cast_signed();
        let table: Vec<ProcessStat> = stat::process_table()
            .into_iter()
            .filter(|stat| stat.id.pid != own && stat.id.pid != 1)
            .collect();
        self.recognise(&table, |pid| {
            stat::has_variable(pid, ATTEMPT_MARKER, &attempt_id)
        })
    }

    /// Cheap look at what is already known; says nothing about processes forked since.
    pub(super) fn known_alive(&self) -> bool {
        self.known.iter().any(|(pid, start_time)| {
            stat::read(*pid).is_some_and(|s| s.id.start_time == *start_time && !s.is_zombie())
        })
    }

    /// Takes in a process table. Membership spreads (a member's child is a member, and so is whoever
    /// is in a session that a member leads), so it repeats until nothing changes.
    fn recognise(&mut self, table: &[ProcessStat], marked: impl Fn(i32) -> bool) -> Members {
        self.forget_reused(table);
        let mut open: Vec<&ProcessStat> = table
            .iter()
            .filter(|stat| stat.id.start_time >= self.root.start_time)
            .collect();
        let mut members = Members::default();
        let mut asked_for_marker = false;
        loop {
            let before = open.len();
            open.retain(|stat| {
                let belongs = self.relates(stat) || (asked_for_marker && marked(stat.id.pid));
                if belongs {
                    self.admit(stat);
                    if stat.is_zombie() {
                        members.zombies.push(**stat);
                    } else {
                        members.living.push(**stat);
                    }
                }
                !belongs
            });
            if open.len() == before {
                if asked_for_marker {
                    return members;
                }
                // Reading an environment costs more than a table line, so it comes last.
                asked_for_marker = true;
            }
        }
    }

    fn relates(&self, stat: &ProcessStat) -> bool {
        let is_known = |pid: &i32, start: Option<u64>| match self.known.get(pid) {
            Some(known) => start.is_none_or(|start| start == *known),
            None => false,
        };
        is_known(&stat.id.pid, Some(stat.id.start_time))
            || is_known(&stat.parent, None)
            || self.groups.contains(&stat.group)
            || self.sessions.contains(&stat.session)
    }

    fn admit(&mut self, stat: &ProcessStat) {
        let pid = stat.id.pid;
        self.known.insert(pid, stat.id.start_time);
        if stat.group == pid {
            self.groups.insert(pid);
        }
        if stat.session == pid {
            self.sessions.insert(pid);
        }
    }

    /// A known pid with another start time is a stranger, and so is what it leads. A number that is
    /// in nobody's use any more is forgotten too: the kernel may hand it out again.
    fn forget_reused(&mut self, table: &[ProcessStat]) {
        let present: BTreeMap<i32, u64> = table
            .iter()
            .map(|stat| (stat.id.pid, stat.id.start_time))
            .collect();
        let in_use: BTreeSet<i32> = table
            .iter()
            .flat_map(|stat| [stat.group, stat.session])
            .collect();
        let root = self.root.pid;
        self.known.retain(|pid, start| match present.get(pid) {
            Some(other) => other == start,
            None => *pid == root,
        });
        let reused = |pid: &i32, known: &BTreeMap<i32, u64>| {
            present.contains_key(pid) && !known.contains_key(pid)
        };
        let known = &self.known;
        self.groups
            .retain(|pid| in_use.contains(pid) && !reused(pid, known));
        self.sessions
            .retain(|pid| in_use.contains(pid) && !reused(pid, known));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: ProcessId = ProcessId {
        pid: 100,
        start_time: 50,
    };

    fn pids(members: &Members) -> Vec<i32> {
        let mut pids: Vec<i32> = members.living.iter().map(|stat| stat.id.pid).collect();
        pids.sort_unstable();
        pids
    }

    #[test]
    fn children_groups_sessions_and_markers_all_lead_home() {
        let mut family = Family::new(ROOT, "a");
        let table = [
            ProcessStat::sample(103, 102, 102, 102, 53), // in the escapee's session
            ProcessStat::sample(100, 9, 100, 9, 50),     // root
            ProcessStat::sample(101, 100, 100, 9, 51),   // child
            ProcessStat::sample(102, 101, 102, 102, 52), // left by setsid
            ProcessStat::sample(104, 1, 100, 9, 54),     // orphan of the same group
            ProcessStat::sample(105, 1, 105, 105, 55),   // escaped twice, but marked
            ProcessStat::sample(106, 105, 106, 0, 56),   // child of the marked one
            ProcessStat::sample(200, 9, 200, 9, 60),     // a stranger
            ProcessStat::sample(201, 9, 201, 0, 60),     // a stranger of unknown session
        ];
        let members = family.recognise(&table, |pid| pid == 105);
        assert_eq!(pids(&members), [100, 101, 102, 103, 104, 105, 106]);
        // All ties are cut now, but they are known.
        let later = [
            ProcessStat::sample(103, 1, 103, 103, 53),
            ProcessStat::sample(106, 1, 1, 1, 56),
            ProcessStat::sample(107, 103, 1, 1, 70),
        ];
        assert_eq!(pids(&family.recognise(&later, |_| false)), [103, 106, 107]);
    }

    #[test]
    fn a_reused_pid_is_a_stranger_with_all_that_it_leads() {
        let mut family = Family::new(ROOT, "a");
        family.recognise(&[ProcessStat::sample(100, 9, 100, 9, 50)], |_| false);
        let table = [
            ProcessStat::sample(100, 9, 100, 100, 900),
            ProcessStat::sample(101, 100, 100, 100, 901),
        ];
        assert!(family.recognise(&table, |_| false).living.is_empty());
    }

    #[test]
    fn nothing_older_than_the_root_is_a_member() {
        let mut family = Family::new(ROOT, "a");
        let table = [ProcessStat::sample(90, 100, 100, 100, 49)];
        assert!(family.recognise(&table, |_| true).living.is_empty());
    }
}
