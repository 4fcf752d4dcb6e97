//! The end of what a killed or stuck shim left, where that shim was this process's own child: its orphans come to this
//! process, so the kernel can be asked whether any is left. Nobody hides here by an empty environment, another user or
//! another session; whoever cannot be killed is said to be left.

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

/// Who is left of a shim and all it started.
enum RemainingProcesses {
    /// It is proved that nobody is.
    NoProcess,
    Shim,
    /// Its orphans with all their descendants; none of them means that they just died.
    Orphans(Vec<ProcessId>),
    /// It cannot be told.
    Unknown,
}

/// Kills the shim and everything that it started, until nobody is left.
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
            Err(error) if is_late => warn!(attempt_id, error = %error, "cannot look for processes"),
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

/// Kills everybody below a shim that lives, itself not, whoever started it; how many that were. A shim is the subreaper
/// of all it started, so nobody leaves its descendants by an orphan's way or by an empty environment.
pub(crate) async fn kill_descendants(shim: ProcessId, clock: &Clock) -> u32 {
    let give_up = clock.now().after(KILL_RETRY_LIMIT);
    let mut killed = BTreeSet::new();
    while clock.now() < give_up {
        let looked = tokio::task::spawn_blocking(move || process_tree::descendants_of(shim));
        match looked.await.expect("looking at /proc does not panic") {
            Ok(below) if below.is_empty() => break,
            Ok(below) => {
                let below: Vec<ProcessId> = below.iter().map(|stat| stat.id).collect();
                kill_each(&below, &mut killed);
            }
            Err(error) => warn!(error = %error, "cannot look for processes; trying again"),
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

/// Off the runtime's threads.
async fn find_remaining(shim: ProcessId, attempt_id: String) -> io::Result<RemainingProcesses> {
    let looked = tokio::task::spawn_blocking(move || {
        // A zombie has handed on its children.
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
    looked.await.expect("looking at /proc does not panic")
}

/// Where others' orphans come too, only the marked ones are known to be meant.
fn select_orphans(orphans: Vec<i32>, attempt_id: &str) -> io::Result<RemainingProcesses> {
    let living = process_tree::with_descendants(orphans)?;
    let mut meant: Vec<ProcessId> = living.iter().map(|stat| stat.id).collect();
    if orphan_reaper::all_orphans_are_ours() || meant.is_empty() {
        return Ok(RemainingProcesses::Orphans(meant));
    }
    let is_marked = |id: &ProcessId| {
        let value = process_stat::environment_variable(id.pid, ATTEMPT_MARKER);
        value.is_ok_and(|value| value.as_deref() == Some(attempt_id))
    };
    meant.retain(is_marked);
    Ok(if meant.is_empty() {
        RemainingProcesses::Unknown
    } else {
        RemainingProcesses::Orphans(meant)
    })
}
