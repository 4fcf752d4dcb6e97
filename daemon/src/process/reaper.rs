//! Waits for dead processes that nobody else will wait for: orphans that the kernel hands to the daemon
//! because it is their nearest subreaper. Never waits for "any child": that would steal the exits of
//! children which the runtime waits for, so those are registered here and left alone.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, WaitId, WaitIdOptions, getpid, set_child_subreaper, waitid};

use super::stat::{self, ProcessStat};

/// Children that the runtime waits for. Per process, like the children themselves.
static DIRECT: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
/// Every other child of this process is an orphan that came to it.
static ADOPTS: AtomicBool = AtomicBool::new(false);

/// Makes this process the one that orphans of its children go to. For processes that have no children
/// of their own beside those of attempts; call once, before the first attempt.
pub(crate) fn adopt_orphans() -> std::io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    ADOPTS.store(true, Ordering::Release);
    Ok(())
}

/// Reaps every dead orphan that came to this process; a no-op unless it adopts them. Blocks for the
/// time of a walk through /proc.
pub(crate) fn reap_orphans() {
    if ADOPTS.load(Ordering::Acquire)
        && let Ok(table) = stat::process_table()
    {
        // Without a table the next round finds them.
        reap(&table);
    }
}

/// The same with a table that was just read.
pub(super) fn reap_orphans_in(table: &[ProcessStat]) {
    if ADOPTS.load(Ordering::Acquire) {
        reap(table);
    }
}

/// Reaps those of `dead` that are this process's own to wait for.
fn reap(dead: &[ProcessStat]) {
    let own = std::process::id().cast_signed();
    // Held over the waits: a pid cannot become a registered child in between.
    let direct = registered();
    let orphans = dead
        .iter()
        .filter(|stat| stat.is_zombie() && stat.parent == own && !direct.contains(&stat.id.pid));
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

fn registered() -> MutexGuard<'static, BTreeSet<i32>> {
    // A set of numbers is whole even if a holder panicked.
    DIRECT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps one child out of the reaper's hands for as long as it lives.
#[derive(Debug)]
pub(crate) struct DirectChild {
    pid: i32,
}

impl DirectChild {
    /// Starts a child and registers it in one step, so that it is never taken for an orphan.
    pub(crate) fn register<T, E>(
        start: impl FnOnce() -> Result<(i32, T), E>,
    ) -> Result<(Self, T), E> {
        let mut direct = registered();
        let (pid, child) = start()?;
        direct.insert(pid);
        Ok((Self { pid }, child))
    }
}

impl Drop for DirectChild {
    fn drop(&mut self) {
        registered().remove(&self.pid);
    }
}
