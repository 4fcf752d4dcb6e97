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

use super::evidence::{self, Evidence};
use super::git::{Git, GitError};
use super::lock::{self, Holder, Taken};
use super::made::{self, Made};
use super::{Mode, Plan, beneath};
use crate::config::Keep;
use crate::process::ProcessId;

/// For giving a lock back.
const RELEASE: Duration = Duration::from_secs(1);

/// Who comes.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    /// As it stands in the lock of a shared root.
    pub(crate) holder: Holder,
    /// The attempt's own directory, for the record.
    pub(crate) directory: PathBuf,
}

/// Why an attempt cannot work there.
#[derive(Debug)]
pub(crate) enum NotEntered {
    /// Somebody is in there: who, for people.
    Busy(String),
    Failed {
        code: &'static str,
        message: String,
    },
}

impl NotEntered {
    fn failed(message: impl ToString) -> Self {
        Self::Failed {
            code: codes::BAD_CWD,
            message: message.to_string(),
        }
    }
}

impl From<GitError> for NotEntered {
    fn from(error: GitError) -> Self {
        Self::failed(error)
    }
}

/// Makes the place and returns the working directory in it, with what is known at the start. Dropping the future
/// leaves what is half made to `leave`.
pub(crate) async fn enter(
    plan: &Plan,
    guest: &Guest,
) -> Result<(PathBuf, Option<WorkspaceReport>), NotEntered> {
    let git = |directory| Git {
        directory,
        attempt_id: &guest.holder.attempt_id,
    };
    let base_commit = match plan.mode {
        Mode::Open => return Ok((find_cwd(plan).await?, None)),
        Mode::Shared => {
            take_lock(plan, guest).await?;
            let base = evidence::head(git(&plan.root)).await;
            note(guest, &base, None).await?;
            base
        }
        Mode::Scratch => {
            make(plan, guest, "").await?;
            String::new()
        }
        Mode::Worktree => {
            let head = git(&plan.root)
                .say(&["rev-parse", "--verify", "HEAD"])
                .await;
            let base = head.map_err(|error| {
                let root = plan.root.display();
                NotEntered::failed(format!(
                    "{root} can have no worktrees: {error}; give it a first commit, or ask for another --workspace-mode"
                ))
            })?;
            make(plan, guest, &base).await?;
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
            git(&plan.root).say(&words).await?;
            base
        }
    };
    let cwd = find_cwd(plan).await?;
    let report = WorkspaceReport {
        base_commit,
        ..plan.report()
    };
    Ok((cwd, Some(report)))
}

/// From here on another process stands for the attempt in a shared root.
pub(crate) async fn hand_over(root: PathBuf, attempt_id: String, to: ProcessId) -> io::Result<()> {
    lock::patiently(move || lock::hand_over(&root, &attempt_id, to)).await
}

/// How an attempt goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departure {
    /// Nobody of it is left, as far as can be proved. Otherwise nothing is removed, and the lock falls with its holder.
    pub(crate) is_proved: bool,
    /// For seeing what is left, and removing what is to go.
    pub(crate) limit: Duration,
}

/// The attempt is over. Says what it leaves; idempotent, and harmless where nothing was made.
pub(crate) async fn leave(
    plan: &Plan,
    guest: &Guest,
    departure: Departure,
) -> Option<WorkspaceReport> {
    if plan.mode == Mode::Open {
        return None;
    }
    let mut report = plan.report();
    let Departure { is_proved, limit } = departure;
    let wound_up = wind_up(plan, guest, is_proved, &mut report);
    if tokio::time::timeout(limit, wound_up).await.is_err() {
        warn!(path = %plan.path.display(), "no time to see what is left; it stays as it is");
        if report.head_commit.is_empty() && report.changed_files == 0 {
            report.dirty_digest = UNKNOWN_DIGEST.to_owned();
        }
    }
    if is_proved {
        release(plan, guest).await;
    }
    Some(report)
}

async fn wind_up(plan: &Plan, guest: &Guest, is_proved: bool, report: &mut WorkspaceReport) {
    let directory = guest.directory.clone();
    let made = off_the_loop(move || Ok(Made::read(&directory))).await;
    let makes = plan.path != plan.root;
    match made.ok().flatten() {
        // Something stood there before: that is nobody's to look at or to remove.
        Some(made) if makes && made.directory.is_none() => {}
        Some(made) => {
            report.base_commit.clone_from(&made.base_commit);
            look(plan, guest, &made, report).await;
            if is_proved {
                tidy_up(plan, guest, &made, report).await;
            }
        }
        // Made and not noted: then nothing is in it, and only then does it go.
        None if makes => {
            let path = plan.path.clone();
            let removed = off_the_loop(move || std::fs::remove_dir(path)).await;
            let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
            report.kept = removed.is_err_and(|error| !is_gone(&error));
        }
        None => {}
    }
}

/// Lets the next attempt into a shared root.
async fn release(plan: &Plan, guest: &Guest) {
    let Some(root) = plan.exclusive().map(Path::to_owned) else {
        return;
    };
    let id = guest.holder.attempt_id.clone();
    let released = lock::patiently(move || lock::release(&root, &id));
    // Later it is released all the same, or not: nobody's last word waits for that.
    let released = tokio::time::timeout(RELEASE, released).await;
    if let Err(error) = released.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        // Its holder is dead, which the next one sees for itself.
        warn!(root = %plan.root.display(), %error, "the lock of a workspace was not removed");
    }
}

async fn look(plan: &Plan, guest: &Guest, made: &Made, report: &mut WorkspaceReport) {
    let git = Git {
        directory: &plan.path,
        attempt_id: &guest.holder.attempt_id,
    };
    let (path, number) = (plan.path.clone(), made.directory);
    // A mount that hangs shows nothing, and git would hang there too.
    let (is_git, entries) = match off_the_loop(move || within(&path, number)).await {
        Ok(seen) => seen,
        // Then nothing is in it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => return unseen(plan, report, &error),
    };
    if plan.mode == Mode::Scratch && !is_git {
        report.changed_files = entries;
        return;
    }
    // Git would look for a repository above it, and tell of that one.
    if plan.mode == Mode::Worktree && !is_git {
        return unseen(plan, report, &"it is no worktree any more");
    }
    if made.base_commit.is_empty() && plan.mode == Mode::Shared && !is_git {
        return;
    }
    match evidence::look(git).await {
        Ok(Evidence {
            head_commit,
            dirty_digest,
            changed_files,
        }) => {
            report.head_commit = head_commit;
            report.dirty_digest = dirty_digest;
            report.changed_files = changed_files;
        }
        Err(error) => unseen(plan, report, &error),
    }
}

/// Nothing is known to be left, which is not the same as that nothing is.
fn unseen(plan: &Plan, report: &mut WorkspaceReport, why: &dyn std::fmt::Display) {
    warn!(path = %plan.path.display(), %why, "cannot see what was left");
    report.dirty_digest = UNKNOWN_DIGEST.to_owned();
}

/// Whether git knows the directory, and how much is in it. One that was made is looked into only if it still stands there.
fn within(directory: &Path, made: Option<made::Number>) -> io::Result<(bool, u64)> {
    let opened = made::open(directory, made)?;
    let inside = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let entries = std::fs::read_dir(&inside)?.count() as u64;
    let is_git = std::fs::symlink_metadata(inside.join(".git")).is_ok();
    Ok((is_git, entries))
}

/// Removes what was made, where the policy and what is left allow it.
async fn tidy_up(plan: &Plan, guest: &Guest, made: &Made, report: &mut WorkspaceReport) {
    let Some(directory) = made.directory else {
        return;
    };
    let stays = match plan.keep {
        Keep::Always => true,
        Keep::Never => false,
        Keep::Changed => !is_spent(plan, guest, report).await,
    };
    if stays {
        return;
    }
    let removed = match plan.mode {
        Mode::Open | Mode::Shared => return,
        Mode::Scratch => {
            let path = plan.path.clone();
            off_the_loop(move || made::remove(&path, directory)).await
        }
        Mode::Worktree => remove_worktree(plan, guest, made).await,
    };
    match removed {
        Ok(()) => report.kept = false,
        Err(error) => {
            warn!(path = %plan.path.display(), %error, "a directory that was made for an attempt stays");
        }
    }
}

/// Nothing in it would be lost: commits stay on the branch.
async fn is_spent(plan: &Plan, guest: &Guest, report: &WorkspaceReport) -> bool {
    match plan.mode {
        Mode::Open | Mode::Shared => false,
        Mode::Scratch => {
            let is_empty = report.changed_files == 0 && report.head_commit.is_empty();
            is_empty && report.dirty_digest.is_empty()
        }
        Mode::Worktree => {
            let git = Git {
                directory: &plan.root,
                attempt_id: &guest.holder.attempt_id,
            };
            let words = ["rev-parse", "--verify", "--quiet", &plan.branch];
            let tip = git.say(&words).await.unwrap_or_default();
            let is_clean = report.dirty_digest.is_empty() && !report.head_commit.is_empty();
            is_clean && (report.head_commit == report.base_commit || report.head_commit == tip)
        }
    }
}

/// A branch that was never moved goes with it; git checks that it was not.
async fn remove_worktree(plan: &Plan, guest: &Guest, made: &Made) -> io::Result<()> {
    let (path, number) = (plan.path.clone(), made.directory);
    let is_ours = off_the_loop(move || Ok(Some(made::Number::of(&path)?) == number)).await;
    let git = Git {
        directory: &plan.root,
        attempt_id: &guest.holder.attempt_id,
    };
    match is_ours {
        Ok(true) => {
            let path = plan.path.to_string_lossy();
            let words = ["worktree", "remove", "--force", &*path];
            git.say(&words).await.map_err(io::Error::other)?;
        }
        Ok(false) => return Err(io::Error::other("another directory stands there now")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let branch = format!("refs/heads/{}", plan.branch);
    // It has moved, and so stays.
    let _ = git
        .say(&["update-ref", "-d", &branch, &made.base_commit])
        .await;
    Ok(())
}

async fn take_lock(plan: &Plan, guest: &Guest) -> Result<(), NotEntered> {
    let (root, holder) = (plan.root.clone(), guest.holder.clone());
    match lock::patiently(move || lock::take(&root, &holder)).await {
        Ok(Taken::Yes) => Ok(()),
        Ok(Taken::Held(holder)) => Err(NotEntered::Busy(holder.to_string())),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(NotEntered::Busy(error.to_string()))
        }
        Err(error) => Err(NotEntered::failed(format!(
            "cannot lock the workspace {}: {error}",
            plan.root.display()
        ))),
    }
}

async fn make(plan: &Plan, guest: &Guest, base: &str) -> Result<(), NotEntered> {
    let path = plan.path.clone();
    let made = off_the_loop(move || made::make(&path)).await;
    if let Err(error) = &made
        && error.kind() == io::ErrorKind::AlreadyExists
    {
        note(guest, base, None).await?;
    }
    let number = made.map_err(|error| {
        NotEntered::failed(format!(
            "cannot make the directory {}: {error}",
            plan.path.display()
        ))
    })?;
    note(guest, base, Some(number)).await
}

async fn note(
    guest: &Guest,
    base: &str,
    directory: Option<made::Number>,
) -> Result<(), NotEntered> {
    let record = Made {
        base_commit: base.to_owned(),
        directory,
    };
    let place = guest.directory.clone();
    let noted = off_the_loop(move || record.write(&place)).await;
    noted.map_err(|error| NotEntered::Failed {
        code: codes::SPAWN_FAILED,
        message: format!("cannot note the workspace: {error}"),
    })
}

async fn find_cwd(plan: &Plan) -> Result<PathBuf, NotEntered> {
    let (path, cwd) = (plan.path.clone(), plan.cwd.clone());
    let found = tokio::task::spawn_blocking(move || beneath::resolve(&path, &cwd)).await;
    let found = found.map_err(NotEntered::failed)?;
    found.map_err(NotEntered::failed)
}

/// A disk that hangs holds up nobody else.
pub(super) async fn off_the_loop<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}
