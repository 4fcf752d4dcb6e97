//! One attempt at a time in a shared root. The lock is a small file beside the work: who holds it, by pid and start time
//! under one boot of the machine, so that neither a killed holder nor a reused pid keeps anybody out. The holder is the
//! attempt's shim, which outlives the daemon; until there is one, the daemon that starts it, and nothing runs under that.
//! A file that cannot be read whole was being written by somebody who died: it holds nothing.

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

/// Inside git's own directory, where neither a commit nor a cleanup of the tree finds it.
const LOCK_FILE_IN_GIT: &str = "baton-lock";
/// Where there is no git.
pub(super) const LOCK_FILE_IN_ROOT: &str = ".baton-lock";
/// More than any record needs.
const MAX_LOCK_BYTES: u64 = 16 * 1024;
/// Daemons keep the file to themselves for a read and a write. Whoever does so for longer is none, and every process of the
/// user could: nobody waits for that.
const LOCK_TRIES: u32 = 50;
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Who is in a workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LockHolder {
    pub(crate) pid: i32,
    /// Clock ticks after boot: a pid may be given away again, a pid with its start time is not.
    pub(crate) start_time: u64,
    pub(crate) boot_id: String,
    pub(crate) attempt_id: String,
    pub(crate) task_id: String,
    /// The daemon's name, for people.
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
    /// Somebody who lives is in there.
    Busy(Box<LockHolder>),
}

/// Takes the lock, unless a living process holds it. What a dead one left is taken over.
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

/// Its own, or one that this very process took for an attempt that was called off: of two attempts of one daemon the
/// second is refused before it comes here.
fn is_same_owner(holder: &LockHolder, wanted: &LockHolder) -> bool {
    let process = |holder: &LockHolder| (holder.pid, holder.start_time);
    holder.attempt_id == wanted.attempt_id || process(holder) == process(wanted)
}

/// From here on another process stands for the same attempt.
pub(super) fn transfer(root: &Path, attempt_id: &str, to: ProcessId) -> io::Result<()> {
    let mut file = open_exclusively(root)?;
    let Some(holder) = read_holder(&mut file).filter(|holder| holder.attempt_id == attempt_id)
    else {
        return Err(io::Error::other("the lock of the workspace was lost"));
    };
    let holder = LockHolder {
        pid: to.pid,
        start_time: to.start_time,
        ..holder
    };
    write_holder(&mut file, Some(&holder))
}

/// Lets the next one in, if it is this attempt that is in there.
pub(super) fn release(root: &Path, attempt_id: &str) -> io::Result<()> {
    let mut file = open_exclusively(root)?;
    if read_holder(&mut file).is_some_and(|holder| holder.attempt_id == attempt_id) {
        write_holder(&mut file, None)?;
    }
    Ok(())
}

/// The file, with everybody else kept from it for as long as it is open. It stays when it holds nothing: who removes it
/// could remove the one that another has just made.
fn open_exclusively(root: &Path) -> io::Result<File> {
    let place = lock_path(root);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&place)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            format!(
                "some process keeps {} to itself (flock); end that process",
                place.display()
            ),
        )),
        Err(error) => Err(error.into()),
    }
}

/// Off the loop, and again while another process keeps the file to itself, as a daemon does for a moment.
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
    // A worktree of somebody else's making names its directory in a file.
    let named = std::fs::read_to_string(&git).ok();
    let named = named
        .as_deref()
        .and_then(|text| text.strip_prefix("gitdir: "));
    match named.map(|path| root.join(path.trim_end())) {
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

/// A look that fails does not say that nobody is there.
fn is_holder_alive(holder: &LockHolder, boot_id: &str) -> io::Result<bool> {
    if holder.boot_id != boot_id {
        return Ok(false);
    }
    let seen = read_stat(holder.pid)?;
    Ok(seen.is_some_and(|stat| stat.id.start_time == holder.start_time && !stat.is_zombie()))
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

    /// Other tests start processes, which have the file open, and so its lock, between fork and exec.
    fn patient<T>(work: impl Fn() -> io::Result<T>) -> io::Result<T> {
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
        patient(|| acquire(root, wanted))
    }

    fn hand_over(root: &Path, attempt_id: &str, to: ProcessId) -> io::Result<()> {
        patient(|| transfer(root, attempt_id, to))
    }

    fn release(root: &Path, attempt_id: &str) -> io::Result<()> {
        patient(|| super::release(root, attempt_id))
    }

    #[test]
    fn one_at_a_time_and_the_other_is_told_who() {
        let root = tempfile::tempdir().unwrap();
        let ((child, id), (other, other_id)) = (sleeper(), sleeper());
        let (first, second) = (holder(id, "a"), holder(other_id, "b"));
        assert_eq!(take(root.path(), &first).unwrap(), LockOutcome::Acquired);
        assert_eq!(
            take(root.path(), &first).unwrap(),
            LockOutcome::Acquired,
            "it is in"
        );
        let held = take(root.path(), &second).unwrap();
        assert_eq!(held, LockOutcome::Busy(Box::new(first)));
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
            "called off"
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
    fn a_reused_pid_another_boot_and_a_torn_file_hold_nothing() {
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
    fn handed_over_it_stands_and_falls_with_the_new_process() {
        let root = tempfile::tempdir().unwrap();
        let ((child, id), (shim, shim_id)) = (sleeper(), sleeper());
        take(root.path(), &holder(id, "a")).unwrap();
        hand_over(root.path(), "a", shim_id).unwrap();
        end(child);
        let (other, other_id) = sleeper();
        let next = holder(other_id, "b");
        assert!(matches!(take(root.path(), &next), Ok(LockOutcome::Busy(_))));
        end(shim);
        assert_eq!(take(root.path(), &next).unwrap(), LockOutcome::Acquired);
        assert!(hand_over(root.path(), "a", other_id).is_err());
        end(other);
    }

    #[tokio::test]
    async fn nobody_waits_for_long_for_a_process_that_keeps_the_file_to_itself() {
        let root = tempfile::tempdir().unwrap();
        let (child, id) = sleeper();
        let (first, path) = (holder(id, "a"), root.path().to_owned());
        let take = move || acquire(&path, &first);
        patient(&take).unwrap();
        let kept = patient(|| open_exclusively(root.path())).unwrap();
        let busy = retry_while_busy(take.clone()).await.unwrap_err();
        assert!(busy.to_string().contains(LOCK_FILE_IN_ROOT), "{busy}");
        assert!(transfer(root.path(), "a", id).is_err());
        assert!(super::release(root.path(), "a").is_err());
        let coming = tokio::spawn(retry_while_busy(take));
        drop(kept);
        assert_eq!(coming.await.unwrap().unwrap(), LockOutcome::Acquired);
        end(child);
    }

    #[test]
    fn in_a_repository_the_work_tree_stays_as_it_was() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join(".git")).unwrap();
        let (child, id) = sleeper();
        take(root.path(), &holder(id, "a")).unwrap();
        assert!(root.path().join(".git").join(LOCK_FILE_IN_GIT).exists());
        assert!(!root.path().join(LOCK_FILE_IN_ROOT).exists());
        end(child);
    }
}
