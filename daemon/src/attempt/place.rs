//! The attempt and its workspace: in before anything runs, out when nobody is left. A workspace that another daemon's
//! attempt is in is waited for; one of this daemon's own is known before the attempt is taken (`supervisor/orders.rs`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_proto::v1::{AttemptRef, WorkspaceReport};
use tracing::info;

use super::{Attempt, AttemptEvent, Cause, Ending, Workshop};
use crate::attempt_dir::AttemptDir;
use crate::clock::Moment;
use crate::process::{ATTEMPT_MARKER, kill_marked};
use crate::process::{Cleared, identity_of};
use crate::workspace::{self, Departure, Guest, Holder, NotEntered, Plan};

/// Between two looks at a lock that another daemon's attempt holds.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// For writing down what is left, and removing what is to go.
const MOVE_OUT: Duration = Duration::from_secs(10);
/// The same when somebody waits for the end: the relay gives a cleanup little more than its own time.
const MOVE_OUT_ORDERED: Duration = Duration::from_secs(1);

impl Attempt {
    /// The working directory, when the workspace is there and this attempt's alone where it has to be.
    pub(super) async fn move_in(&mut self, plan: &Plan) -> Result<PathBuf, Ending> {
        let guest = self.guest();
        let mut has_said = false;
        loop {
            let entered = tokio::select! {
                entered = workspace::enter(plan, &guest) => entered,
                cause = self.called_off() => return Err(Ending::called_off(cause)),
            };
            match entered {
                Ok((cwd, report)) => {
                    if let Some(report) = report {
                        self.tell(AttemptEvent::Placed(Box::new(report))).await;
                    }
                    return Ok(cwd);
                }
                Err(NotEntered::Failed { code, message }) => {
                    return Err(Ending::no_place(code, message));
                }
                Err(NotEntered::Busy(holder)) => {
                    if !std::mem::replace(&mut has_said, true) {
                        self.say_busy(plan, &holder).await;
                    }
                }
            }
            let clock = self.workshop.clock.clone();
            tokio::select! {
                () = clock.sleep_until(clock.now().after(LOOK_AGAIN)) => {}
                cause = self.called_off() => return Err(Ending::called_off(cause)),
            }
        }
    }

    async fn say_busy(&self, plan: &Plan, holder: &str) {
        let message = format!("waits for the workspace {}: {holder}", plan.root.display());
        info!(attempt_id = %self.id, %message);
        self.tell(AttemptEvent::Waits { message }).await;
    }

    /// The lock stands and falls with the shim from here on, which outlives this daemon.
    pub(super) async fn hand_over_lock(&self) -> Result<(), Ending> {
        let root = self.place.as_ref().and_then(Plan::exclusive);
        let (Some(root), Some(shim)) = (root.map(Path::to_owned), self.own_shim) else {
            return Ok(());
        };
        let handed = workspace::hand_over(root, self.id.clone(), shim).await;
        handed.map_err(|error| Ending::not_started("hand the workspace's lock over", &error))
    }

    /// What it left, and the way free for the next one.
    pub(super) async fn move_out(&self, cleared: Cleared) -> Option<WorkspaceReport> {
        let limit = match self.kill_at {
            None => MOVE_OUT,
            Some(_) => MOVE_OUT_ORDERED,
        };
        let departure = Departure {
            is_proved: cleared.empty,
            limit,
        };
        workspace::leave(self.place.as_ref()?, &self.guest(), departure).await
    }

    /// What git was asked after the child's death may have started filters that the repository names, and those may have gone
    /// their own ways. They carry the attempt's marker like everything of it.
    pub(super) async fn end_filters(&self, left: Option<&WorkspaceReport>) {
        if left.is_some_and(|left| !left.head_commit.is_empty()) {
            kill_marked(ATTEMPT_MARKER, &self.id, self.shim, &self.workshop.clock).await;
        }
    }

    /// The group that the child is to be in, where there are groups.
    pub(super) fn make_group(&self) -> Option<PathBuf> {
        self.workshop.groups.as_ref()?.make(&self.id)
    }

    /// Whoever has hidden from everybody else is still in its group.
    pub(super) async fn end_group(&self) {
        if let Some(groups) = &self.workshop.groups {
            groups.end(&self.id).await;
        }
    }

    fn guest(&self) -> Guest {
        guest(&self.id, &self.task_id, &self.directory, &self.workshop)
    }

    /// Resolves when it is not to start any more.
    async fn called_off(&mut self) -> Cause {
        loop {
            if self.lines.stop.borrow_and_update().is_some() {
                return Cause::Stopped;
            }
            let limit = self
                .lines
                .lease
                .borrow_and_update()
                .map(|lease| lease.limit());
            let now: Moment = self.workshop.clock.now();
            if limit.is_some_and(|limit| limit <= now) {
                return Cause::LeaseEnded;
            }
            tokio::select! {
                Ok(()) = self.lines.stop.changed() => {}
                Ok(()) = self.lines.lease.changed() => {}
                () = self.workshop.clock.sleep_until_some(limit) => {}
            }
        }
    }
}

/// An attempt that an earlier daemon took and never started may have a workspace all the same.
pub(crate) async fn leave_unused(
    plan: Option<&Plan>,
    attempt: &AttemptRef,
    dir: &AttemptDir,
    workshop: &Workshop,
) {
    if let Some(plan) = plan {
        let guest = guest(&attempt.attempt_id, &attempt.task_id, dir.path(), workshop);
        let departure = Departure {
            is_proved: true,
            limit: MOVE_OUT_ORDERED,
        };
        workspace::leave(plan, &guest, departure).await;
    }
}

/// Until a shim stands for the attempt, this process does.
fn guest(attempt_id: &str, task_id: &str, directory: &Path, workshop: &Workshop) -> Guest {
    let own = std::process::id().cast_signed();
    Guest {
        holder: Holder {
            pid: own,
            start_time: identity_of(own).map_or(0, |id| id.start_time),
            boot_id: workshop.boot_id.clone(),
            attempt_id: attempt_id.to_owned(),
            task_id: task_id.to_owned(),
            daemon: workshop.name.clone(),
        },
        directory: directory.to_owned(),
    }
}
