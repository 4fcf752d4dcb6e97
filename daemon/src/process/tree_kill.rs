//! Kills what a dead or stuck shim left, if that shim was this process's own child: its orphans
//! are reparented to this process, so the kernel can be asked whether any is left. A process
//! cannot hide here by an empty environment, another user or another session. Processes that
//! cannot be killed are reported as left.

use std::collections::BTreeSet;
use std::io;

use rustix::process::Signal;
use tracing::warn;

use super::signal::signal_one;
use super::{
    ATTEMPT_MARKER, KILL_RETRY_LIMIT, ProcessId, SCAN_INTERVAL, TerminationOutcome, orphan_reaper,
    process_stat, process_tree,
};
use crate::clock::Clock;

/// What is left of a shim and all that it started.
enum RemainingProcesses {
    /// It is proved that no process is left.
    NoProcess,
    Shim,
    /// Its orphans with all their descendants; an empty list means that they have just died.
    Orphans(Vec<ProcessId>),
    /// The kernel does not list them.
    Unknown,
}

/// Kills the shim and everything that it started, until no process is left.
pub(crate) async fn kill_shim_tree(
    shim: ProcessId,
    attempt_id: &str,
    clock: &Clock,
) -> TerminationOutcome {
    let give_up = clock.now().after(KILL_RETRY_LIMIT);
    let mut killed = BTreeSet::new();
    let mut empty = false;
    loop {
        let left = find_remaining(shim, attempt_id.to_owned()).await;
        let is_late = clock.now() >= give_up;
        match left {
            Ok(RemainingProcesses::NoProcess) => empty = true,
            Ok(RemainingProcesses::Shim) => kill_each(&[shim], &mut killed),
            Ok(RemainingProcesses::Orphans(orphans)) => kill_each(&orphans, &mut killed),
            Ok(RemainingProcesses::Unknown) => break,
            Err(error) if is_late => warn!(attempt_id, error = %error, "cannot scan processes"),
            Err(_) => {}
        }
        if empty || is_late {
            break;
        }
        tokio::time::sleep(SCAN_INTERVAL).await;
    }
    TerminationOutcome {
        proved_empty: empty,
        terminated: false,
        killed: !killed.is_empty(),
        signaled_singly: u32::try_from(killed.len()).unwrap_or(u32::MAX),
    }
}

/// Kills everything below a living shim, but not the shim itself, also when another process
/// started it; returns the number. A shim is the subreaper of all that it started, so no
/// process can leave its descendants.
pub(crate) async fn kill_descendants(shim: ProcessId, clock: &Clock) -> u32 {
    let give_up = clock.now().after(KILL_RETRY_LIMIT);
    let mut killed = BTreeSet::new();
    while clock.now() < give_up {
        let scan = tokio::task::spawn_blocking(move || process_tree::descendants_of(shim));
        match scan.await.expect("reading /proc does not panic") {
            Ok(below) if below.is_empty() => break,
            Ok(below) => {
                let below: Vec<ProcessId> = below.iter().map(|stat| stat.id).collect();
                kill_each(&below, &mut killed);
            }
            Err(error) => warn!(error = %error, "cannot scan processes; trying again"),
        }
        tokio::time::sleep(SCAN_INTERVAL).await;
    }
    u32::try_from(killed.len()).unwrap_or(u32::MAX)
}

fn kill_each(processes: &[ProcessId], killed: &mut BTreeSet<ProcessId>) {
    for id in processes {
        signal_one(*id, Signal::KILL);
        killed.insert(*id);
    }
}

/// Scans /proc in a blocking thread.
async fn find_remaining(shim: ProcessId, attempt_id: String) -> io::Result<RemainingProcesses> {
    let scan = tokio::task::spawn_blocking(move || {
        // The children of a zombie have been reparented already.
        let is_shim = |stat: process_stat::ProcessStat| stat.id == shim && !stat.is_zombie();
        if process_stat::read(shim.pid)?.is_some_and(is_shim) {
            return Ok(RemainingProcesses::Shim);
        }
        orphan_reaper::reap_orphans();
        match orphan_reaper::orphans()? {
            None => Ok(RemainingProcesses::Unknown),
            Some(orphans) if orphans.is_empty() => Ok(RemainingProcesses::NoProcess),
            Some(orphans) => select_orphans(orphans, &attempt_id),
        }
    });
    scan.await.expect("reading /proc does not panic")
}

/// When the orphans of other processes arrive here too, only marked ones are known to belong to
/// the attempt.
fn select_orphans(orphans: Vec<i32>, attempt_id: &str) -> io::Result<RemainingProcesses> {
    let living = process_tree::with_descendants(orphans)?;
    let mut matching: Vec<ProcessId> = living.iter().map(|stat| stat.id).collect();
    if orphan_reaper::all_orphans_are_ours() || matching.is_empty() {
        return Ok(RemainingProcesses::Orphans(matching));
    }
    let is_marked = |id: &ProcessId| {
        let value = process_stat::environment_variable(id.pid, ATTEMPT_MARKER);
        value.is_ok_and(|value| value.as_deref() == Some(attempt_id))
    };
    matching.retain(is_marked);
    Ok(if matching.is_empty() {
        RemainingProcesses::Unknown
    } else {
        RemainingProcesses::Orphans(matching)
    })
}
