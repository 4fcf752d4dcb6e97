//! The end of what a killed or stuck shim left, where that shim was this process's own child: its orphans come to this
//! process, so the kernel can be asked whether any is left. Nobody hides here by an empty environment, another user or
//! another session; whoever cannot be killed is said to be left.

use std::collections::BTreeSet;
use std::io;

use rustix::process::Signal;
use tracing::warn;

use super::signal::signal_one;
use super::{ATTEMPT_MARKER, Cleared, POLL, ProcessId, SWEEP_LIMIT, family, reaper, stat};
use crate::clock::Clock;

/// Who is left of a shim and all it started.
enum Left {
    /// It is proved that nobody is.
    Nobody,
    Shim,
    /// Its orphans with all their descendants; none of them means that they just died.
    Orphans(Vec<ProcessId>),
    /// It cannot be told.
    Unknown,
}

/// Kills the shim and everything that it started, until nobody is left.
pub(crate) async fn kill_family(shim: ProcessId, attempt_id: &str, clock: &Clock) -> Cleared {
    let give_up = clock.now().after(SWEEP_LIMIT);
    let mut killed = BTreeSet::new();
    let mut empty = false;
    loop {
        let left = look(shim, attempt_id.to_owned()).await;
        let is_late = clock.now() >= give_up;
        match left {
            Ok(Left::Nobody) => empty = true,
            Ok(Left::Shim) => kill(&[shim], &mut killed),
            Ok(Left::Orphans(orphans)) => kill(&orphans, &mut killed),
            Ok(Left::Unknown) => break,
            Err(error) if is_late => warn!(attempt_id, error = %error, "cannot look for processes"),
            Err(_) => {}
        }
        if empty || is_late {
            break;
        }
        tokio::time::sleep(POLL).await;
    }
    Cleared {
        empty,
        terminated: false,
        killed: !killed.is_empty(),
        swept: u32::try_from(killed.len()).unwrap_or(u32::MAX),
    }
}

/// Kills everybody below a shim that lives, itself not, whoever started it; how many that were. A shim is the subreaper
/// of all it started, so nobody leaves its descendants by an orphan's way or by an empty environment.
pub(crate) async fn kill_below(shim: ProcessId, clock: &Clock) -> u32 {
    let give_up = clock.now().after(SWEEP_LIMIT);
    let mut killed = BTreeSet::new();
    while clock.now() < give_up {
        let looked = tokio::task::spawn_blocking(move || family::descendants_of(shim));
        match looked.await.expect("looking at /proc does not panic") {
            Ok(below) if below.is_empty() => break,
            Ok(below) => {
                let below: Vec<ProcessId> = below.iter().map(|stat| stat.id).collect();
                kill(&below, &mut killed);
            }
            Err(error) => warn!(error = %error, "cannot look for processes; trying again"),
        }
        tokio::time::sleep(POLL).await;
    }
    u32::try_from(killed.len()).unwrap_or(u32::MAX)
}

fn kill(processes: &[ProcessId], killed: &mut BTreeSet<ProcessId>) {
    for id in processes {
        signal_one(*id, Signal::KILL);
        killed.insert(*id);
    }
}

/// Off the runtime's threads.
async fn look(shim: ProcessId, attempt_id: String) -> io::Result<Left> {
    let looked = tokio::task::spawn_blocking(move || {
        // A zombie has handed on its children.
        let is_shim = |stat: stat::ProcessStat| stat.id == shim && !stat.is_zombie();
        if stat::read(shim.pid)?.is_some_and(is_shim) {
            return Ok(Left::Shim);
        }
        reaper::reap_orphans();
        match reaper::orphans()? {
            None => Ok(Left::Unknown),
            Some(orphans) if orphans.is_empty() => Ok(Left::Nobody),
            Some(orphans) => whom_to_kill(orphans, &attempt_id),
        }
    });
    looked.await.expect("looking at /proc does not panic")
}

/// Where others' orphans come too, only the marked ones are known to be meant.
fn whom_to_kill(orphans: Vec<i32>, attempt_id: &str) -> io::Result<Left> {
    let living = family::descend(orphans)?;
    let mut meant: Vec<ProcessId> = living.iter().map(|stat| stat.id).collect();
    if reaper::all_orphans_are_ours() || meant.is_empty() {
        return Ok(Left::Orphans(meant));
    }
    let is_marked = |id: &ProcessId| {
        let value = stat::variable(id.pid, ATTEMPT_MARKER);
        value.is_ok_and(|value| value.as_deref() == Some(attempt_id))
    };
    meant.retain(is_marked);
    Ok(if meant.is_empty() {
        Left::Unknown
    } else {
        Left::Orphans(meant)
    })
}
