//! Orphans: processes that the kernel reparents to the daemon because it is their nearest
//! subreaper. Dead ones are reaped, and it can be proved whether any is left. It never waits
//! for "any child": that would take the exits of children that the runtime waits for, so those
//! are registered here and skipped.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::process::{Pid, WaitId, WaitIdOptions, getpid, set_child_subreaper, waitid};

use super::ProcessId;
use super::process_stat;
use super::process_stat::{ProcessStat, if_visible};

/// Children that the runtime waits for, from their start until they are gone. Per process, like
/// the children themselves.
static DIRECT_CHILDREN: Mutex<BTreeSet<ProcessId>> = Mutex::new(BTreeSet::new());
/// Set once this process is a subreaper: then every other child of it is an orphan.
static ORPHAN_ORIGIN: OnceLock<OrphanOrigin> = OnceLock::new();

/// How often the list of children is read while it changes.
const LIST_READS_MAX: usize = 100;

/// Where the orphans of this process come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrphanOrigin {
    /// Only from its own children.
    Own,
    /// Also from others: this is the first process of its namespace, or it had children before
    /// it became the daemon.
    Anyone,
}

/// Makes this process the subreaper of its children. For processes that have no other children
/// than those of attempts; call before the first attempt.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    ORPHAN_ORIGIN.get_or_init(|| {
        let has_none = children().is_ok_and(|children| children == Some(Vec::new()));
        if has_none && !getpid().is_init() {
            OrphanOrigin::Own
        } else {
            OrphanOrigin::Anyone
        }
    });
    Ok(())
}

/// Whether every orphan comes from a child that this process started.
pub(super) fn all_orphans_are_ours() -> bool {
    ORPHAN_ORIGIN.get() == Some(&OrphanOrigin::Own)
}

/// Reaps every dead orphan of this process; does nothing unless it is a subreaper. Blocks while
/// it reads /proc.
pub(crate) fn reap_orphans() {
    if ORPHAN_ORIGIN.get().is_some()
        && let Ok(table) = process_stat::process_table()
    {
        // Without a table the next round reaps them.
        reap_zombies(&table);
    }
}

/// The same with a table that was just read.
pub(super) fn reap_orphans_in(table: &[ProcessStat]) {
    if ORPHAN_ORIGIN.get().is_some() {
        reap_zombies(table);
    }
}

/// Reaps those of `dead` that are orphans of this process.
fn reap_zombies(dead: &[ProcessStat]) {
    let own = std::process::id().cast_signed();
    // Locked during the waits: a pid cannot become a registered child in between.
    let direct = direct_children();
    let orphans = dead
        .iter()
        .filter(|stat| stat.is_zombie() && stat.parent == own && !direct.contains(&stat.id));
    for stat in orphans {
        if let Some(pid) = Pid::from_raw(stat.id.pid) {
            // An error means that the process was already reaped.
            let _ = waitid(
                WaitId::Pid(pid),
                WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
            );
        }
    }
}

/// The orphans of this process, including dead ones. `None` when the kernel does not list them.
///
/// An empty list proves that nothing is left of a dead child: the parents of any descendant
/// lead to this process, and the last one before it is an orphan. No process can avoid that by
/// forking.
pub(super) fn orphans() -> io::Result<Option<Vec<i32>>> {
    if ORPHAN_ORIGIN.get().is_none() {
        return Ok(None);
    }
    // Locked while reading: no orphan is reaped meanwhile, and no unregistered child is
    // started.
    let direct = direct_children();
    let Some(mut orphans) = children()? else {
        return Ok(None);
    };
    let mut failed = None;
    orphans.retain(|pid| match is_direct(&direct, *pid) {
        Ok(is_direct) => !is_direct,
        Err(error) => {
            failed = Some(error);
            true
        }
    });
    failed.map_or(Ok(Some(orphans)), Err)
}

fn is_direct(direct: &BTreeSet<ProcessId>, pid: i32) -> io::Result<bool> {
    let Some(known) = direct.iter().find(|known| known.pid == pid) else {
        return Ok(false);
    };
    Ok(process_stat::read(pid)?.is_none_or(|now| now.id == *known))
}

/// The children of the first thread, which gets the orphans. `None` when the kernel does not
/// list them.
///
/// The kernel appends children to its list, and continues a read after the child that it
/// returned last. Only if that child was reaped meanwhile can it skip others; then the list no
/// longer has the same beginning.
fn children() -> io::Result<Option<Vec<i32>>> {
    let own = std::process::id();
    let path = format!("/proc/{own}/task/{own}/children");
    let read = || if_visible(std::fs::read_to_string(&path));
    for _ in 0..LIST_READS_MAX {
        let (Some(list), Some(again)) = (read()?, read()?) else {
            return Ok(None);
        };
        if again.starts_with(&list) {
            let pids = list.split_ascii_whitespace();
            return Ok(Some(pids.filter_map(|pid| pid.parse().ok()).collect()));
        }
    }
    Err(io::Error::other("the list of children changes too fast"))
}

fn direct_children() -> MutexGuard<'static, BTreeSet<ProcessId>> {
    // A set of identities is consistent even after a panic.
    DIRECT_CHILDREN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Starts a child and registers it in one step, so that it is never taken for an orphan. It
/// stays registered as long as it exists, even when its handles are dropped.
pub(crate) fn start_registered<T, E>(
    start: impl FnOnce() -> Result<(ProcessId, T), E>,
) -> Result<T, E> {
    let mut direct = direct_children();
    let (id, child) = start()?;
    direct.retain(|known| !is_gone(*known));
    direct.insert(id);
    Ok(child)
}

fn is_gone(id: ProcessId) -> bool {
    process_stat::read(id.pid).is_ok_and(|now| now.is_none_or(|now| now.id != id))
}
