//! Ends every process of an attempt: TERM to the group and all descendants, a grace, KILL, then a
//! sweep until a look at the process table finds nobody. Signals go to verified identities only, so a
//! reused pid is never hit.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::watch;

use super::descendants::{Family, Members};
use super::signal::signal_one;
use super::stat::{self, ProcessStat};
use super::{ProcessId, reaper};
use crate::clock::{Clock, Moment};

/// Between two looks while processes are ending by themselves.
const POLL: Duration = Duration::from_millis(10);
/// How long the sweep goes on after KILL. What is left then cannot be killed, and the receipt says so.
const SWEEP_LIMIT: Duration = Duration::from_secs(5);

/// What the ladder found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cleared {
    /// Two looks in a row, or the only one needed, found no living process.
    pub(crate) empty: bool,
    /// TERM was sent to a living process.
    pub(crate) terminated: bool,
    /// KILL was needed.
    pub(crate) killed: bool,
    /// Processes outside the root's group that had to be signalled.
    pub(crate) swept: u32,
}

/// Climbs the ladder for `family`. `kill_at` may move while it climbs: a lease that ends sooner than
/// the grace takes precedence. Not cancel safe: a dropped call leaves the ladder half climbed.
pub(crate) async fn clear(
    mut family: Family,
    mut kill_at: watch::Receiver<Moment>,
    clock: &Clock,
) -> Cleared {
    let mut done = Cleared::default();
    let mut seen;
    (family, seen) = look(family).await;
    if seen.living.is_empty() {
        return Cleared {
            empty: true,
            ..done
        };
    }
    done.terminated = true;
    done.swept = outside_group(&family, &seen);
    signal(&family, &seen, Signal::TERM);
    while clock.now() < *kill_at.borrow() {
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            // When the sender is gone, the moment stays what it was.
            Ok(()) = kill_at.changed() => {}
        }
        if !family.known_alive() {
            (family, seen) = look(family).await;
            if seen.living.is_empty() {
                break;
            }
            // Somebody forked while the others died: it has not been told yet.
            signal(&family, &seen, Signal::TERM);
        }
    }
    sweep(family, done, clock).await
}

/// KILL until two looks in a row find nobody.
async fn sweep(mut family: Family, mut done: Cleared, clock: &Clock) -> Cleared {
    let give_up = clock.now().after(SWEEP_LIMIT);
    let mut empty_looks = 0;
    while empty_looks < 2 {
        let seen;
        (family, seen) = look(family).await;
        if seen.living.is_empty() {
            empty_looks += 1;
            continue;
        }
        empty_looks = 0;
        if !done.killed {
            done.killed = true;
            done.swept = done.swept.max(outside_group(&family, &seen));
        }
        signal(&family, &seen, Signal::KILL);
        if clock.now() >= give_up {
            return done;
        }
        tokio::time::sleep(POLL).await;
    }
    done.empty = true;
    done
}

/// Kills whoever carries `marker` with this value, until two looks in a row find nobody. For processes whose
/// root is not known: `swept` counts them all.
pub(crate) async fn kill_marked(marker: &'static str, value: &str, clock: &Clock) -> Cleared {
    let give_up = clock.now().after(SWEEP_LIMIT);
    let mut found = BTreeSet::new();
    let mut empty_looks = 0;
    while empty_looks < 2 {
        let left = marked(marker, value.to_owned()).await;
        if left.is_empty() {
            empty_looks += 1;
            continue;
        }
        empty_looks = 0;
        if clock.now() >= give_up {
            break;
        }
        for id in left {
            signal_one(id, Signal::KILL);
            found.insert(id);
        }
        tokio::time::sleep(POLL).await;
    }
    Cleared {
        empty: empty_looks == 2,
        terminated: false,
        killed: !found.is_empty(),
        swept: u32::try_from(found.len()).unwrap_or(u32::MAX),
    }
}

async fn marked(marker: &'static str, value: String) -> Vec<ProcessId> {
    let looked = tokio::task::spawn_blocking(move || {
        let table = stat::process_table().into_iter();
        table
            .filter(|stat| !stat.is_zombie())
            .map(|stat| stat.id)
            .filter(|id| stat::has_variable(id.pid, marker, &value))
            .collect()
    });
    looked.await.expect("looking at /proc does not panic")
}

/// Walks through /proc off the runtime's threads, and reaps what it finds dead.
async fn look(mut family: Family) -> (Family, Members) {
    let looked = tokio::task::spawn_blocking(move || {
        let members = family.look();
        reaper::reap(&members.zombies);
        (family, members)
    });
    looked.await.expect("looking at /proc does not panic")
}

fn outside_group(family: &Family, members: &Members) -> u32 {
    let group = family.root().pid;
    let outside = members
        .living
        .iter()
        .filter(|stat| stat.group != group)
        .count();
    u32::try_from(outside).unwrap_or(u32::MAX)
}

fn signal(family: &Family, members: &Members, signal: Signal) {
    let group = family.root().pid;
    let in_group = |stat: &&ProcessStat| stat.group == group;
    // A group with a living member of ours cannot have been given to anyone else. One call for all
    // of it is atomic towards forks.
    if members.living.iter().any(|stat| in_group(&stat))
        && let Some(pid) = Pid::from_raw(group)
    {
        let _ = kill_process_group(pid, signal); // Empty by now is fine.
    }
    for stat in members.living.iter().filter(|stat| !in_group(stat)) {
        signal_one(stat.id, signal);
    }
}
