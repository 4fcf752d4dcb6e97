//! Preparing and cleaning up a workspace. Before the child runs, the directory exists and a
//! shared root is locked. At the end the state is recorded, a created directory is removed or
//! kept by policy, and the lock is released. A crash of the daemon can interrupt every step:
//! the attempt's directory records what was planned and created, and the next daemon cleans up
//! from that.

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

/// Time limit for releasing a lock.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// The attempt that uses a workspace.
#[derive(Clone, Debug)]
pub(crate) struct WorkspaceOccupant {
    /// As it is written into the lock of a shared root.
    pub(crate) holder: LockHolder,
    /// The attempt's own directory, where the record is stored.
    pub(crate) attempt_dir: PathBuf,
}

/// Why an attempt cannot use its workspace.
#[derive(Debug)]
pub(crate) enum PrepareError {
    /// Another attempt uses the root; describes it for display.
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

/// Creates the workspace and returns the working directory in it, with the first report. If the
/// future is dropped, `clean_up` removes what was created so far.
pub(crate) async fn prepare(
    plan: &WorkspacePlan,
    occupant: &WorkspaceOccupant,
) -> Result<(PathBuf, Option<WorkspaceReport>), PrepareError> {
    let git = |directory| GitRepository {
        directory,
        attempt_id: &occupant.holder.attempt_id,
    };
    let base_commit = match plan.mode {
        SharingMode::WorkDir => return Ok((find_cwd(plan).await?, None)),
        SharingMode::Shared => {
            take_lock(plan, occupant).await?;
            let base = git_evidence::read_head_commit(git(&plan.root)).await;
            write_record(occupant, &base, None).await?;
            base
        }
        SharingMode::Scratch => {
            create_and_record(plan, occupant, "").await?;
            String::new()
        }
        SharingMode::Worktree => {
            let head = git(&plan.root)
                .run(&["rev-parse", "--verify", "HEAD"])
                .await;
            let base = head.map_err(|error| {
                let root = plan.root.display();
                PrepareError::bad_cwd(format!(
                    "cannot create a worktree of {root}: {error}; make a first commit there, or choose another --workspace-mode"
                ))
            })?;
            create_and_record(plan, occupant, &base).await?;
            let path = plan.path.to_string_lossy();
            let args = [
                "worktree",
                "add",
                "--quiet",
                "-b",
                &plan.branch,
                &path,
                &base,
            ];
            git(&plan.root).run(&args).await?;
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

/// Makes another process the lock's holder for the attempt in a shared root.
pub(crate) async fn transfer_lock(
    root: PathBuf,
    attempt_id: String,
    to: ProcessId,
) -> io::Result<()> {
    lock::retry_while_busy(move || lock::transfer(&root, &attempt_id, to)).await
}

/// How a workspace is cleaned up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkspaceCleanup {
    /// It is proved that no process of the attempt is left. Otherwise nothing is removed, and
    /// the lock ends with its holder.
    pub(crate) processes_proved_gone: bool,
    /// Time limit for inspecting and removing the workspace.
    pub(crate) time_limit: Duration,
}

/// Cleans up after an ended attempt and reports what it leaves. May be repeated, and does
/// nothing where nothing was created.
pub(crate) async fn clean_up(
    plan: &WorkspacePlan,
    occupant: &WorkspaceOccupant,
    cleanup: WorkspaceCleanup,
) -> Option<WorkspaceReport> {
    if plan.mode == SharingMode::WorkDir {
        return None;
    }
    let mut report = plan.initial_report();
    let WorkspaceCleanup {
        processes_proved_gone,
        time_limit,
    } = cleanup;
    let finished = report_and_remove(plan, occupant, processes_proved_gone, &mut report);
    if tokio::time::timeout(time_limit, finished).await.is_err() {
        warn!(path = %plan.path.display(), "workspace inspection timed out; the workspace is kept");
        if report.head_commit.is_empty() && report.changed_files == 0 {
            report.dirty_digest = UNKNOWN_DIGEST.to_owned();
        }
    }
    if processes_proved_gone {
        release_lock(plan, occupant).await;
    }
    Some(report)
}

async fn report_and_remove(
    plan: &WorkspacePlan,
    occupant: &WorkspaceOccupant,
    processes_proved_gone: bool,
    report: &mut WorkspaceReport,
) {
    let directory = occupant.attempt_dir.clone();
    let created = run_blocking(move || Ok(CreatedWorkspace::read(&directory))).await;
    let has_own_directory = plan.path != plan.root;
    match created.ok().flatten() {
        // The directory existed before the attempt, so it is neither inspected nor removed.
        Some(created) if has_own_directory && created.directory.is_none() => {}
        Some(created) => {
            report.base_commit.clone_from(&created.base_commit);
            inspect_workspace(plan, occupant, &created, report).await;
            if processes_proved_gone {
                remove_by_policy(plan, occupant, &created, report).await;
            }
        }
        // The directory may have been created without a record. Then it is empty, and it is
        // removed only if it is.
        None if has_own_directory => {
            let path = plan.path.clone();
            let removed = run_blocking(move || std::fs::remove_dir(path)).await;
            let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
            report.kept = removed.is_err_and(|error| !is_missing(&error));
        }
        None => {}
    }
}

/// Lets the next attempt into a shared root.
async fn release_lock(plan: &WorkspacePlan, occupant: &WorkspaceOccupant) {
    let Some(root) = plan.exclusive_root().map(Path::to_owned) else {
        return;
    };
    let id = occupant.holder.attempt_id.clone();
    let released = lock::retry_while_busy(move || lock::release(&root, &id));
    // The attempt's result does not wait for the lock. A release that is late still takes
    // effect.
    let released = tokio::time::timeout(RELEASE_TIMEOUT, released).await;
    if let Err(error) = released.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        // The holder is dead, which the next attempt detects.
        warn!(root = %plan.root.display(), %error, "cannot release the workspace lock");
    }
}

async fn inspect_workspace(
    plan: &WorkspacePlan,
    occupant: &WorkspaceOccupant,
    created: &CreatedWorkspace,
    report: &mut WorkspaceReport,
) {
    let git = GitRepository {
        directory: &plan.path,
        attempt_id: &occupant.holder.attempt_id,
    };
    let (path, id) = (plan.path.clone(), created.directory);
    // A mount that hangs blocks this call, so git is not started there.
    let (is_git, entries) = match run_blocking(move || inspect_directory(&path, id)).await {
        Ok(inspected) => inspected,
        // The directory is gone, so nothing is left in it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => return mark_unknown(plan, report, &error),
    };
    if plan.mode == SharingMode::Scratch && !is_git {
        report.changed_files = entries;
        return;
    }
    // Git would find a repository in a parent directory and report its state.
    if plan.mode == SharingMode::Worktree && !is_git {
        return mark_unknown(plan, report, &"it is not a worktree any more");
    }
    if created.base_commit.is_empty() && plan.mode == SharingMode::Shared && !is_git {
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

/// Marks the changes as unknown, which differs from having no changes.
fn mark_unknown(plan: &WorkspacePlan, report: &mut WorkspaceReport, why: &dyn std::fmt::Display) {
    warn!(path = %plan.path.display(), %why, "cannot inspect the workspace");
    report.dirty_digest = UNKNOWN_DIGEST.to_owned();
}

/// Whether the directory is a git work tree, and its number of entries. A created directory is
/// inspected only if it is still the same one.
fn inspect_directory(
    directory: &Path,
    created: Option<created_directory::DirectoryId>,
) -> io::Result<(bool, u64)> {
    let opened = created_directory::open_directory(directory, created)?;
    let inside = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let entries = std::fs::read_dir(&inside)?.count() as u64;
    let is_git = std::fs::symlink_metadata(inside.join(".git")).is_ok();
    Ok((is_git, entries))
}

/// Removes the created directory if the policy and its content allow it.
async fn remove_by_policy(
    plan: &WorkspacePlan,
    occupant: &WorkspaceOccupant,
    created: &CreatedWorkspace,
    report: &mut WorkspaceReport,
) {
    let Some(directory) = created.directory else {
        return;
    };
    let is_kept = match plan.keep {
        WorkspaceRetention::Always => true,
        WorkspaceRetention::Never => false,
        WorkspaceRetention::Changed => !is_disposable(plan, occupant, report).await,
    };
    if is_kept {
        return;
    }
    let removed = match plan.mode {
        SharingMode::WorkDir | SharingMode::Shared => return,
        SharingMode::Scratch => {
            let path = plan.path.clone();
            run_blocking(move || created_directory::remove_directory(&path, directory)).await
        }
        SharingMode::Worktree => remove_worktree(plan, occupant, created).await,
    };
    match removed {
        Ok(()) => report.kept = false,
        Err(error) => {
            warn!(path = %plan.path.display(), %error, "cannot remove the workspace directory of an attempt");
        }
    }
}

/// Whether removing it loses no work. Commits stay on the branch.
async fn is_disposable(
    plan: &WorkspacePlan,
    occupant: &WorkspaceOccupant,
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
                attempt_id: &occupant.holder.attempt_id,
            };
            let args = ["rev-parse", "--verify", "--quiet", &plan.branch];
            let tip = git.run(&args).await.unwrap_or_default();
            let is_clean = report.dirty_digest.is_empty() && !report.head_commit.is_empty();
            is_clean && (report.head_commit == report.base_commit || report.head_commit == tip)
        }
    }
}

/// Removes the worktree and its branch. The branch is deleted only if it still points to the
/// base commit, which git checks.
async fn remove_worktree(
    plan: &WorkspacePlan,
    occupant: &WorkspaceOccupant,
    created: &CreatedWorkspace,
) -> io::Result<()> {
    let (path, id) = (plan.path.clone(), created.directory);
    let is_ours =
        run_blocking(move || Ok(Some(created_directory::DirectoryId::of_path(&path)?) == id)).await;
    let git = GitRepository {
        directory: &plan.root,
        attempt_id: &occupant.holder.attempt_id,
    };
    match is_ours {
        Ok(true) => {
            let path = plan.path.to_string_lossy();
            let args = ["worktree", "remove", "--force", &*path];
            git.run(&args).await.map_err(io::Error::other)?;
        }
        Ok(false) => {
            return Err(io::Error::other(
                "the directory was replaced by another one",
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let branch = format!("refs/heads/{}", plan.branch);
    // This fails if the branch has moved, and then the branch stays.
    let _ = git
        .run(&["update-ref", "-d", &branch, &created.base_commit])
        .await;
    Ok(())
}

async fn take_lock(plan: &WorkspacePlan, occupant: &WorkspaceOccupant) -> Result<(), PrepareError> {
    let (root, holder) = (plan.root.clone(), occupant.holder.clone());
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
    occupant: &WorkspaceOccupant,
    base: &str,
) -> Result<(), PrepareError> {
    let path = plan.path.clone();
    let created = run_blocking(move || created_directory::create_directory(&path)).await;
    if let Err(error) = &created
        && error.kind() == io::ErrorKind::AlreadyExists
    {
        write_record(occupant, base, None).await?;
    }
    let id = created.map_err(|error| {
        PrepareError::bad_cwd(format!(
            "cannot create the directory {}: {error}",
            plan.path.display()
        ))
    })?;
    write_record(occupant, base, Some(id)).await
}

async fn write_record(
    occupant: &WorkspaceOccupant,
    base: &str,
    directory: Option<created_directory::DirectoryId>,
) -> Result<(), PrepareError> {
    let record = CreatedWorkspace {
        base_commit: base.to_owned(),
        directory,
    };
    let attempt_dir = occupant.attempt_dir.clone();
    let written = run_blocking(move || record.write(&attempt_dir)).await;
    written.map_err(|error| PrepareError::Failed {
        code: codes::SPAWN_FAILED,
        message: format!("cannot write the workspace record: {error}"),
    })
}

async fn find_cwd(plan: &WorkspacePlan) -> Result<PathBuf, PrepareError> {
    let (path, cwd) = (plan.path.clone(), plan.cwd.clone());
    let resolved =
        tokio::task::spawn_blocking(move || confined_path::resolve_cwd(&path, &cwd)).await;
    let resolved = resolved.map_err(PrepareError::bad_cwd)?;
    resolved.map_err(PrepareError::bad_cwd)
}

/// Runs on a blocking thread, so that a disk that hangs delays nothing else.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}
