//! Starts children: own process group, directory and environment set on the child, three pipes, killed
//! with the daemon. One thread per daemon does it for all attempts, because the kernel ties "die with
//! your parent" to the parent's *thread*, and the runtime's threads come and go.

use std::io;

use rustix::process::{Pid, Signal, getpid, kill_process_group};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};

use super::child::{ChildSpec, SpawnError, command, identify_child};
use super::reaper::DirectChild;
use super::{Exit, ProcessId};

/// Starts that wait for the thread. Full: the attempt waits, its process_start deadline counts.
const QUEUE: usize = 64;

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
    let program = spec.program.clone();
    let mut command = Command::from(command(spec, getpid())?);
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

fn identify(child: &Child) -> io::Result<ProcessId> {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.ok_or_else(|| io::Error::other("the child has no process id"))?;
    identify_child(pid)
}
