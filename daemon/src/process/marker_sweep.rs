//! Kills processes without an owner, found by a marker in their environment. It is used when a
//! shim that this process did not start is gone or stuck. It finds only processes that it can
//! see, so an empty result does not prove that none is left. Signals go to verified identities
//! only, so a reused pid is never hit.

use std::collections::BTreeSet;
use std::io;

use rustix::process::Signal;
use tracing::warn;

use super::process_stat;
use super::signal::signal_one;
use super::{
    ATTEMPT_MARKER, DAEMON_MARKER, KILL_RETRY_LIMIT, ProcessId, SCAN_INTERVAL, orphan_reaper,
    process_tree,
};
use crate::clock::Clock;

/// What a sweep has killed. Processes without a visible marker are missing, so this proves
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SweepResult {
    pub(crate) killed: u32,
    /// The last scans found no process.
    pub(crate) is_clear: bool,
}

/// Kills all processes that carry `marker` with this value, except for `spare`, until two scans
/// in a row find none.
pub(crate) async fn kill_by_marker(
    marker: &'static str,
    value: &str,
    spare: Option<ProcessId>,
    clock: &Clock,
) -> SweepResult {
    let value = value.to_owned();
    let matches = move |id: ProcessId| {
        Ok(Some(id) != spare
            && process_stat::environment_variable(id.pid, marker)?
                .is_some_and(|found| found == value))
    };
    sweep_until_clear(matches, clock).await
}

/// Kills all processes that belong to this daemon and to none of its `known` attempts.
pub(crate) async fn kill_unknown_attempts(
    daemon_id: &str,
    known: &BTreeSet<String>,
    clock: &Clock,
) -> SweepResult {
    let (daemon_id, known) = (daemon_id.to_owned(), known.clone());
    let is_unknown = move |id: ProcessId| {
        let is_ours =
            process_stat::environment_variable(id.pid, DAEMON_MARKER)? == Some(daemon_id.clone());
        let attempt = process_stat::environment_variable(id.pid, ATTEMPT_MARKER)?;
        Ok(is_ours && attempt.is_some_and(|found| !known.contains(&found)))
    };
    sweep_until_clear(is_unknown, clock).await
}

async fn sweep_until_clear(
    matches: impl Fn(ProcessId) -> io::Result<bool> + Clone + Send + 'static,
    clock: &Clock,
) -> SweepResult {
    let give_up = clock.now().after(KILL_RETRY_LIMIT);
    let mut found = BTreeSet::new();
    let mut empty_scans = 0;
    while empty_scans < 2 {
        match scan_processes(matches.clone()).await {
            Ok(left) if left.is_empty() => {
                empty_scans += 1;
                continue;
            }
            Ok(left) => {
                for id in left {
                    signal_one(id, Signal::KILL);
                    found.insert(id);
                }
            }
            // A failed scan does not show which processes exist.
            Err(error) => warn!(error = %error, "cannot scan processes; trying again"),
        }
        empty_scans = 0;
        if clock.now() >= give_up {
            break;
        }
        tokio::time::sleep(SCAN_INTERVAL).await;
    }
    SweepResult {
        killed: u32::try_from(found.len()).unwrap_or(u32::MAX),
        is_clear: empty_scans == 2,
    }
}

/// Scans /proc in a blocking thread, and reaps dead orphans. Never includes this process
/// itself.
async fn scan_processes(
    matches: impl Fn(ProcessId) -> io::Result<bool> + Send + 'static,
) -> io::Result<Vec<ProcessId>> {
    let scan = tokio::task::spawn_blocking(move || {
        let own = std::process::id().cast_signed();
        let table = process_stat::process_table()?;
        orphan_reaper::reap_orphans_in(&table);
        let mut matching = BTreeSet::new();
        for stat in table {
            if !stat.is_zombie() && stat.id.pid != own && matches(stat.id)? {
                matching.insert(stat.id);
            }
        }
        // Their descendants are included too, whatever their environment is.
        let below = process_tree::with_descendants(matching.iter().map(|id| id.pid).collect())?;
        let below = below.iter().map(|stat| stat.id);
        matching.extend(below.filter(|id| id.pid != own));
        Ok(matching.into_iter().collect())
    });
    scan.await.expect("reading /proc does not panic")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::time::Duration;

    use tokio::io::{AsyncBufReadExt, BufReader};
    use tokio::process::{Child, Command};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn sleeper(daemon_id: &str, attempt_id: &str) -> Child {
        let mut command = Command::new("sleep");
        command
            .arg("600")
            .env(DAEMON_MARKER, daemon_id)
            .env(ATTEMPT_MARKER, attempt_id)
            .kill_on_drop(true);
        command.spawn().unwrap()
    }

    fn identity(child: &Child) -> ProcessId {
        let pid = child.id().unwrap().cast_signed();
        process_stat::identity_of(pid).unwrap()
    }

    fn is_alive(child: &Child) -> bool {
        let stat = process_stat::read(identity(child).pid).unwrap();
        stat.is_some_and(|stat| !stat.is_zombie())
    }

    async fn signal_of(child: &mut Child) -> Option<i32> {
        let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
        ended.expect("the child lives on").unwrap().signal()
    }

    fn id() -> String {
        uuid::Uuid::now_v7().to_string()
    }

    #[tokio::test]
    async fn only_processes_with_the_marker_are_killed() {
        let (daemon, attempt) = (id(), id());
        let mut mine = sleeper(&daemon, &attempt);
        let spared = sleeper(&daemon, &attempt);
        let foreign = sleeper(&daemon, &id());
        let spare = Some(identity(&spared));
        let swept = kill_by_marker(ATTEMPT_MARKER, &attempt, spare, &Clock::boot()).await;
        assert!(swept.is_clear && swept.killed == 1);
        assert_eq!(signal_of(&mut mine).await, Some(9));
        for other in [&spared, &foreign] {
            assert!(is_alive(other));
        }
    }

    #[tokio::test]
    async fn descendants_of_a_marked_process_are_killed_without_a_marker() {
        let attempt = id();
        let mut parent = Command::new("sh");
        parent
            .args(["-c", "env -i setsid sleep 600 & echo $!; wait"])
            .env(ATTEMPT_MARKER, &attempt)
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true);
        let mut parent = parent.spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(parent.stdout.take().unwrap());
        stdout.read_line(&mut line).await.unwrap();
        let hidden: i32 = line.trim().parse().unwrap();
        let hides = |marked: Option<String>| marked.is_none();
        let emptied = async {
            while !hides(process_stat::environment_variable(hidden, ATTEMPT_MARKER).unwrap()) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, emptied).await.unwrap();
        let hidden = process_stat::identity_of(hidden).unwrap();
        let swept = kill_by_marker(ATTEMPT_MARKER, &attempt, None, &Clock::boot()).await;
        assert!(swept.is_clear && swept.killed == 2, "{swept:?}");
        assert_eq!(signal_of(&mut parent).await, Some(9));
        let left = process_stat::read(hidden.pid).unwrap();
        assert!(left.is_none_or(|left| left.id != hidden || left.is_zombie()));
    }

    #[tokio::test]
    async fn processes_of_unknown_attempts_are_killed() {
        let (daemon, known) = (id(), id());
        let mut stranger = sleeper(&daemon, &id());
        let ours = sleeper(&daemon, &known);
        let foreign = sleeper(&id(), &id());
        let known = BTreeSet::from([known]);
        let swept = kill_unknown_attempts(&daemon, &known, &Clock::boot()).await;
        assert!(swept.is_clear && swept.killed == 1);
        assert_eq!(signal_of(&mut stranger).await, Some(9));
        for other in [&ours, &foreign] {
            assert!(is_alive(other));
        }
    }
}
