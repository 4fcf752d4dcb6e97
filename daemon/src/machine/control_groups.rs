//! A control group for each attempt, where the system has delegated a part of the tree to this
//! daemon (version 2, systemd's `Delegate=yes` with `DelegateSubgroup=`). The agent runs in its
//! group from its first instruction on, under the configured limits. Its shim stays outside, so
//! that a limit never hits the process that reports it. At the attempt's end the kernel kills
//! every process that is left in the group, in addition to the shim's own cleanup. Without
//! delegation nothing changes.
//!
//! The daemon must be in a group below the delegated one: controllers cannot be enabled for a
//! group that has processes of its own, and a service manager could not start the next daemon
//! in a group that has them enabled.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinSet;
use tracing::{debug, warn};

use crate::config::ResourceLimits;

const CGROUP_ROOT: &str = "/sys/fs/cgroup";
const GROUP_NAME_PREFIX: &str = "baton-attempt-";
/// Where a process id is written to move the process into a group.
pub(crate) const PROCS_FILE: &str = "cgroup.procs";
/// The kernel needs a moment to remove dead processes from a group.
const REMOVE_TRIES: u32 = 50;
const REMOVE_PAUSE: Duration = Duration::from_millis(10);

/// The part of the tree that contains the groups of attempts.
#[derive(Clone, Debug)]
pub(crate) struct ControlGroups {
    base: PathBuf,
    memory_bytes: Option<u64>,
    processes: Option<u64>,
}

impl ControlGroups {
    /// The error explains why there are no control groups.
    pub(crate) fn find(limits: &ResourceLimits) -> Result<Self, String> {
        let own = fs::read_to_string("/proc/self/cgroup")
            .map_err(|error| format!("this system has no control groups: {error}"))?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let own = own.ok_or("this system has no control groups of version 2")?;
        Self::open(Path::new(CGROUP_ROOT), own, limits)
    }

    fn open(tree: &Path, own: &str, limits: &ResourceLimits) -> Result<Self, String> {
        let own = tree.join(own);
        let base = own
            .parent()
            .filter(|base| base.starts_with(tree) && own != tree);
        let base = base.filter(|base| *base != tree);
        let base = base.ok_or(
            "the daemon is not in a group below its delegated one; set DelegateSubgroup=daemon in its unit",
        )?;
        let members = fs::read_to_string(base.join(PROCS_FILE))
            .map_err(|error| format!("{} cannot be used: {error}", base.display()))?;
        if !members.trim().is_empty() {
            return Err(format!("{} has processes of its own", base.display()));
        }
        let groups = Self {
            base: base.to_owned(),
            memory_bytes: limits
                .attempt_memory_mib
                .map(|mib| u64::from(mib.get()) << 20),
            processes: limits.attempt_processes.map(|count| u64::from(count.get())),
        };
        groups.enable_controllers().map_err(|error| {
            format!(
                "{} is not delegated to this daemon: {error}",
                base.display()
            )
        })?;
        Ok(groups)
    }

    fn enable_controllers(&self) -> io::Result<()> {
        for controller in ["+memory", "+pids"] {
            fs::write(self.base.join("cgroup.subtree_control"), controller)?;
        }
        Ok(())
    }

    /// Creates the attempt's group with its limits. `None` when that fails: then the attempt
    /// runs without a group.
    pub(crate) fn create_group(&self, attempt_id: &str) -> Option<PathBuf> {
        let group = self.group_path(attempt_id);
        let created = fs::create_dir(&group).and_then(|()| self.write_limits(&group));
        match created {
            Ok(()) => Some(group),
            Err(error) => {
                warn!(attempt_id, %error, "the attempt runs without a control group");
                let _ = fs::remove_dir(&group);
                None
            }
        }
    }

    fn write_limits(&self, group: &Path) -> io::Result<()> {
        let limits = [
            ("memory.max", self.memory_bytes),
            ("pids.max", self.processes),
        ];
        for (file, most) in limits {
            if let Some(most) = most {
                fs::write(group.join(file), most.to_string())?;
            }
        }
        Ok(())
    }

    /// Kills the processes that are left in the attempt's group and removes it, within half a
    /// second.
    pub(crate) async fn kill_and_remove(&self, attempt_id: &str) {
        kill_and_remove_group(&self.group_path(attempt_id)).await;
    }

    /// Removes groups of unknown attempts, all at once, so that many groups that do not become
    /// empty delay Hello no longer than one.
    pub(crate) async fn remove_unknown_groups(&self, is_known: impl Fn(&str) -> bool) {
        let Ok(entries) = fs::read_dir(&self.base) else {
            return;
        };
        let mut removals = JoinSet::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let id = name
                .to_str()
                .and_then(|name| name.strip_prefix(GROUP_NAME_PREFIX));
            if id.is_some_and(|id| !is_known(id)) {
                removals.spawn(async move { kill_and_remove_group(&entry.path()).await });
            }
        }
        removals.join_all().await;
    }

    fn group_path(&self, attempt_id: &str) -> PathBuf {
        self.base.join(format!("{GROUP_NAME_PREFIX}{attempt_id}"))
    }
}

/// These are files of the kernel, so no call waits for a disk.
async fn kill_and_remove_group(group: &Path) {
    if !group.exists() {
        return;
    }
    if let Err(error) = fs::write(group.join("cgroup.kill"), "1") {
        debug!(group = %group.display(), %error, "cannot kill by the control group");
    }
    for _ in 0..REMOVE_TRIES {
        match fs::remove_dir(group) {
            Err(error) if is_in_use(&error) => {
                tokio::time::sleep(REMOVE_PAUSE).await;
            }
            Ok(()) | Err(_) => return,
        }
    }
    warn!(group = %group.display(), "the control group of an attempt is not empty and was not removed");
}

fn is_in_use(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty
    )
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    /// A tree of plain files that accepts the same writes as the kernel's.
    fn tree(members: &str) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        let base = tree.path().join("unit");
        fs::create_dir_all(base.join("daemon")).unwrap();
        fs::write(base.join(PROCS_FILE), members).unwrap();
        tree
    }

    fn limits() -> ResourceLimits {
        ResourceLimits {
            attempt_memory_mib: NonZeroU32::new(64),
            attempt_processes: NonZeroU32::new(9),
            ..ResourceLimits::default()
        }
    }

    #[tokio::test]
    async fn an_attempt_gets_a_group_with_its_limits() {
        let tree = tree("");
        let groups = ControlGroups::open(tree.path(), "unit/daemon", &limits()).unwrap();
        let control = tree.path().join("unit/cgroup.subtree_control");
        assert_eq!(fs::read_to_string(control).unwrap(), "+pids");
        let group = groups.create_group("one").unwrap();
        assert_eq!(group, tree.path().join("unit/baton-attempt-one"));
        let read = |name: &str| fs::read_to_string(group.join(name)).unwrap();
        assert_eq!(
            (read("memory.max"), read("pids.max")),
            ("67108864".into(), "9".into())
        );
        groups.kill_and_remove("one").await;
        assert_eq!(read("cgroup.kill"), "1");
        groups.kill_and_remove("never made").await;
    }

    #[test]
    fn a_tree_that_is_not_delegated_is_an_error_with_its_reason() {
        let limits = limits();
        let busy = tree("1\n");
        let why = ControlGroups::open(busy.path(), "unit/daemon", &limits).unwrap_err();
        assert!(why.contains("processes of its own"), "{why}");
        for own in ["", "unit"] {
            let why = ControlGroups::open(busy.path(), own, &limits).unwrap_err();
            assert!(why.contains("DelegateSubgroup"), "{own}: {why}");
        }
        let why = ControlGroups::open(busy.path(), "other/daemon", &limits).unwrap_err();
        assert!(why.contains("cannot be used"), "{why}");
    }

    #[tokio::test]
    async fn groups_of_unknown_attempts_are_removed() {
        let tree = tree("");
        let groups = ControlGroups::open(tree.path(), "unit/daemon", &limits()).unwrap();
        let (known, unknown) = (
            groups.create_group("known").unwrap(),
            groups.create_group("unknown").unwrap(),
        );
        groups.remove_unknown_groups(|id| id == "known").await;
        assert!(!known.join("cgroup.kill").exists());
        assert_eq!(
            fs::read_to_string(unknown.join("cgroup.kill")).unwrap(),
            "1"
        );
        assert!(tree.path().join("unit/daemon").exists());
    }

    /// A plain directory does not become empty either.
    #[tokio::test]
    async fn removing_many_busy_groups_takes_no_longer_than_one() {
        let tree = tree("");
        let groups = ControlGroups::open(tree.path(), "unit/daemon", &limits()).unwrap();
        let each = REMOVE_TRIES * REMOVE_PAUSE;
        for number in 0..40 {
            groups.create_group(&number.to_string()).unwrap();
        }
        let clock = crate::clock::Clock::boot();
        let start = clock.now();
        groups.remove_unknown_groups(|_| false).await;
        let took = start.until(clock.now());
        assert!(each <= took && took < 20 * each, "{took:?}");
    }
}
