//! Where an attempt works: which directory, shared how, and what it left there. Roots are named in `daemon.toml`; names
//! that people give stay in it, names on the disk come from ids. `plan` decides without looking at a disk, `visit` makes
//! and leaves a place, `lock` lets one attempt at a time into a shared one, `beneath` keeps a working directory inside
//! its root, `git` and `evidence` say what was there and what is left. What was not made here is never removed.

mod beneath;
mod evidence;
mod git;
mod lock;
mod made;
mod visit;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use baton_proto::v1::{WorkspaceMode, WorkspaceReport, WorkspaceSpec};
use baton_proto::worker;
use bytes::Bytes;

use crate::config::{DaemonConfig, Keep, RootConfig};

pub(crate) use beneath::{is_root, open_beneath, read_path};
pub(crate) use git::version as git_version;
pub(crate) use lock::Holder;
pub(crate) use made::RECORD;
pub(crate) use visit::{Departure, Guest, NotEntered, enter, hand_over, leave};

/// Where scratch directories and worktrees are made, in the data directory.
const MADE_IN: &str = "workspaces";

/// The roots of this daemon.
#[derive(Clone, Debug)]
pub(crate) struct Roots {
    by_name: BTreeMap<String, RootConfig>,
    /// For tasks that ask for nothing.
    work_dir: PathBuf,
    made_in: PathBuf,
}

/// How an attempt shares its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The daemon's work directory, side by side with others: what a task gets that asks for nothing.
    Open,
    /// The root itself; one attempt at a time.
    Shared,
    /// A directory of its own.
    Scratch,
    /// A git worktree and a branch of its own.
    Worktree,
}

/// Where one attempt works. Kept with the attempt, so that the next daemon knows what this one made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The root's name; empty for the work directory.
    pub(crate) name: String,
    pub(crate) root: PathBuf,
    pub(crate) mode: Mode,
    /// The attempt's directory: the root, or one that is made for it.
    pub(crate) path: PathBuf,
    /// As the task asks for it.
    pub(crate) cwd: PathBuf,
    /// Of a worktree.
    pub(crate) branch: String,
    pub(crate) keep: Keep,
}

impl Roots {
    pub(crate) fn new(config: &DaemonConfig) -> Self {
        Self {
            by_name: config.roots.clone(),
            work_dir: config.work_dir.clone(),
            made_in: config.data_dir.join(MADE_IN),
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
    ) -> Option<Plan> {
        let asked = asked.cloned().unwrap_or_default();
        let named = match asked.root.as_str() {
            "" => None,
            name => Some(self.by_name.get(name)?),
        };
        let mode = match (asked.mode(), named) {
            (WorkspaceMode::Shared, _) => Mode::Shared,
            (WorkspaceMode::Scratch, _) => Mode::Scratch,
            (WorkspaceMode::Worktree, _) => Mode::Worktree,
            (WorkspaceMode::Unspecified, None) => Mode::Open,
            (WorkspaceMode::Unspecified, Some(root)) => root.mode,
        };
        let root = named.map_or(&self.work_dir, |root| &root.path);
        let made_in = named.and_then(|root| root.made_in.as_ref());
        let path = match mode {
            Mode::Open | Mode::Shared => root.clone(),
            Mode::Scratch | Mode::Worktree => made_in.unwrap_or(&self.made_in).join(attempt_id),
        };
        Some(Plan {
            name: asked.root,
            root: root.clone(),
            mode,
            path,
            cwd: cwd.into(),
            branch: match mode {
                Mode::Worktree => format!("baton/{attempt_id}"),
                Mode::Open | Mode::Shared | Mode::Scratch => String::new(),
            },
            keep: match asked.keep {
                Some(true) => Keep::Always,
                Some(false) => Keep::Never,
                None => named.map_or(Keep::default(), |root| root.keep),
            },
        })
    }
}

impl Plan {
    /// Nothing but a directory that is there.
    #[cfg(test)]
    pub(crate) fn open(path: &Path) -> Self {
        Self {
            name: String::new(),
            root: path.to_owned(),
            mode: Mode::Open,
            path: path.to_owned(),
            cwd: PathBuf::new(),
            branch: String::new(),
            keep: Keep::default(),
        }
    }

    /// The working directory as the agent is told it. Whether it is inside is checked before anything runs.
    pub(crate) fn working_directory(&self) -> PathBuf {
        let joined = self.path.join(&self.cwd);
        std::path::absolute(&joined).unwrap_or(joined)
    }

    /// The directory that no other attempt may be in at the same time.
    pub(crate) fn exclusive(&self) -> Option<&Path> {
        (self.mode == Mode::Shared).then_some(&*self.root)
    }

    /// What is known before anything was looked at.
    fn report(&self) -> WorkspaceReport {
        WorkspaceReport {
            path: self.path.display().to_string(),
            mode: match self.mode {
                Mode::Open => WorkspaceMode::Unspecified,
                Mode::Shared => WorkspaceMode::Shared,
                Mode::Scratch => WorkspaceMode::Scratch,
                Mode::Worktree => WorkspaceMode::Worktree,
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
            Mode::Open => return None,
            Mode::Shared => WorkspaceMode::Shared,
            Mode::Scratch => WorkspaceMode::Scratch,
            Mode::Worktree => WorkspaceMode::Worktree,
        };
        Some(worker::AttemptWorkspace {
            name: self.name.clone(),
            root: bytes(&self.root),
            mode: mode.into(),
            path: bytes(&self.path),
            cwd: bytes(&self.cwd),
            branch: self.branch.clone(),
            keep: self.keep.as_str().to_owned(),
        })
    }

    /// `None` for a mode that a newer daemon made: it is left alone.
    pub(crate) fn from_disk(stored: worker::AttemptWorkspace) -> Option<Self> {
        Some(Self {
            mode: match stored.mode() {
                WorkspaceMode::Unspecified => return None,
                WorkspaceMode::Shared => Mode::Shared,
                WorkspaceMode::Scratch => Mode::Scratch,
                WorkspaceMode::Worktree => Mode::Worktree,
            },
            name: stored.name,
            root: path(&stored.root),
            path: path(&stored.path),
            cwd: path(&stored.cwd),
            branch: stored.branch,
            // What cannot be told stays.
            keep: Keep::parse(&stored.keep).unwrap_or(Keep::Always),
        })
    }
}

pub(crate) fn bytes(path: &Path) -> Bytes {
    use std::os::unix::ffi::OsStrExt;
    Bytes::copy_from_slice(path.as_os_str().as_bytes())
}

pub(crate) fn path(bytes: &Bytes) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(bytes.to_vec()).into()
}

#[cfg(test)]
mod tests;
