//! Starts children: own process group, directory and environment set on the child, three pipes, killed
//! with the daemon. One thread per daemon does it for all attempts, because the kernel ties "die with
//! your parent" to the parent's *thread*, and the runtime's threads come and go.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;

use baton_proto::codes;
use rustix::process::{Pid, Signal, getpid, kill_process_group};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};

use super::deathsig::die_with_parent_thread;
use super::reaper::DirectChild;
use super::{Exit, ProcessId, stat};

/// Starts that wait for the thread. Full: the attempt waits, its process_start deadline counts.
const QUEUE: usize = 64;

/// Everything that a child is made of.
#[derive(Clone, Debug)]
pub(crate) struct ChildSpec {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) cwd: PathBuf,
    pub(crate) environment: BTreeMap<OsString, OsString>,
}

/// Why there is no child. The codes are failure codes of the protocol.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpawnError {
    #[error(
        "working directory {cwd} cannot be used: {source}; choose one that exists on this daemon"
    )]
    BadCwd { cwd: PathBuf, source: io::Error },
    #[error("cannot start {program:?}: {source}; check that it exists there and is executable")]
    NotStarted {
        program: OsString,
        source: io::Error,
    },
    #[error("the daemon is stopping and starts nothing more")]
    Stopping,
}

impl SpawnError {
    pub(crate) fn failure_code(&self) -> &'static str {
        match self {
            Self::BadCwd { .. } => codes::BAD_CWD,
            Self::NotStarted { .. } | Self::Stopping => codes::SPAWN_FAILED,
        }
    }
}

/// A running child. Its pipes are in `child` until they are taken.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub(crate) child: Child,
    pub(crate) id: ProcessId,
    _registered: DirectChild,
}

impl Spawned {
    /// The exit, when the child has already ended.
    pub(crate) fn ended(&mut self) -> Option<Exit> {
        match self.child.try_wait() {
            Ok(status) => status.map(Exit::from),
            Err(_) => Some(Exit::Unseen),
        }
    }

    /// Waits for the child and reaps it. Cancel safe. Closes stdin, unless the pipes were taken before.
    pub(crate) async fn wait(&mut self) -> Exit {
        self.child.wait().await.map_or(Exit::Unseen, Exit::from)
    }
}

/// Whoever drops a child that was not waited for wants it dead: its task was aborted or has panicked.
impl Drop for Spawned {
    fn drop(&mut self) {
        // Not reaped yet, so the group is still this child's.
        if let Some(pid) = self.child.id().and_then(|_| Pid::from_raw(self.id.pid)) {
            let _ = kill_process_group(pid, Signal::KILL); // Empty by now is fine.
        }
    }
}

type Job = (ChildSpec, oneshot::Sender<Result<Spawned, SpawnError>>);

/// Handle of the thread that starts children. When the last clone is dropped the thread ends, and
/// the kernel kills whatever direct child is still there.
#[derive(Clone, Debug)]
pub(crate) struct Spawner {
    jobs: mpsc::Sender<Job>,
}

impl Spawner {
    /// Must be called inside a tokio runtime.
    pub(crate) fn start() -> io::Result<Self> {
        let (jobs, mut queue) = mpsc::channel::<Job>(QUEUE);
        let runtime = tokio::runtime::Handle::current();
        std::thread::Builder::new()
            .name("baton-spawn".into())
            .spawn(move || {
                let _entered = runtime.enter();
                while let Some((spec, reply)) = queue.blocking_recv() {
                    // Nobody waits any more: the child is dropped here, and killed by that.
                    let _ = reply.send(start_child(spec));
                }
            })?;
        Ok(Self { jobs })
    }

    pub(crate) async fn spawn(&self, spec: ChildSpec) -> Result<Spawned, SpawnError> {
        let (reply, answer) = oneshot::channel();
        self.jobs
            .send((spec, reply))
            .await
            .map_err(|_| SpawnError::Stopping)?;
        answer.await.map_err(|_| SpawnError::Stopping)?
    }
}

fn start_child(spec: ChildSpec) -> Result<Spawned, SpawnError> {
    let ChildSpec {
        program,
        args,
        cwd,
        environment,
    } = spec;
    check_directory(&cwd)?;
    let mut command = Command::new(&program);
    command
        .args(args)
        .current_dir(cwd)
        .env_clear()
        .envs(environment)
        .process_group(0);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    die_with_parent_thread(&mut command, getpid());
    let started = DirectChild::register(|| {
        let child = command.spawn()?;
        let id = identify(&child)?;
        Ok((id.pid, (child, id)))
    });
    let (registered, (child, id)) =
        started.map_err(|source| SpawnError::NotStarted { program, source })?;
    Ok(Spawned {
        child,
        id,
        _registered: registered,
    })
}

/// exec and chdir report the same errors, so the directory is looked at first.
fn check_directory(cwd: &PathBuf) -> Result<(), SpawnError> {
    let looked = std::fs::metadata(cwd).and_then(|found| {
        if found.is_dir() {
            Ok(())
        } else {
            Err(io::ErrorKind::NotADirectory.into())
        }
    });
    looked.map_err(|source| SpawnError::BadCwd {
        cwd: cwd.clone(),
        source,
    })
}

/// The child is not waited for yet, so its pid cannot have been reused.
fn identify(child: &Child) -> io::Result<ProcessId> {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.ok_or_else(|| io::Error::other("the child has no process id"))?;
    let stat = stat::read(pid).ok_or_else(|| io::Error::other("/proc does not show the child"))?;
    Ok(stat.id)
}
