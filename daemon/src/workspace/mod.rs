//! Where an attempt works: which directory, shared how, and what it left there. Roots are named in `daemon.toml`; names
//! that people give stay in it, names on the disk come from ids. `plan` decides without looking at a disk, `visit` makes
//! and leaves a place, `lock` lets one attempt at a time into a shared one, `beneath` keeps a working directory inside
//! its root, `git` and `evidence` say what was there and what is left. What was not made here is never removed.

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

/// Where scratch directories and worktrees are made, in the data directory.
const CREATION_DIR: &str = "workspaces";

/// The roots of this daemon.
#[derive(Clone, Debug)]
pub(crate) struct WorkspaceRoots {
    by_name: BTreeMap<String, RootConfig>,
    /// For tasks that ask for nothing.
    work_dir: PathBuf,
    creation_dir: PathBuf,
}

/// How an attempt shares its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharingMode {
    /// The daemon's work directory, side by side with others: what a task gets that asks for nothing.
    WorkDir,
    /// The root itself; one attempt at a time.
    Shared,
    /// A directory of its own.
    Scratch,
    /// A git worktree and a branch of its own.
    Worktree,
}

/// Where one attempt works. Kept with the attempt, so that the next daemon knows what this one made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkspacePlan {
    /// The root's name; empty for the work directory.
    pub(crate) name: String,
    pub(crate) root: PathBuf,
    pub(crate) mode: SharingMode,
    /// The attempt's directory: the root, or one that is made for it.
    pub(crate) path: PathBuf,
    /// As the task asks for it.
    pub(crate) cwd: PathBuf,
    /// Of a worktree.
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

    /// For Hello.
    pub(crate) fn names(&self) -> Vec<String> {
        self.by_name.keys().cloned().collect()
    }

    /// `None`: there is no root of that name.
    pub(crate) fn plan(
        &self,
        attempt_id: &str,
        asked: Option<&WorkspaceSpec>,
        cwd: &str,
    ) -> Option<WorkspacePlan> {
        let asked = asked.cloned().unwrap_or_default();
        let named = match asked.root.as_str() {
            "" => None,
            name => Some(self.by_name.get(name)?),
        };
        let mode = match (asked.mode(), named) {
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
            name: asked.root,
            root: root.clone(),
            mode,
            path,
            cwd: cwd.into(),
            branch: match mode {
                SharingMode::Worktree => format!("baton/{attempt_id}"),
                SharingMode::WorkDir | SharingMode::Shared | SharingMode::Scratch => String::new(),
            },
            keep: match asked.keep {
                Some(true) => WorkspaceRetention::Always,
                Some(false) => WorkspaceRetention::Never,
                None => named.map_or(WorkspaceRetention::default(), |root| root.retention),
            },
        })
    }
}

impl WorkspacePlan {
    /// Nothing but a directory that is there.
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

    /// The working directory as the agent is told it. Whether it is inside is checked before anything runs.
    pub(crate) fn working_directory(&self) -> PathBuf {
        let joined = self.path.join(&self.cwd);
        std::path::absolute(&joined).unwrap_or(joined)
    }

    /// The directory that no other attempt may be in at the same time.
    pub(crate) fn exclusive_root(&self) -> Option<&Path> {
        (self.mode == SharingMode::Shared).then_some(&*self.root)
    }

    /// What is known before anything was looked at.
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

    /// Nothing is kept of a directory that every attempt uses.
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

    /// `None` for a mode that a newer daemon made: it is left alone.
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
            // What cannot be told stays.
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
