//! Workspaces of attempts: which directory an attempt uses, how it is shared, and what the
//! attempt left in it. Roots are configured in `daemon.toml`; directories on disk are named by
//! ids.
//!
//! [`WorkspacePlan`] is decided without I/O. `lifecycle` creates and cleans up a workspace,
//! `lock` admits one attempt at a time to a shared root, `confined_path` keeps a working
//! directory inside its root, and `git_command` and `git_evidence` record the state before and
//! after. A directory that was not created here is never removed.

mod confined_path;
mod created_directory;
mod git_command;
mod git_evidence;
mod lifecycle;
mod lock;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use baton_proto::v1::{WorkspaceMode, WorkspaceReport, WorkspaceSpec};
use baton_proto::worker;
use bytes::Bytes;

use crate::config::{DaemonConfig, RootConfig, WorkspaceRetention};

pub(crate) use confined_path::{check_root, open_beneath, opened_path};
pub(crate) use created_directory::RECORD_FILE;
pub(crate) use git_command::version as git_version;
pub(crate) use lifecycle::{
    PrepareError, WorkspaceCleanup, WorkspaceOccupant, clean_up, prepare, transfer_lock,
};
pub(crate) use lock::LockHolder;

/// Directory for scratch directories and worktrees, in the data directory.
const CREATION_DIR: &str = "workspaces";

/// The workspace roots of this daemon.
#[derive(Clone, Debug)]
pub(crate) struct WorkspaceRoots {
    by_name: BTreeMap<String, RootConfig>,
    /// For tasks that request no workspace.
    work_dir: PathBuf,
    creation_dir: PathBuf,
}

/// How an attempt shares its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharingMode {
    /// The daemon's work directory, used by several attempts at once. The default for a task
    /// that requests no workspace.
    WorkDir,
    /// The root itself, used by one attempt at a time.
    Shared,
    /// A directory of its own.
    Scratch,
    /// A git worktree with a branch of its own.
    Worktree,
}

/// The workspace of one attempt. Stored with the attempt, so that the next daemon can clean up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkspacePlan {
    /// The root's name; empty for the work directory.
    pub(crate) name: String,
    pub(crate) root: PathBuf,
    pub(crate) mode: SharingMode,
    /// The attempt's directory: the root, or a directory created for the attempt.
    pub(crate) path: PathBuf,
    /// The working directory that the task requests.
    pub(crate) cwd: PathBuf,
    /// Branch of a worktree.
    pub(crate) branch: String,
    pub(crate) keep: WorkspaceRetention,
}

impl WorkspaceRoots {
    pub(crate) fn new(config: &DaemonConfig) -> Self {
        Self {
            by_name: config.roots.clone(),
            work_dir: config.work_dir.clone(),
            creation_dir: config.data_dir.join(CREATION_DIR),
        }
    }

    /// Root names for the Hello message.
    pub(crate) fn names(&self) -> Vec<String> {
        self.by_name.keys().cloned().collect()
    }

    /// `None` when there is no root of that name.
    pub(crate) fn plan(
        &self,
        attempt_id: &str,
        spec: Option<&WorkspaceSpec>,
        cwd: &str,
    ) -> Option<WorkspacePlan> {
        let spec = spec.cloned().unwrap_or_default();
        let named = match spec.root.as_str() {
            "" => None,
            name => Some(self.by_name.get(name)?),
        };
        let mode = match (spec.mode(), named) {
            (WorkspaceMode::Shared, _) => SharingMode::Shared,
            (WorkspaceMode::Scratch, _) => SharingMode::Scratch,
            (WorkspaceMode::Worktree, _) => SharingMode::Worktree,
            (WorkspaceMode::Unspecified, None) => SharingMode::WorkDir,
            (WorkspaceMode::Unspecified, Some(root)) => root.mode,
        };
        let root = named.map_or(&self.work_dir, |root| &root.path);
        let made_in = named.and_then(|root| root.made_in.as_ref());
        let path = match mode {
            SharingMode::WorkDir | SharingMode::Shared => root.clone(),
            SharingMode::Scratch | SharingMode::Worktree => {
                made_in.unwrap_or(&self.creation_dir).join(attempt_id)
            }
        };
        Some(WorkspacePlan {
            name: spec.root,
            root: root.clone(),
            mode,
            path,
            cwd: cwd.into(),
            branch: match mode {
                SharingMode::Worktree => format!("baton/{attempt_id}"),
                SharingMode::WorkDir | SharingMode::Shared | SharingMode::Scratch => String::new(),
            },
            keep: match spec.keep {
                Some(true) => WorkspaceRetention::Always,
                Some(false) => WorkspaceRetention::Never,
                None => named.map_or(WorkspaceRetention::default(), |root| root.retention),
            },
        })
    }
}

impl WorkspacePlan {
    /// An existing directory, without a root.
    #[cfg(test)]
    pub(crate) fn in_directory(path: &Path) -> Self {
        Self {
            name: String::new(),
            root: path.to_owned(),
            mode: SharingMode::WorkDir,
            path: path.to_owned(),
            cwd: PathBuf::new(),
            branch: String::new(),
            keep: WorkspaceRetention::default(),
        }
    }

    /// The working directory as the agent gets it. Whether it is inside the root is checked
    /// before the agent starts.
    pub(crate) fn working_directory(&self) -> PathBuf {
        let joined = self.path.join(&self.cwd);
        std::path::absolute(&joined).unwrap_or(joined)
    }

    /// The directory that no other attempt may use at the same time.
    pub(crate) fn exclusive_root(&self) -> Option<&Path> {
        (self.mode == SharingMode::Shared).then_some(&*self.root)
    }

    /// What is reported before the workspace was inspected.
    fn initial_report(&self) -> WorkspaceReport {
        WorkspaceReport {
            path: self.path.display().to_string(),
            mode: match self.mode {
                SharingMode::WorkDir => WorkspaceMode::Unspecified,
                SharingMode::Shared => WorkspaceMode::Shared,
                SharingMode::Scratch => WorkspaceMode::Scratch,
                SharingMode::Worktree => WorkspaceMode::Worktree,
            }
            .into(),
            branch: self.branch.clone(),
            kept: true,
            ..WorkspaceReport::default()
        }
    }

    /// `None` for the work directory, which all attempts share.
    pub(crate) fn to_disk(&self) -> Option<worker::AttemptWorkspace> {
        let mode = match self.mode {
            SharingMode::WorkDir => return None,
            SharingMode::Shared => WorkspaceMode::Shared,
            SharingMode::Scratch => WorkspaceMode::Scratch,
            SharingMode::Worktree => WorkspaceMode::Worktree,
        };
        Some(worker::AttemptWorkspace {
            name: self.name.clone(),
            root: path_to_bytes(&self.root),
            mode: mode.into(),
            path: path_to_bytes(&self.path),
            cwd: path_to_bytes(&self.cwd),
            branch: self.branch.clone(),
            keep: self.keep.as_str().to_owned(),
        })
    }

    /// `None` for an unknown mode of a newer daemon. Its workspace is left alone.
    pub(crate) fn from_disk(stored: worker::AttemptWorkspace) -> Option<Self> {
        Some(Self {
            mode: match stored.mode() {
                WorkspaceMode::Unspecified => return None,
                WorkspaceMode::Shared => SharingMode::Shared,
                WorkspaceMode::Scratch => SharingMode::Scratch,
                WorkspaceMode::Worktree => SharingMode::Worktree,
            },
            name: stored.name,
            root: path_from_bytes(&stored.root),
            path: path_from_bytes(&stored.path),
            cwd: path_from_bytes(&stored.cwd),
            branch: stored.branch,
            // An unknown policy keeps the directory.
            keep: WorkspaceRetention::parse(&stored.keep).unwrap_or(WorkspaceRetention::Always),
        })
    }
}

pub(crate) fn path_to_bytes(path: &Path) -> Bytes {
    use std::os::unix::ffi::OsStrExt;
    Bytes::copy_from_slice(path.as_os_str().as_bytes())
}

pub(crate) fn path_from_bytes(bytes: &Bytes) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(bytes.to_vec()).into()
}

#[cfg(test)]
mod tests;
