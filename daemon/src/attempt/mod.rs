//! One attempt's life from its start to its last process: drives the shim that owns the child, folds what the
//! child says into events, watches the local deadlines, and tells the supervisor all of it. Leases, frames and
//! the relay are the supervisor's. The shim ends the child by itself when the lease does; what this side adds is
//! the second line for a shim that is stuck, and the word for one that died.

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

/// The prompt is the first thing on a command's stdin.
const PROMPT_MESSAGE_ID: u64 = 1;

/// Runs the attempt to its end. Dropping the future leaves the shim to its lease and to the next daemon.
pub(crate) async fn run_attempt(
    errand: AttemptRunInput,
    control: AttemptControlReceiver,
    events: mpsc::Sender<(String, AttemptEvent)>,
    workshop: AttemptEnvironment,
) {
    let AttemptRunInput {
        attempt_id,
        task_id,
        workspace,
        cleanup_term,
        required_files: files,
        directory,
        transcript_reader: mut fold,
        position,
        replay_from: recall_from,
        shim_contact: contact,
    } = errand;
    let spool = directory.join(SPOOL_DIR);
    if recall_from < position {
        spool_batch_reader::replay_transcript(spool.clone(), recall_from..position, &mut fold)
            .await;
    }
    fold.finish_replay(workshop.clock.now());
    let mut attempt = AttemptTask {
        transcript: SpoolBatchReader::open(spool, position),
        id: attempt_id,
        task_id,
        workspace,
        cleanup_term,
        required_files: files,
        directory,
        control,
        events,
        environment: workshop,
        transcript_reader: fold,
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
    let mut ending = attempt.run_to_end(contact).await;
    attempt.remove_control_group().await;
    ending.workspace = attempt.leave_workspace(ending.termination).await;
    attempt.kill_git_filters(ending.workspace.as_ref()).await;
    attempt.send_event(AttemptEvent::Ended(ending)).await;
}

/// In place of a [`run`] that died: ends whatever the attempt left, its shim too, and reports that as its end.
pub(crate) async fn report_dead_task(
    attempt_id: String,
    events: mpsc::Sender<(String, AttemptEvent)>,
    clock: Clock,
) {
    let swept = kill_by_marker(ATTEMPT_MARKER, &attempt_id, None, &clock).await;
    let cleared = unproved_termination(swept.killed);
    // Without a supervisor there is nobody to tell.
    let _ = events
        .send((
            attempt_id,
            AttemptEvent::Ended(AttemptEnding::daemon_fault(cleared)),
        ))
        .await;
}

/// What a sweep has killed is dead; what it could not see may live.
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
    /// The shim, where this process started it.
    own_shim: Option<ProcessId>,
    /// The shim that was connected last, whoever started it.
    shim: Option<ProcessId>,
    /// The shim has said that there is a child.
    spawned: bool,
    /// Whom a shim that another process started was seen to have.
    shim_descendants: ShimDescendants,
    /// The lease that is on disk, or on its way there with `noting`.
    stored_lease: Option<LeaseClock>,
    lease_write: Option<JoinHandle<()>>,
    /// What ended it: the first thing that was decided on this side.
    cause: Option<EndCause>,
    /// When KILL is due, once it was decided that it ends.
    kill_at: Option<BootTime>,
    /// The agent was asked to end its turn, and has until then before its process is told.
    interrupt_until: Option<BootTime>,
    /// An event that waits for room.
    pending_event: Option<AttemptEvent>,
}

/// How a connection to a shim ended.
enum ShimParting {
    Reported(Box<Report>),
    /// It said nothing: its report is on disk, or there is none.
    Closed,
    /// It is stuck, and was given up.
    Stuck,
    /// The machine was started since: nothing of it is alive.
    Rebooted,
}

impl AttemptTask {
    async fn run_to_end(&mut self, contact: ShimContact) -> AttemptEnding {
        let parting = match contact {
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

    /// Until the shim is over. A connection that closed is no dead shim: whoever greets it last takes the place of the
    /// one before, and so does this daemon again.
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
            warn!(attempt_id = %self.id, "the connection to the shim was lost, and is there again");
            again_at = self
                .environment
                .clock
                .now()
                .after(shim_contact::RETRY_INTERVAL);
            connection = self.adopt_shim(found);
        }
    }

    /// The shim, where another process started it.
    fn adopted_shim(&self) -> Option<ProcessId> {
        self.shim.filter(|_| self.own_shim.is_none())
    }

    /// The lease is on disk before the child may run, so that the next daemon knows how long a shim that does
    /// not answer may have. Without it there was nothing but a workspace.
    async fn launch(
        &mut self,
        mut plan: AttemptPlan,
        token: LeaseToken,
    ) -> Result<ShimConnection, AttemptEnding> {
        plan.child.cwd = self.enter_workspace(&plan.workspace).await?;
        self.enter_phase(OneTimePhase::Started, None);
        if let Err(error) = self.store_lease().await {
            return Err(AttemptEnding::not_started("note the lease", &error));
        }
        let noted = self.store_resume_context(plan.resume.take(), &mut plan.child);
        if let Err(error) = noted.await {
            return Err(AttemptEnding::not_started(
                "note what it goes on with",
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

    /// Ends what the attempt left, its shim too. That nobody is left can be proved of a shim that this process
    /// started; of another one the relay waits for the end of the lease.
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
        let swept = kill_by_marker(ATTEMPT_MARKER, &self.id, None, clock).await;
        if !swept.is_clear {
            warn!(attempt_id = %self.id, "processes of the attempt cannot be killed");
        }
        unproved_termination(swept.killed + below)
    }

    async fn send_event(&self, event: AttemptEvent) {
        // Without a supervisor there is nobody to tell; the shim ends the child properly.
        let _ = self.events.send((self.id.clone(), event)).await;
    }
}
