//! The attempt and its workspace: prepared before anything runs, cleaned up when no process is
//! left. The attempt waits for a workspace that another daemon's attempt uses; one that this
//! daemon's own attempts use is refused before the attempt is accepted
//! (`supervisor/dispatch.rs`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_proto::v1::{AttemptRef, WorkspaceReport};
use tracing::info;

use super::{AttemptEnding, AttemptEnvironment, AttemptEvent, AttemptTask, EndCause};
use crate::clock::BootTime;
use crate::process::{ATTEMPT_MARKER, kill_by_marker};
use crate::process::{TerminationOutcome, identity_of};
use crate::storage::attempt_dir::AttemptDir;
use crate::workspace::{
    self, LockHolder, PrepareError, WorkspaceCleanup, WorkspaceOccupant, WorkspacePlan,
};

/// Between two tries to get a lock that another daemon's attempt has.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// The time limit for recording what is left and removing what is no longer needed.
const CLEANUP_LIMIT: Duration = Duration::from_secs(10);
/// The same when the attempt was stopped: the relay waits only a little longer than the cleanup
/// term.
const CLEANUP_LIMIT_STOPPED: Duration = Duration::from_secs(1);

impl AttemptTask {
    /// Returns the working directory when the workspace is prepared and, if required,
    /// exclusive.
    pub(super) async fn enter_workspace(
        &mut self,
        plan: &WorkspacePlan,
    ) -> Result<PathBuf, AttemptEnding> {
        let occupant = self.occupant();
        let mut was_reported = false;
        loop {
            let entered = tokio::select! {
                entered = workspace::prepare(plan, &occupant) => entered,
                cause = self.wait_until_called_off() => return Err(AttemptEnding::called_off_early(cause)),
            };
            match entered {
                Ok((cwd, report)) => {
                    if let Some(report) = report {
                        self.send_event(AttemptEvent::WorkspaceReady(Box::new(report)))
                            .await;
                    }
                    return Ok(cwd);
                }
                Err(PrepareError::Failed { code, message }) => {
                    return Err(AttemptEnding::no_workspace(code, message));
                }
                Err(PrepareError::Busy(holder)) => {
                    if !std::mem::replace(&mut was_reported, true) {
                        self.report_busy(plan, &holder).await;
                    }
                }
            }
            let clock = self.environment.clock.clone();
            tokio::select! {
                () = clock.sleep_until(clock.now().after(LOCK_RETRY_INTERVAL)) => {}
                cause = self.wait_until_called_off() => return Err(AttemptEnding::called_off_early(cause)),
            }
        }
    }

    async fn report_busy(&self, plan: &WorkspacePlan, holder: &str) {
        let message = format!("waits for the workspace {}: {holder}", plan.root.display());
        info!(attempt_id = %self.id, %message);
        self.send_event(AttemptEvent::WaitsForWorkspace { message })
            .await;
    }

    /// From here on the lock belongs to the shim, which outlives this daemon.
    pub(super) async fn transfer_workspace_lock(&self) -> Result<(), AttemptEnding> {
        let root = self
            .workspace
            .as_ref()
            .and_then(WorkspacePlan::exclusive_root);
        let (Some(root), Some(shim)) = (root.map(Path::to_owned), self.own_shim) else {
            return Ok(());
        };
        let transferred = workspace::transfer_lock(root, self.id.clone(), shim).await;
        transferred
            .map_err(|error| AttemptEnding::not_started("transfer the workspace's lock", &error))
    }

    /// Reports what the attempt left and releases the workspace for the next one.
    pub(super) async fn leave_workspace(
        &self,
        cleared: TerminationOutcome,
    ) -> Option<WorkspaceReport> {
        let limit = match self.kill_at {
            None => CLEANUP_LIMIT,
            Some(_) => CLEANUP_LIMIT_STOPPED,
        };
        let cleanup = WorkspaceCleanup {
            processes_proved_gone: cleared.proved_empty,
            time_limit: limit,
        };
        workspace::clean_up(self.workspace.as_ref()?, &self.occupant(), cleanup).await
    }

    /// Git commands after the child's death may have started filters that the repository
    /// configures, and those may have left their process group. They carry the attempt's marker
    /// like all its processes.
    pub(super) async fn kill_git_filters(&self, left: Option<&WorkspaceReport>) {
        if left.is_some_and(|left| !left.head_commit.is_empty()) {
            kill_by_marker(ATTEMPT_MARKER, &self.id, self.shim, &self.environment.clock).await;
        }
    }

    /// The group that the child is started in, where there are control groups.
    pub(super) fn create_control_group(&self) -> Option<PathBuf> {
        self.environment
            .control_groups
            .as_ref()?
            .create_group(&self.id)
    }

    /// Processes that were hidden from every other search are still in the attempt's control
    /// group.
    pub(super) async fn remove_control_group(&self) {
        if let Some(groups) = &self.environment.control_groups {
            groups.kill_and_remove(&self.id).await;
        }
    }

    fn occupant(&self) -> WorkspaceOccupant {
        workspace_occupant(&self.id, &self.task_id, &self.directory, &self.environment)
    }

    /// Returns when the attempt must not be started any more.
    async fn wait_until_called_off(&mut self) -> EndCause {
        loop {
            let orders = self.control.apply_orders();
            if orders.stop.is_some() {
                return EndCause::Stopped;
            }
            let limit = orders.lease.map(|lease| lease.limit());
            let now: BootTime = self.environment.clock.now();
            if limit.is_some_and(|limit| limit <= now) {
                return EndCause::LeaseEnded;
            }
            tokio::select! {
                () = self.control.stop_or_lease_changed() => {}
                () = self.environment.clock.sleep_until_some(limit) => {}
            }
        }
    }
}

/// An attempt that an earlier daemon accepted and never started may still have a workspace.
pub(crate) async fn clean_up_unused(
    plan: Option<&WorkspacePlan>,
    attempt: &AttemptRef,
    dir: &AttemptDir,
    environment: &AttemptEnvironment,
) {
    if let Some(plan) = plan {
        let occupant = workspace_occupant(
            &attempt.attempt_id,
            &attempt.task_id,
            dir.path(),
            environment,
        );
        let cleanup = WorkspaceCleanup {
            processes_proved_gone: true,
            time_limit: CLEANUP_LIMIT_STOPPED,
        };
        workspace::clean_up(plan, &occupant, cleanup).await;
    }
}

/// The occupant of the workspace: this process, until the attempt has a shim.
fn workspace_occupant(
    attempt_id: &str,
    task_id: &str,
    directory: &Path,
    environment: &AttemptEnvironment,
) -> WorkspaceOccupant {
    let own = std::process::id().cast_signed();
    WorkspaceOccupant {
        holder: LockHolder {
            pid: own,
            start_time: identity_of(own).map_or(0, |id| id.start_time),
            boot_id: environment.boot_id.clone(),
            attempt_id: attempt_id.to_owned(),
            task_id: task_id.to_owned(),
            daemon: environment.daemon_name.clone(),
        },
        attempt_dir: directory.to_owned(),
    }
}
