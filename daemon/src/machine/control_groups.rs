//! A control group for each attempt, where the system has handed this daemon a part of the tree (version 2, systemd's
//! `Delegate=yes` with `DelegateSubgroup=`). The agent runs in its group from its first instruction on, under the
//! configured limits; its shim stays outside, so that a limit never hits the one who reports it. At the attempt's end whoever is left in the
//! group is killed by the kernel at once: one more line behind the shim's own. Without such a part nothing changes.
//!
//! The daemon must already be in a group below the one that it was given: controllers cannot be switched on for a group that
//! has processes of its own, and a service manager could not start the next daemon in one that has them on.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinSet;
use tracing::{debug, warn};

use crate::config::ResourceLimits;

const CGROUP_ROOT: &str = "/sys/fs/cgroup";
const GROUP_NAME_PREFIX: &str = "baton-attempt-";
/// Where a process asks to be in a group.
pub(crate) const PROCS_FILE: &str = "cgroup.procs";
/// The kernel needs a moment to let go of the dead.
const REMOVE_TRIES: u32 = 50;
const REMOVE_PAUSE: Duration = Duration::from_millis(10);

/// The part of the tree that attempts' groups are made in.
#[derive(Clone, Debug)]
pub(crate) struct ControlGroups {
    base: PathBuf,
    memory_bytes: Option<u64>,
    processes: Option<u64>,
}

impl ControlGroups {
    /// Says why not, where there is none.
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
            "the daemon is not in a group below its own; DelegateSubgroup=daemon in its unit does that",
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
            format!("{} was not handed to this daemon: {error}", base.display())
        })?;
        Ok(groups)
    }

    fn enable_controllers(&self) -> io::Result<()> {
        for controller in ["+memory", "+pids"] {
            fs::write(self.base.join("cgroup.subtree_control"), controller)?;
        }
        Ok(())
    }

    /// A group for the attempt, with its limits. None where it cannot be had: then the attempt runs without.
    pub(crate) fn create_group(&self, attempt_id: &str) -> Option<PathBuf> {
        let group = self.group_path(attempt_id);
        let made = fs::create_dir(&group).and_then(|()| self.write_limits(&group));
        match made {
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

    /// Kills whoever is left in the attempt's group, and removes it, in half a second at most.
    pub(crate) async fn kill_and_remove(&self, attempt_id: &str) {
        kill_and_remove_group(&self.group_path(attempt_id)).await;
    }

    /// Groups of attempts that nobody knows any more, all at once: those that do not empty delay nobody's Hello by more than
    /// one of them would.
    pub(crate) async fn remove_unknown_groups(&self, is_known: impl Fn(&str) -> bool) {
        let Ok(entries) = fs::read_dir(&self.base) else {
            return;
        };
        let mut ending = JoinSet::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let id = name
                .to_str()
                .and_then(|name| name.strip_prefix(GROUP_NAME_PREFIX));
            if id.is_some_and(|id| !is_known(id)) {
                ending.spawn(async move { kill_and_remove_group(&entry.path()).await });
            }
        }
        ending.join_all().await;
    }

    fn group_path(&self, attempt_id: &str) -> PathBuf {
        self.base.join(format!("{GROUP_NAME_PREFIX}{attempt_id}"))
    }
}

/// The kernel's own files: none of this waits for a disk.
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
    warn!(group = %group.display(), "a control group of an attempt is not empty and stays");
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

    /// A tree of plain files that takes what a kernel's would.
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

    /// A plain directory does not empty either.
    #[tokio::test]
    async fn removing_many_busy_groups_takes_no_longer_than_one() {
        let tree = tree("");
        let groups = ControlGroups::open(tree.path(), "unit/daemon", &limits()).unwrap();
        let each = REMOVE_TRIES * REMOVE_PAUSE;
        for number in 0..40 {
            groups.create_group(&number.to_string()).unwrap();
        }
        let clock = crate::clock::Clock::boot();
        let begun = clock.now();
        groups.remove_unknown_groups(|_| false).await;
        let took = begun.until(clock.now());
        assert!(each <= took && took < 20 * each, "{took:?}");
    }
}
