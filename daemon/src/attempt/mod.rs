//! Runs one attempt from its start to its last process: drives the shim that owns the child,
//! turns the child's output into events, watches the local deadlines, and reports everything to
//! the supervisor.
//!
//! Leases, frames and the relay belong to the supervisor. The shim ends the child by itself
//! when the lease ends. This side kills a shim that is stuck, and reports the end of one that
//! died.

use std::path::PathBuf;
use std::time::Duration;

use baton_daemon_core::lease_clock::LeaseClock;
use baton_proto::v1::LeaseToken;
use baton_proto::worker::{Report, Stdin};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::clock::{BootTime, Clock};
use crate::deadlines::phase_order::OneTimePhase;
use crate::process::{
    ATTEMPT_MARKER, ProcessId, TerminationOutcome, kill_by_marker, kill_descendants, kill_shim_tree,
};
use crate::receipts::RequiredFiles;
use crate::shim::SPOOL_DIR;
use crate::shim::client::{self, ShimConnection, ShimMarkers};
use crate::workspace;

mod agent_session;
mod attempt_control;
mod attempt_ending;
mod attempt_event;
mod attempt_plan;
mod attempt_workspace;
mod lease_file;
mod required_file_check;
mod resume_file;
mod shim_connection;
mod shim_contact;
mod shim_descendants;
mod spool_batch_reader;
mod transcript_reader;
mod turn_interrupt;

pub(crate) use agent_session::{AgentNotice, AgentSession, AgentSummary, InputResponse};
#[cfg(test)]
pub(crate) use attempt_control::ANSWER_QUEUE;
pub(crate) use attempt_control::{
    AttemptControl, AttemptControlReceiver, LeaseDelivery, StopRequest,
};
pub(crate) use attempt_ending::{AttemptEnding, EndCause};
pub(crate) use attempt_event::AttemptEvent;
pub(crate) use attempt_plan::{
    AttemptEnvironment, AttemptPlan, AttemptRunInput, ChildStdin, ShimContact,
};
pub(crate) use attempt_workspace::clean_up_unused;
pub(crate) use lease_file::read_lease;
use lease_file::write_lease;
pub(crate) use resume_file::RESUME_FILE;
pub(crate) use shim_contact::{ContactOutcome, ReachedShim, contact_shim};
use shim_descendants::ShimDescendants;
use spool_batch_reader::SpoolBatchReader;
use transcript_reader::MissingOutput;
pub(crate) use transcript_reader::{CoalescedChunk, EventProgress, TranscriptReader};

/// The number of a command's prompt: the first message on its stdin.
const PROMPT_MESSAGE_ID: u64 = 1;

/// Runs the attempt to its end. When the future is dropped, the shim goes on under its lease
/// and the next daemon adopts it.
pub(crate) async fn run_attempt(
    input: AttemptRunInput,
    control: AttemptControlReceiver,
    events: mpsc::Sender<(String, AttemptEvent)>,
    environment: AttemptEnvironment,
) {
    let AttemptRunInput {
        attempt_id,
        task_id,
        workspace,
        cleanup_term,
        required_files,
        directory,
        transcript_reader: mut reader,
        position,
        replay_from,
        shim_contact,
    } = input;
    let spool = directory.join(SPOOL_DIR);
    if replay_from < position {
        spool_batch_reader::replay_transcript(spool.clone(), replay_from..position, &mut reader)
            .await;
    }
    reader.finish_replay(environment.clock.now());
    let mut attempt = AttemptTask {
        transcript: SpoolBatchReader::open(spool, position),
        id: attempt_id,
        task_id,
        workspace,
        cleanup_term,
        required_files,
        directory,
        control,
        events,
        environment,
        transcript_reader: reader,
        own_shim: None,
        shim: None,
        spawned: false,
        shim_descendants: ShimDescendants::default(),
        stored_lease: None,
        lease_write: None,
        cause: None,
        kill_at: None,
        interrupt_until: None,
        pending_event: None,
    };
    let mut ending = attempt.run_to_end(shim_contact).await;
    attempt.remove_control_group().await;
    ending.workspace = attempt.leave_workspace(ending.termination).await;
    attempt.kill_git_filters(ending.workspace.as_ref()).await;
    attempt.send_event(AttemptEvent::Ended(ending)).await;
}

/// Replaces a [`run_attempt`] that panicked: kills whatever the attempt left, including its
/// shim, and reports that as its end.
pub(crate) async fn report_dead_task(
    attempt_id: String,
    events: mpsc::Sender<(String, AttemptEvent)>,
    clock: Clock,
) {
    let sweep = kill_by_marker(ATTEMPT_MARKER, &attempt_id, None, &clock).await;
    let cleared = unproved_termination(sweep.killed);
    // Without a supervisor the event has no receiver.
    let _ = events
        .send((
            attempt_id,
            AttemptEvent::Ended(AttemptEnding::daemon_fault(cleared)),
        ))
        .await;
}

/// What a sweep by marker proves: the processes that it found are dead, but it may have missed
/// some.
fn unproved_termination(killed: u32) -> TerminationOutcome {
    TerminationOutcome {
        proved_empty: false,
        terminated: false,
        killed: killed > 0,
        signaled_singly: killed,
    }
}

struct AttemptTask {
    id: String,
    task_id: String,
    workspace: Option<workspace::WorkspacePlan>,
    cleanup_term: Duration,
    required_files: Option<RequiredFiles>,
    directory: PathBuf,
    control: AttemptControlReceiver,
    /// Bounded. While it is full the attempt waits, and its child with it.
    events: mpsc::Sender<(String, AttemptEvent)>,
    environment: AttemptEnvironment,
    transcript_reader: TranscriptReader,
    transcript: SpoolBatchReader,
    /// The shim, if this process started it.
    own_shim: Option<ProcessId>,
    /// The shim that was connected last, also one that an earlier daemon started.
    shim: Option<ProcessId>,
    /// The shim has reported that the child was started.
    spawned: bool,
    /// Processes that were seen below a shim of an earlier daemon.
    shim_descendants: ShimDescendants,
    /// The lease that is on disk, or is being written there by `lease_write`.
    stored_lease: Option<LeaseClock>,
    lease_write: Option<JoinHandle<()>>,
    /// Why the attempt ends: the first cause that was decided on this side.
    cause: Option<EndCause>,
    /// When SIGKILL is due, once the end was decided.
    kill_at: Option<BootTime>,
    /// The agent was asked to end its turn and has until then before its process is signaled.
    interrupt_until: Option<BootTime>,
    /// An event that waits for room.
    pending_event: Option<AttemptEvent>,
}

/// How a connection to a shim ended.
enum ShimParting {
    Reported(Box<Report>),
    /// Without a message: its report is on disk, or there is none.
    Closed,
    /// It is stuck and was given up.
    Stuck,
    /// The machine was restarted since: no process of the attempt is alive.
    Rebooted,
}

impl AttemptTask {
    async fn run_to_end(&mut self, shim_contact: ShimContact) -> AttemptEnding {
        let parting = match shim_contact {
            ShimContact::Launch { plan, token } => match self.launch(*plan, token).await {
                Ok(connection) => self.follow_until_over(connection).await,
                Err(ending) => {
                    self.deliver_events().await;
                    return ending;
                }
            },
            ShimContact::Adopted(found) => self.adopt(*found).await,
            ShimContact::Unreachable => match self.find_shim().await {
                Some(found) => {
                    self.send_event(found.reached_event()).await;
                    self.adopt(found).await
                }
                None => ShimParting::Stuck,
            },
            ShimContact::Gone { same_boot: true } => ShimParting::Closed,
            ShimContact::Gone { same_boot: false } => ShimParting::Rebooted,
        };
        self.finish_attempt(parting).await
    }

    async fn adopt(&mut self, found: ReachedShim) -> ShimParting {
        let connection = self.adopt_shim(found);
        self.follow_until_over(connection).await
    }

    /// Follows the shim to its end. A connection that closed does not mean a dead shim: the
    /// last daemon that connects displaces the one before, so this daemon connects again.
    async fn follow_until_over(&mut self, mut connection: ShimConnection) -> ShimParting {
        let mut again_at = self.environment.clock.now();
        loop {
            let parting = self.follow_shim(&mut connection).await;
            if !matches!(parting, ShimParting::Closed) || self.read_report().await.is_some() {
                return parting;
            }
            self.wait_for_orders(again_at).await;
            let Some(found) = self.find_shim().await else {
                return ShimParting::Closed;
            };
            warn!(attempt_id = %self.id, "reconnected to the shim");
            again_at = self
                .environment
                .clock
                .now()
                .after(shim_contact::RETRY_INTERVAL);
            connection = self.adopt_shim(found);
        }
    }

    /// The shim, if another process started it.
    fn adopted_shim(&self) -> Option<ProcessId> {
        self.shim.filter(|_| self.own_shim.is_none())
    }

    /// Starts the shim and launches the child. The lease is on disk before the child may run,
    /// so that the next daemon knows how long a shim that does not answer may go on. Without
    /// that file nothing was started.
    async fn launch(
        &mut self,
        mut plan: AttemptPlan,
        token: LeaseToken,
    ) -> Result<ShimConnection, AttemptEnding> {
        plan.child.cwd = self.enter_workspace(&plan.workspace).await?;
        self.enter_phase(OneTimePhase::Started, None);
        if let Err(error) = self.store_lease().await {
            return Err(AttemptEnding::not_started("store the lease", &error));
        }
        let stored = self.store_resume_context(plan.resume.take(), &mut plan.child);
        if let Err(error) = stored.await {
            return Err(AttemptEnding::not_started(
                "store the resume context",
                &error,
            ));
        }
        let markers = ShimMarkers {
            attempt_id: &self.id,
            daemon_id: &self.environment.daemon_id,
        };
        let started = client::start_shim(&self.environment.shim, &self.directory, markers);
        let mut connection = started
            .map_err(|error| AttemptEnding::not_started("start the attempt's shim", &error))?;
        self.own_shim = connection.shim();
        self.shim = self.own_shim;
        self.transfer_workspace_lock().await?;
        plan.child.control_group = self.create_control_group();
        let first = match &plan.stdin {
            ChildStdin::Prompt(prompt) => Stdin {
                id: PROMPT_MESSAGE_ID,
                data: prompt.clone(),
                close: true,
            },
            ChildStdin::AgentSession(_) => self
                .transcript_reader
                .stdin_after(0, 0)
                .next()
                .unwrap_or_default(),
        };
        let launch = shim_connection::launch_message(plan, token, self.shim_lease());
        connection.launch(&self.environment.instance_id, first, launch);
        Ok(connection)
    }

    fn enter_phase(&mut self, phase: OneTimePhase, pid: Option<i32>) {
        let now = self.environment.clock.now();
        self.transcript_reader.enter_phase(phase, pid, now);
    }

    /// Kills what the attempt left, including its shim. Only below a shim that this process
    /// started can it be proved that no process is left; otherwise the relay waits for the end
    /// of the lease.
    async fn kill_everything(&self) -> TerminationOutcome {
        let clock = &self.environment.clock;
        if let Some(shim) = self.own_shim {
            let cleared = kill_shim_tree(shim, &self.id, clock).await;
            if cleared.proved_empty {
                return cleared;
            }
        }
        let below = match self.adopted_shim() {
            Some(shim) => kill_descendants(shim, clock).await,
            None => 0,
        };
        let below = below + self.shim_descendants.kill_seen().await;
        let sweep = kill_by_marker(ATTEMPT_MARKER, &self.id, None, clock).await;
        if !sweep.is_clear {
            warn!(attempt_id = %self.id, "processes of the attempt cannot be killed");
        }
        unproved_termination(sweep.killed + below)
    }

    async fn send_event(&self, event: AttemptEvent) {
        // Without a supervisor the event has no receiver; the shim still ends the child.
        let _ = self.events.send((self.id.clone(), event)).await;
    }
}
