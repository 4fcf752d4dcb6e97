//! Coming and going: the directory is there, locked where it is shared, before the child runs; at the end what is left is
//! written down, what was made goes or stays by policy, and the next one may come in. Every step can be cut short by a
//! killed daemon: the attempt's own directory says what was planned and what was made, and the next daemon leaves for it.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_proto::v1::WorkspaceReport;
use baton_proto::{UNKNOWN_DIGEST, codes};
use tracing::warn;

use super::created_directory;
use super::created_directory::CreatedWorkspace;
use super::git_command::{GitError, GitRepository};
use super::git_evidence;
use super::git_evidence::GitEvidence;
use super::lock::{self, LockHolder, LockOutcome};
use super::{SharingMode, WorkspacePlan, confined_path};
use crate::config::WorkspaceRetention;
use crate::process::ProcessId;

/// For giving a lock back.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// Who comes.
#[derive(Clone, Debug)]
pub(crate) struct WorkspaceOccupant {
    /// As it stands in the lock of a shared root.
    pub(crate) holder: LockHolder,
    /// The attempt's own directory, for the record.
    pub(crate) attempt_dir: PathBuf,
}

/// Why an attempt cannot work there.
#[derive(Debug)]
pub(crate) enum PrepareError {
    /// Somebody is in there: who, for people.
    Busy(String),
    Failed {
        code: &'static str,
        message: String,
    },
}

impl PrepareError {
    fn bad_cwd(message: impl ToString) -> Self {
        Self::Failed {
            code: codes::BAD_CWD,
            message: message.to_string(),
        }
    }
}

impl From<GitError> for PrepareError {
    fn from(error: GitError) -> Self {
        Self::bad_cwd(error)
    }
}

/// Makes the place and returns the working directory in it, with what is known at the start. Dropping the future
/// leaves what is half made to `leave`.
pub(crate) async fn prepare(
    plan: &WorkspacePlan,
    guest: &WorkspaceOccupant,
) -> Result<(PathBuf, Option<WorkspaceReport>), PrepareError> {
    let git = |directory| GitRepository {
        directory,
        attempt_id: &guest.holder.attempt_id,
    };
    let base_commit = match plan.mode {
        SharingMode::WorkDir => return Ok((find_cwd(plan).await?, None)),
        SharingMode::Shared => {
            take_lock(plan, guest).await?;
            let base = git_evidence::read_head_commit(git(&plan.root)).await;
            write_record(guest, &base, None).await?;
            base
        }
        SharingMode::Scratch => {
            create_and_record(plan, guest, "").await?;
            String::new()
        }
        SharingMode::Worktree => {
            let head = git(&plan.root)
                .run(&["rev-parse", "--verify", "HEAD"])
                .await;
            let base = head.map_err(|error| {
                let root = plan.root.display();
                PrepareError::bad_cwd(format!(
                    "{root} can have no worktrees: {error}; give it a first commit, or ask for another --workspace-mode"
                ))
            })?;
            create_and_record(plan, guest, &base).await?;
            let path = plan.path.to_string_lossy();
            let words = [
                "worktree",
                "add",
                "--quiet",
                "-b",
                &plan.branch,
                &path,
                &base,
            ];
            git(&plan.root).run(&words).await?;
            base
        }
    };
    let cwd = find_cwd(plan).await?;
    let report = WorkspaceReport {
        base_commit,
        ..plan.initial_report()
    };
    Ok((cwd, Some(report)))
}

/// From here on another process stands for the attempt in a shared root.
pub(crate) async fn transfer_lock(
    root: PathBuf,
    attempt_id: String,
    to: ProcessId,
) -> io::Result<()> {
    lock::retry_while_busy(move || lock::transfer(&root, &attempt_id, to)).await
}

/// How an attempt goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkspaceCleanup {
    /// Nobody of it is left, as far as can be proved. Otherwise nothing is removed, and the lock falls with its holder.
    pub(crate) processes_proved_gone: bool,
    /// For seeing what is left, and removing what is to go.
    pub(crate) time_limit: Duration,
}

/// The attempt is over. Says what it leaves; idempotent, and harmless where nothing was made.
pub(crate) async fn clean_up(
    plan: &WorkspacePlan,
    guest: &WorkspaceOccupant,
    departure: WorkspaceCleanup,
) -> Option<WorkspaceReport> {
    if plan.mode == SharingMode::WorkDir {
        return None;
    }
    let mut report = plan.initial_report();
    let WorkspaceCleanup {
        processes_proved_gone: is_proved,
        time_limit: limit,
    } = departure;
    let wound_up = report_and_remove(plan, guest, is_proved, &mut report);
    if tokio::time::timeout(limit, wound_up).await.is_err() {
        warn!(path = %plan.path.display(), "no time to see what is left; it stays as it is");
        if report.head_commit.is_empty() && report.changed_files == 0 {
            report.dirty_digest = UNKNOWN_DIGEST.to_owned();
        }
    }
    if is_proved {
        release_lock(plan, guest).await;
    }
    Some(report)
}

async fn report_and_remove(
    plan: &WorkspacePlan,
    guest: &WorkspaceOccupant,
    is_proved: bool,
    report: &mut WorkspaceReport,
) {
    let directory = guest.attempt_dir.clone();
    let made = run_blocking(move || Ok(CreatedWorkspace::read(&directory))).await;
    let makes = plan.path != plan.root;
    match made.ok().flatten() {
        // Something stood there before: that is nobody's to look at or to remove.
        Some(made) if makes && made.directory.is_none() => {}
        Some(made) => {
            report.base_commit.clone_from(&made.base_commit);
            inspect_workspace(plan, guest, &made, report).await;
            if is_proved {
                remove_by_policy(plan, guest, &made, report).await;
            }
        }
        // Made and not noted: then nothing is in it, and only then does it go.
        None if makes => {
            let path = plan.path.clone();
            let removed = run_blocking(move || std::fs::remove_dir(path)).await;
            let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
            report.kept = removed.is_err_and(|error| !is_gone(&error));
        }
        None => {}
    }
}

/// Lets the next attempt into a shared root.
async fn release_lock(plan: &WorkspacePlan, guest: &WorkspaceOccupant) {
    let Some(root) = plan.exclusive_root().map(Path::to_owned) else {
        return;
    };
    let id = guest.holder.attempt_id.clone();
    let released = lock::retry_while_busy(move || lock::release(&root, &id));
    // Later it is released all the same, or not: nobody's last word waits for that.
    let released = tokio::time::timeout(RELEASE_TIMEOUT, released).await;
    if let Err(error) = released.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        // Its holder is dead, which the next one sees for itself.
        warn!(root = %plan.root.display(), %error, "the lock of a workspace was not removed");
    }
}

async fn inspect_workspace(
    plan: &WorkspacePlan,
    guest: &WorkspaceOccupant,
    made: &CreatedWorkspace,
    report: &mut WorkspaceReport,
) {
    let git = GitRepository {
        directory: &plan.path,
        attempt_id: &guest.holder.attempt_id,
    };
    let (path, number) = (plan.path.clone(), made.directory);
    // A mount that hangs shows nothing, and git would hang there too.
    let (is_git, entries) = match run_blocking(move || inspect_directory(&path, number)).await {
        Ok(seen) => seen,
        // Then nothing is in it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => return mark_unknown(plan, report, &error),
    };
    if plan.mode == SharingMode::Scratch && !is_git {
        report.changed_files = entries;
        return;
    }
    // Git would look for a repository above it, and tell of that one.
    if plan.mode == SharingMode::Worktree && !is_git {
        return mark_unknown(plan, report, &"it is no worktree any more");
    }
    if made.base_commit.is_empty() && plan.mode == SharingMode::Shared && !is_git {
        return;
    }
    match git_evidence::collect_evidence(git).await {
        Ok(GitEvidence {
            head_commit,
            dirty_digest,
            changed_files,
        }) => {
            report.head_commit = head_commit;
            report.dirty_digest = dirty_digest;
            report.changed_files = changed_files;
        }
        Err(error) => mark_unknown(plan, report, &error),
    }
}

/// Nothing is known to be left, which is not the same as that nothing is.
fn mark_unknown(plan: &WorkspacePlan, report: &mut WorkspaceReport, why: &dyn std::fmt::Display) {
    warn!(path = %plan.path.display(), %why, "cannot see what was left");
    report.dirty_digest = UNKNOWN_DIGEST.to_owned();
}

/// Whether git knows the directory, and how much is in it. One that was made is looked into only if it still stands there.
fn inspect_directory(
    directory: &Path,
    made: Option<created_directory::DirectoryId>,
) -> io::Result<(bool, u64)> {
    let opened = created_directory::open_directory(directory, made)?;
    let inside = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let entries = std::fs::read_dir(&inside)?.count() as u64;
    let is_git = std::fs::symlink_metadata(inside.join(".git")).is_ok();
    Ok((is_git, entries))
}

/// Removes what was made, where the policy and what is left allow it.
async fn remove_by_policy(
    plan: &WorkspacePlan,
    guest: &WorkspaceOccupant,
    made: &CreatedWorkspace,
    report: &mut WorkspaceReport,
) {
    let Some(directory) = made.directory else {
        return;
    };
    let stays = match plan.keep {
        WorkspaceRetention::Always => true,
        WorkspaceRetention::Never => false,
        WorkspaceRetention::Changed => !is_disposable(plan, guest, report).await,
    };
    if stays {
        return;
    }
    let removed = match plan.mode {
        SharingMode::WorkDir | SharingMode::Shared => return,
        SharingMode::Scratch => {
            let path = plan.path.clone();
            run_blocking(move || created_directory::remove_directory(&path, directory)).await
        }
        SharingMode::Worktree => remove_worktree(plan, guest, made).await,
    };
    match removed {
        Ok(()) => report.kept = false,
        Err(error) => {
            warn!(path = %plan.path.display(), %error, "a directory that was made for an attempt stays");
        }
    }
}

/// Nothing in it would be lost: commits stay on the branch.
async fn is_disposable(
    plan: &WorkspacePlan,
    guest: &WorkspaceOccupant,
    report: &WorkspaceReport,
) -> bool {
    match plan.mode {
        SharingMode::WorkDir | SharingMode::Shared => false,
        SharingMode::Scratch => {
            let is_empty = report.changed_files == 0 && report.head_commit.is_empty();
            is_empty && report.dirty_digest.is_empty()
        }
        SharingMode::Worktree => {
            let git = GitRepository {
                directory: &plan.root,
                attempt_id: &guest.holder.attempt_id,
            };
            let words = ["rev-parse", "--verify", "--quiet", &plan.branch];
            let tip = git.run(&words).await.unwrap_or_default();
            let is_clean = report.dirty_digest.is_empty() && !report.head_commit.is_empty();
            is_clean && (report.head_commit == report.base_commit || report.head_commit == tip)
        }
    }
}

/// A branch that was never moved goes with it; git checks that it was not.
async fn remove_worktree(
    plan: &WorkspacePlan,
    guest: &WorkspaceOccupant,
    made: &CreatedWorkspace,
) -> io::Result<()> {
    let (path, number) = (plan.path.clone(), made.directory);
    let is_ours =
        run_blocking(move || Ok(Some(created_directory::DirectoryId::of_path(&path)?) == number))
            .await;
    let git = GitRepository {
        directory: &plan.root,
        attempt_id: &guest.holder.attempt_id,
    };
    match is_ours {
        Ok(true) => {
            let path = plan.path.to_string_lossy();
            let words = ["worktree", "remove", "--force", &*path];
            git.run(&words).await.map_err(io::Error::other)?;
        }
        Ok(false) => return Err(io::Error::other("another directory stands there now")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let branch = format!("refs/heads/{}", plan.branch);
    // It has moved, and so stays.
    let _ = git
        .run(&["update-ref", "-d", &branch, &made.base_commit])
        .await;
    Ok(())
}

async fn take_lock(plan: &WorkspacePlan, guest: &WorkspaceOccupant) -> Result<(), PrepareError> {
    let (root, holder) = (plan.root.clone(), guest.holder.clone());
    match lock::retry_while_busy(move || lock::acquire(&root, &holder)).await {
        Ok(LockOutcome::Acquired) => Ok(()),
        Ok(LockOutcome::Busy(holder)) => Err(PrepareError::Busy(holder.to_string())),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(PrepareError::Busy(error.to_string()))
        }
        Err(error) => Err(PrepareError::bad_cwd(format!(
            "cannot lock the workspace {}: {error}",
            plan.root.display()
        ))),
    }
}

async fn create_and_record(
    plan: &WorkspacePlan,
    guest: &WorkspaceOccupant,
    base: &str,
) -> Result<(), PrepareError> {
    let path = plan.path.clone();
    let made = run_blocking(move || created_directory::create_directory(&path)).await;
    if let Err(error) = &made
        && error.kind() == io::ErrorKind::AlreadyExists
    {
        write_record(guest, base, None).await?;
    }
    let number = made.map_err(|error| {
        PrepareError::bad_cwd(format!(
            "cannot make the directory {}: {error}",
            plan.path.display()
        ))
    })?;
    write_record(guest, base, Some(number)).await
}

async fn write_record(
    guest: &WorkspaceOccupant,
    base: &str,
    directory: Option<created_directory::DirectoryId>,
) -> Result<(), PrepareError> {
    let record = CreatedWorkspace {
        base_commit: base.to_owned(),
        directory,
    };
    let place = guest.attempt_dir.clone();
    let noted = run_blocking(move || record.write(&place)).await;
    noted.map_err(|error| PrepareError::Failed {
        code: codes::SPAWN_FAILED,
        message: format!("cannot note the workspace: {error}"),
    })
}

async fn find_cwd(plan: &WorkspacePlan) -> Result<PathBuf, PrepareError> {
    let (path, cwd) = (plan.path.clone(), plan.cwd.clone());
    let found = tokio::task::spawn_blocking(move || confined_path::resolve_cwd(&path, &cwd)).await;
    let found = found.map_err(PrepareError::bad_cwd)?;
    found.map_err(PrepareError::bad_cwd)
}

/// A disk that hangs holds up nobody else.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}
