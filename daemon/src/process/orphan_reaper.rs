//! Orphans: processes that the kernel hands to the daemon because it is their nearest subreaper. Dead ones are waited
//! for, and of the living it can be told for sure whether there are any. Never waits for "any child": that would steal
//! the exits of children which the runtime waits for, so those are registered here and left alone.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::process::{Pid, WaitId, WaitIdOptions, getpid, set_child_subreaper, waitid};

use super::ProcessId;
use super::process_stat;
use super::process_stat::{ProcessStat, if_visible};

/// Children that the runtime waits for, from their start until they are gone. Per process, like the children themselves.
static DIRECT_CHILDREN: Mutex<BTreeSet<ProcessId>> = Mutex::new(BTreeSet::new());
/// Set once this process adopts: then every other child of it is an orphan that came to it.
static ORPHAN_ORIGIN: OnceLock<OrphanOrigin> = OnceLock::new();

/// How often a list of children that change under the reader is read.
const LIST_READS_MAX: usize = 100;

/// Whose orphans come to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrphanOrigin {
    /// Of its own children alone.
    Own,
    /// Of others too: it is the first process of its namespace, or it had children before it was the daemon.
    Anyone,
}

/// Makes this process the one that orphans of its children go to. For processes that have no children
/// of their own beside those of attempts; call before the first attempt.
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

/// Every orphan is of a child that this process started.
pub(super) fn all_orphans_are_ours() -> bool {
    ORPHAN_ORIGIN.get() == Some(&OrphanOrigin::Own)
}

/// Reaps every dead orphan that came to this process; a no-op unless it adopts them. Blocks for the
/// time of a walk through /proc.
pub(crate) fn reap_orphans() {
    if ORPHAN_ORIGIN.get().is_some()
        && let Ok(table) = process_stat::process_table()
    {
        // Without a table the next round finds them.
        reap_zombies(&table);
    }
}

/// The same with a table that was just read.
pub(super) fn reap_orphans_in(table: &[ProcessStat]) {
    if ORPHAN_ORIGIN.get().is_some() {
        reap_zombies(table);
    }
}

/// Reaps those of `dead` that are this process's own to wait for.
fn reap_zombies(dead: &[ProcessStat]) {
    let own = std::process::id().cast_signed();
    // Held over the waits: a pid cannot become a registered child in between.
    let direct = direct_children();
    let orphans = dead
        .iter()
        .filter(|stat| stat.is_zombie() && stat.parent == own && !direct.contains(&stat.id));
    for stat in orphans {
        if let Some(pid) = Pid::from_raw(stat.id.pid) {
            // An error means that somebody waited first, which is as good.
            let _ = waitid(
                WaitId::Pid(pid),
                WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
            );
        }
    }
}

/// The orphans that this process has, dead ones too. `None` where it cannot be told.
///
/// Without any, nothing is left of a child that is dead: whoever descends from it has a line of parents to this process,
/// and that line ends in an orphan. So an empty list is a proof, and no process can fork itself past it.
pub(super) fn orphans() -> io::Result<Option<Vec<i32>>> {
    if ORPHAN_ORIGIN.get().is_none() {
        return Ok(None);
    }
    // Held over the reading: no orphan is waited for meanwhile, and no child starts that is not registered.
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

/// The children of the first thread, to which orphans come. `None` where the kernel does not list them.
///
/// The kernel adds children at the end of its list, and finds its place again by the child that it told last: only
/// if that one was waited for meanwhile may it pass over others. Then the list does not begin as before any more.
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
    Err(io::Error::other("children come and go too fast"))
}

fn direct_children() -> MutexGuard<'static, BTreeSet<ProcessId>> {
    // A set of identities is whole even if a holder panicked.
    DIRECT_CHILDREN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Starts a child and registers it in one step, so that it is never taken for an orphan. It stays registered for as long
/// as it is there, whatever becomes of those who know it.
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
