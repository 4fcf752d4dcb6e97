//! The lock of a shared root, which admits one attempt at a time. It is a small file that names
//! its holder by pid, start time and boot id, so that neither a killed holder nor a reused pid
//! blocks others. The holder is the attempt's shim, which outlives the daemon. Until the shim
//! runs it is the daemon that starts it, and no child runs yet. A file that cannot be decoded
//! was left by a process that died while writing it, and counts as free.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::lifecycle::run_blocking;
use crate::process::{ProcessId, read_stat};

/// Inside the `.git` directory, where neither a commit nor a cleanup of the tree touches it.
const LOCK_FILE_IN_GIT: &str = "baton-lock";
/// Used where there is no `.git`.
pub(super) const LOCK_FILE_IN_ROOT: &str = ".baton-lock";
/// More than any lock record needs.
const MAX_LOCK_BYTES: u64 = 16 * 1024;
/// A daemon locks the file only for one read and one write. A process that locks it for longer
/// is not a daemon, and any process of the user could do that, so the tries are limited.
const LOCK_TRIES: u32 = 50;
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// The process and attempt that own a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LockHolder {
    pub(crate) pid: i32,
    /// Clock ticks since boot. A pid can be reused, a pid with its start time cannot.
    pub(crate) start_time: u64,
    pub(crate) boot_id: String,
    pub(crate) attempt_id: String,
    pub(crate) task_id: String,
    /// The daemon's name, for display.
    pub(crate) daemon: String,
}

impl std::fmt::Display for LockHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            pid,
            attempt_id,
            task_id,
            daemon,
            ..
        } = self;
        write!(
            f,
            "attempt {attempt_id} of task {task_id}, run by daemon {daemon:?}, pid {pid}"
        )
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum LockOutcome {
    Acquired,
    /// Held by another attempt whose process is alive.
    Busy(Box<LockHolder>),
}

/// Takes the lock unless a living process holds it. The lock of a dead process is taken over.
pub(super) fn acquire(root: &Path, wanted: &LockHolder) -> io::Result<LockOutcome> {
    let mut file = open_exclusively(root)?;
    if let Some(holder) = read_holder(&mut file)
        && !is_same_owner(&holder, wanted)
        && is_holder_alive(&holder, &wanted.boot_id)?
    {
        return Ok(LockOutcome::Busy(Box::new(holder)));
    }
    write_holder(&mut file, Some(wanted))?;
    Ok(LockOutcome::Acquired)
}

/// The attempt's own lock, or one that this process took for an attempt that was called off. A
/// second attempt of the same daemon is refused before it gets here.
fn is_same_owner(holder: &LockHolder, wanted: &LockHolder) -> bool {
    let process = |holder: &LockHolder| (holder.pid, holder.start_time);
    holder.attempt_id == wanted.attempt_id || process(holder) == process(wanted)
}

/// Makes another process the lock's holder for the same attempt.
pub(super) fn transfer(root: &Path, attempt_id: &str, to: ProcessId) -> io::Result<()> {
    let mut file = open_exclusively(root)?;
    let Some(holder) = read_holder(&mut file).filter(|holder| holder.attempt_id == attempt_id)
    else {
        return Err(io::Error::other(
            "this attempt no longer has the workspace lock",
        ));
    };
    let holder = LockHolder {
        pid: to.pid,
        start_time: to.start_time,
        ..holder
    };
    write_holder(&mut file, Some(&holder))
}

/// Frees the lock if this attempt has it.
pub(super) fn release(root: &Path, attempt_id: &str) -> io::Result<()> {
    let mut file = open_exclusively(root)?;
    if read_holder(&mut file).is_some_and(|holder| holder.attempt_id == attempt_id) {
        write_holder(&mut file, None)?;
    }
    Ok(())
}

/// Opens the lock file with an exclusive flock, which lasts until the file is closed. The file
/// is never removed: a process that removes it could remove one that another process has just
/// created.
fn open_exclusively(root: &Path) -> io::Result<File> {
    let path = lock_path(root);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            format!(
                "another process has locked {} with flock; end that process",
                path.display()
            ),
        )),
        Err(error) => Err(error.into()),
    }
}

/// Runs `work` on a blocking thread and retries while another process has the flock, which a
/// daemon has only briefly.
pub(super) async fn retry_while_busy<T: Send + 'static>(
    work: impl Fn() -> io::Result<T> + Clone + Send + 'static,
) -> io::Result<T> {
    for _ in 1..LOCK_TRIES {
        match run_blocking(work.clone()).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            done => return done,
        }
    }
    run_blocking(work).await
}

fn lock_path(root: &Path) -> PathBuf {
    let git = root.join(".git");
    if git.is_dir() {
        return git.join(LOCK_FILE_IN_GIT);
    }
    // The `.git` of a worktree created by the user is a file that names the directory.
    let pointer = std::fs::read_to_string(&git).ok();
    let target = pointer
        .as_deref()
        .and_then(|text| text.strip_prefix("gitdir: "));
    match target.map(|path| root.join(path.trim_end())) {
        Some(directory) if directory.is_dir() => directory.join(LOCK_FILE_IN_GIT),
        Some(_) | None => root.join(LOCK_FILE_IN_ROOT),
    }
}

fn read_holder(file: &mut File) -> Option<LockHolder> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(MAX_LOCK_BYTES).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

fn write_holder(file: &mut File, holder: Option<&LockHolder>) -> io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    match holder {
        Some(holder) => file.write_all(&serde_json::to_vec(holder)?),
        None => Ok(()),
    }
}

/// An error is returned as such: it does not prove that the holder is dead.
fn is_holder_alive(holder: &LockHolder, boot_id: &str) -> io::Result<bool> {
    if holder.boot_id != boot_id {
        return Ok(false);
    }
    let stat = read_stat(holder.pid)?;
    Ok(stat.is_some_and(|stat| stat.id.start_time == holder.start_time && !stat.is_zombie()))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;
    use crate::process::identify_child;

    fn holder(of: ProcessId, attempt_id: &str) -> LockHolder {
        LockHolder {
            pid: of.pid,
            start_time: of.start_time,
            boot_id: "boot".to_owned(),
            attempt_id: attempt_id.to_owned(),
            task_id: "task".to_owned(),
            daemon: "here".to_owned(),
        }
    }

    fn sleeper() -> (Child, ProcessId) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let id = identify_child(child.id().cast_signed()).unwrap();
        (child, id)
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Between fork and exec, processes of other tests have the file open and thereby its
    /// flock.
    fn retry_flock<T>(work: impl Fn() -> io::Result<T>) -> io::Result<T> {
        loop {
            match work() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::yield_now();
                }
                done => return done,
            }
        }
    }

    fn take(root: &Path, wanted: &LockHolder) -> io::Result<LockOutcome> {
        retry_flock(|| acquire(root, wanted))
    }

    fn transfer_to(root: &Path, attempt_id: &str, to: ProcessId) -> io::Result<()> {
        retry_flock(|| transfer(root, attempt_id, to))
    }

    fn release(root: &Path, attempt_id: &str) -> io::Result<()> {
        retry_flock(|| super::release(root, attempt_id))
    }

    #[test]
    fn a_second_attempt_is_refused_and_gets_the_lock_holder() {
        let root = tempfile::tempdir().unwrap();
        let ((child, id), (other, other_id)) = (sleeper(), sleeper());
        let (first, second) = (holder(id, "a"), holder(other_id, "b"));
        assert_eq!(take(root.path(), &first).unwrap(), LockOutcome::Acquired);
        assert_eq!(
            take(root.path(), &first).unwrap(),
            LockOutcome::Acquired,
            "an attempt can take its own lock again"
        );
        let busy = take(root.path(), &second).unwrap();
        assert_eq!(busy, LockOutcome::Busy(Box::new(first)));
        release(root.path(), "b").unwrap();
        assert!(matches!(
            take(root.path(), &second),
            Ok(LockOutcome::Busy(_))
        ));
        release(root.path(), "a").unwrap();
        assert_eq!(take(root.path(), &second).unwrap(), LockOutcome::Acquired);
        let after = holder(other_id, "c");
        assert_eq!(
            take(root.path(), &after).unwrap(),
            LockOutcome::Acquired,
            "the lock of an attempt that was called off is taken over"
        );
        end(child);
        end(other);
    }

    #[test]
    fn the_lock_of_a_killed_holder_is_taken_over() {
        let root = tempfile::tempdir().unwrap();
        let ((child, id), (other, other_id)) = (sleeper(), sleeper());
        take(root.path(), &holder(id, "a")).unwrap();
        let next = holder(other_id, "b");
        assert!(matches!(take(root.path(), &next), Ok(LockOutcome::Busy(_))));
        end(child);
        assert_eq!(take(root.path(), &next).unwrap(), LockOutcome::Acquired);
        end(other);
    }

    #[test]
    fn a_reused_pid_another_boot_or_a_torn_file_leaves_the_lock_free() {
        let root = tempfile::tempdir().unwrap();
        let (child, id) = sleeper();
        let next = holder(id, "b");
        let earlier = ProcessId {
            start_time: id.start_time - 1,
            ..id
        };
        take(root.path(), &holder(earlier, "a")).unwrap();
        assert_eq!(take(root.path(), &next).unwrap(), LockOutcome::Acquired);
        let before = LockHolder {
            boot_id: "earlier".to_owned(),
            ..holder(id, "a")
        };
        release(root.path(), "b").unwrap();
        take(root.path(), &before).unwrap();
        assert_eq!(take(root.path(), &next).unwrap(), LockOutcome::Acquired);
        std::fs::write(lock_path(root.path()), "{\"pid\":").unwrap();
        assert_eq!(take(root.path(), &next).unwrap(), LockOutcome::Acquired);
        end(child);
    }

    #[test]
    fn a_transferred_lock_lasts_as_long_as_the_new_process() {
        let root = tempfile::tempdir().unwrap();
        let ((child, id), (shim, shim_id)) = (sleeper(), sleeper());
        take(root.path(), &holder(id, "a")).unwrap();
        transfer_to(root.path(), "a", shim_id).unwrap();
        end(child);
        let (other, other_id) = sleeper();
        let next = holder(other_id, "b");
        assert!(matches!(take(root.path(), &next), Ok(LockOutcome::Busy(_))));
        end(shim);
        assert_eq!(take(root.path(), &next).unwrap(), LockOutcome::Acquired);
        assert!(transfer_to(root.path(), "a", other_id).is_err());
        end(other);
    }

    #[tokio::test]
    async fn waiting_for_a_locked_lock_file_is_limited() {
        let root = tempfile::tempdir().unwrap();
        let (child, id) = sleeper();
        let (first, path) = (holder(id, "a"), root.path().to_owned());
        let take = move || acquire(&path, &first);
        retry_flock(&take).unwrap();
        let locked = retry_flock(|| open_exclusively(root.path())).unwrap();
        let busy = retry_while_busy(take.clone()).await.unwrap_err();
        assert!(busy.to_string().contains(LOCK_FILE_IN_ROOT), "{busy}");
        assert!(transfer(root.path(), "a", id).is_err());
        assert!(super::release(root.path(), "a").is_err());
        let waiting = tokio::spawn(retry_while_busy(take));
        drop(locked);
        assert_eq!(waiting.await.unwrap().unwrap(), LockOutcome::Acquired);
        end(child);
    }

    #[test]
    fn the_lock_does_not_change_the_work_tree_of_a_repository() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join(".git")).unwrap();
        let (child, id) = sleeper();
        take(root.path(), &holder(id, "a")).unwrap();
        assert!(root.path().join(".git").join(LOCK_FILE_IN_GIT).exists());
        assert!(!root.path().join(LOCK_FILE_IN_ROOT).exists());
        end(child);
    }
}
