//! The tree of processes. A scan may miss a process that is being reparented, and the next scan
//! finds it. A scan that fails is an error and never an empty result.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use super::ProcessId;
use super::process_stat;
use super::process_stat::{ProcessStat, if_visible};

/// Every living descendant of a process. Follows the kernel's lists of children, which costs
/// the same on a machine with ten thousand processes; without them, or when they are empty,
/// searches all processes.
pub(crate) fn descendants(root: i32) -> io::Result<Vec<ProcessStat>> {
    let listed = match children(root)? {
        Some(first) => with_descendants(first)?,
        None => Vec::new(),
    };
    if listed.is_empty() {
        return Ok(descendants_in_table(root, process_stat::process_table()?));
    }
    Ok(listed)
}

/// The descendants of a verified process. Empty when it is gone, because its pid may be reused.
pub(crate) fn descendants_of(root: ProcessId) -> io::Result<Vec<ProcessStat>> {
    let found = descendants(root.pid)?;
    let is_same = process_stat::read(root.pid)?.is_some_and(|stat| stat.id == root);
    Ok(if is_same { found } else { Vec::new() })
}

/// These processes and all below them, without dead ones.
pub(super) fn with_descendants(first: Vec<i32>) -> io::Result<Vec<ProcessStat>> {
    let mut open = first;
    let mut found = Vec::new();
    while let Some(pid) = open.pop() {
        // A process that is gone is skipped; its children have another parent by now.
        open.extend(children(pid)?.unwrap_or_default());
        found.extend(process_stat::read(pid)?.filter(|stat| !stat.is_zombie()));
    }
    Ok(found)
}

/// Those that are still alive, by identity, with all below them.
pub(crate) fn surviving_tree(known: &[ProcessId]) -> io::Result<Vec<ProcessId>> {
    let mut living = Vec::new();
    for id in known {
        living
            .extend(process_stat::read(id.pid)?.filter(|stat| stat.id == *id && !stat.is_zombie()));
    }
    let first = living.iter().map(|stat| stat.id.pid).collect();
    let found: BTreeSet<ProcessId> = with_descendants(first)?
        .iter()
        .map(|stat| stat.id)
        .collect();
    Ok(found.into_iter().collect())
}

/// The children of all threads of a process. `None` when the kernel does not list them, or the
/// process is gone. A list that is read while children come and go may lack some.
fn children(pid: i32) -> io::Result<Option<Vec<i32>>> {
    let Some(threads) = if_visible(fs::read_dir(format!("/proc/{pid}/task")))? else {
        return Ok(None);
    };
    let mut listed = None;
    for thread in threads {
        let list = thread.and_then(|thread| fs::read_to_string(thread.path().join("children")));
        if let Some(list) = if_visible(list)? {
            let pids = list.split_ascii_whitespace();
            let pids = pids.filter_map(|pid| pid.parse::<i32>().ok());
            listed.get_or_insert_with(Vec::new).extend(pids);
        }
    }
    Ok(listed)
}

/// All processes in the table whose parents lead to `root`, without dead ones.
fn descendants_in_table(root: i32, table: Vec<ProcessStat>) -> Vec<ProcessStat> {
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_child_is_found_from_its_parent() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let (own, pid) = (std::process::id().cast_signed(), child.id().cast_signed());
        // A kernel need not list them. Other tests start and end threads and children, so one
        // scan may miss it.
        let is_listed = fs::exists("/proc/thread-self/children").unwrap();
        let found = (0..1_000).any(|_| {
            let listed = children(own).unwrap().unwrap_or_default();
            let found = with_descendants(listed).unwrap();
            found.iter().any(|stat| stat.id.pid == pid)
        });
        assert_eq!(found, is_listed);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(children(pid).unwrap(), None);
    }

    #[test]
    fn descendants_are_found_in_any_order() {
        let table = vec![
            ProcessStat::sample(103, 102, 102, 53),
            ProcessStat::sample(102, 101, 102, 52), // left by setsid
            ProcessStat::sample(9, 1, 9, 10),       // the shim
            ProcessStat::sample(101, 9, 101, 51),
            ProcessStat::sample(104, 9, 80, 54), // an orphan that came back
            ProcessStat::sample(200, 1, 101, 60), // a stranger
        ];
        let mut pids: Vec<i32> = descendants_in_table(9, table)
            .iter()
            .map(|stat| stat.id.pid)
            .collect();
        pids.sort_unstable();
        assert_eq!(pids, [101, 102, 103, 104]);
    }
}
