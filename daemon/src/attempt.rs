//! One attempt's life from its start to its last process: drives the shim that owns the child, folds what the
//! child says into events, watches the local deadlines, and tells the supervisor all of it. Leases, frames and
//! the relay are the supervisor's. The shim ends the child by itself when the lease does; what this side adds is
//! the second line for a shim that is stuck, and the word for one that died.

use std::path::PathBuf;
use std::time::Duration;

use baton_daemon_core::lease::LeaseClock;
use baton_proto::v1::{LeaseToken, ResumeContext, WorkspaceReport};
use baton_proto::worker::{Report, Stdin};
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::warn;

use crate::cgroups::Groups;
use crate::clock::{Clock, Moment};
use crate::outbox::CutWhy;
use crate::phases::OncePhase;
use crate::process::{
    ATTEMPT_MARKER, ChildSpec, Cleared, ProcessId, kill_below, kill_family, kill_marked,
};
use crate::receipts::WantedFiles;
use crate::shim::SPOOL;
use crate::shim::client::{self, Connection, Markers, ShimProgram};
use crate::timers::{DeadlineKind, Deadlines};
use crate::tools::Granted;
use crate::workspace;

mod coalesce;
mod ending;
mod fold;
mod follow;
mod interrupting;
mod kin;
mod lease_file;
mod looking;
mod place;
mod resume_file;
mod seek;
mod tail;
mod talk;
mod transcript;

pub(crate) use coalesce::Chunk;
pub(crate) use ending::{Cause, Ending};
use fold::Missing;
pub(crate) use fold::{Fold, Progress};
use kin::Kin;
pub(crate) use lease_file::read_lease;
use lease_file::write_lease;
pub(crate) use place::leave_unused;
pub(crate) use resume_file::RESUME;
pub(crate) use seek::{Contacted, Found, contact};
pub(crate) use talk::{Said, Spoken, Talk, Word};
use transcript::Transcript;

/// The prompt is the first thing on a command's stdin.
const PROMPT: u64 = 1;

/// What to run and under which limits.
#[derive(Clone, Debug)]
pub(crate) struct AttemptPlan {
    pub(crate) attempt_id: String,
    pub(crate) task_id: String,
    pub(crate) workspace: workspace::Plan,
    /// Its working directory is the agent's word for it; what it is started in is found when the workspace is.
    pub(crate) child: ChildSpec,
    pub(crate) words: Words,
    pub(crate) deadlines: Deadlines,
    /// From TERM to KILL.
    pub(crate) cleanup_term: Duration,
    /// What its agent may say through tools, where it has some.
    pub(crate) tools: Option<Granted>,
    /// What it has to leave.
    pub(crate) files: Option<WantedFiles>,
    /// What a command is told of the attempts before it.
    pub(crate) resume: Option<ResumeContext>,
}

/// What goes to the child's stdin, and so how it is understood.
#[derive(Clone, Debug)]
pub(crate) enum Words {
    /// All at once; what comes back is output.
    Prompt(Bytes),
    /// A coding agent is talked to.
    Talk(Box<Talk>),
}

/// The order to stop. A later order can only bring KILL forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) kill_at: Moment,
    /// There is still somebody who wants to hear of it, so an agent may end its turn first.
    pub(crate) may_ask: bool,
    /// Nobody wants its result any more: what that would need beside itself is not waited for.
    pub(crate) calls_off: bool,
}

#[derive(Debug)]
pub(crate) enum AttemptEvent {
    /// A phase was reached; `next_deadline` is for people.
    Entered {
        phase: OncePhase,
        pid: Option<i32>,
        next_deadline: Option<Moment>,
        /// Of the beginning of the end: the deadline that it is ended for.
        passed: Option<DeadlineKind>,
        progress: Progress,
    },
    Output {
        chunk: Chunk,
        progress: Progress,
    },
    /// A coding agent did or wants something.
    Said {
        said: Said,
        progress: Progress,
    },
    /// Output of this length is gone for good.
    Missed {
        length: u64,
        why: CutWhy,
        progress: Progress,
    },
    /// Much was read of which there is nothing to tell.
    Read {
        progress: Progress,
    },
    /// A shim that did not answer does so now.
    Reached {
        token: Option<LeaseToken>,
        lease: Option<LeaseClock>,
    },
    /// It cannot start yet, and why.
    Waits {
        message: String,
    },
    /// Where it works.
    Placed(Box<WorkspaceReport>),
    /// Every process is gone, or cannot be killed; the rest of the output is still to come.
    Over,
    /// The last event.
    Ended(Ending),
}

impl AttemptEvent {
    /// How far it has consumed the transcript.
    pub(crate) fn progress(&self) -> Option<&Progress> {
        match self {
            Self::Entered { progress, .. }
            | Self::Output { progress, .. }
            | Self::Said { progress, .. }
            | Self::Missed { progress, .. }
            | Self::Read { progress } => Some(progress),
            Self::Reached { .. }
            | Self::Waits { .. }
            | Self::Placed(_)
            | Self::Over
            | Self::Ended(_) => None,
        }
    }

    fn progress_mut(&mut self) -> Option<&mut Progress> {
        match self {
            Self::Entered { progress, .. }
            | Self::Output { progress, .. }
            | Self::Said { progress, .. }
            | Self::Missed { progress, .. }
            | Self::Read { progress } => Some(progress),
            Self::Reached { .. }
            | Self::Waits { .. }
            | Self::Placed(_)
            | Self::Over
            | Self::Ended(_) => None,
        }
    }
}

/// The attempt's lines to its supervisor.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) stop: watch::Receiver<Option<Stop>>,
    /// True while the relay is slower than the child: the transcript is not read on.
    pub(crate) hold_back: watch::Receiver<bool>,
    /// The lease as it was renewed last.
    pub(crate) lease: watch::Receiver<Option<LeaseClock>>,
    /// The supervisor has taken in what was told of the transcript before this position.
    pub(crate) heard: watch::Receiver<u64>,
    /// What lies before this position of the transcript is stored and not needed again.
    pub(crate) consumed: watch::Receiver<u64>,
    /// So many answers to the agent's requests are stored, and may go to it.
    pub(crate) answered: watch::Receiver<u64>,
    /// The agent has said through its tools how it ends.
    pub(crate) fixed: watch::Receiver<bool>,
    /// What people say to what the agent asked. Bounded; what finds no room waits before it.
    pub(crate) words: mpsc::Receiver<Word>,
    /// Limit of the lease that the shim has.
    pub(crate) told: watch::Sender<Option<Moment>>,
    /// Bounded; when it is full the attempt waits, and so does its child.
    pub(crate) events: mpsc::Sender<(String, AttemptEvent)>,
}

/// What all attempts of a daemon share.
#[derive(Clone, Debug)]
pub(crate) struct Workshop {
    pub(crate) shim: ShimProgram,
    pub(crate) daemon_id: String,
    pub(crate) instance_id: String,
    pub(crate) boot_id: String,
    /// The daemon's name, for people.
    pub(crate) name: String,
    /// Where attempts have control groups.
    pub(crate) groups: Option<Groups>,
    pub(crate) clock: Clock,
}

/// One attempt as it is handed to its task.
#[derive(Debug)]
pub(crate) struct Errand {
    pub(crate) attempt_id: String,
    pub(crate) task_id: String,
    /// Where it works; none for the daemon's own work directory.
    pub(crate) workspace: Option<workspace::Plan>,
    pub(crate) cleanup_term: Duration,
    /// What it has to leave.
    pub(crate) files: Option<WantedFiles>,
    /// The attempt's own directory.
    pub(crate) directory: PathBuf,
    pub(crate) fold: Fold,
    /// Where the fold goes on, and from where on it must remember what it was told before.
    pub(crate) position: u64,
    pub(crate) recall_from: u64,
    pub(crate) contact: Contact,
}

/// How the attempt's shim stands when the task begins.
#[derive(Debug)]
pub(crate) enum Contact {
    /// It is to be started.
    Launch {
        plan: Box<AttemptPlan>,
        token: LeaseToken,
    },
    /// It was started by a daemon before this one, and has answered.
    Adopted(Box<Found>),
    /// It has not answered.
    Unreachable,
    /// It is gone. What it left behind may still be there, unless the machine was started since.
    Gone { same_boot: bool },
}

/// Runs the attempt to its end. Dropping the future leaves the shim to its lease and to the next daemon.
pub(crate) async fn run(errand: Errand, lines: Lines, workshop: Workshop) {
    let Errand {
        attempt_id,
        task_id,
        workspace,
        cleanup_term,
        files,
        directory,
        mut fold,
        position,
        recall_from,
        contact,
    } = errand;
    let spool = directory.join(SPOOL);
    if recall_from < position {
        transcript::recall(spool.clone(), recall_from..position, &mut fold).await;
    }
    fold.recalled(workshop.clock.now());
    let mut attempt = Attempt {
        transcript: Transcript::open(spool, position),
        id: attempt_id,
        task_id,
        place: workspace,
        cleanup_term,
        files,
        directory,
        lines,
        workshop,
        fold,
        own_shim: None,
        shim: None,
        spawned: false,
        kin: Kin::default(),
        noted: None,
        noting: None,
        cause: None,
        kill_at: None,
        asked_until: None,
        pending: None,
    };
    let mut ending = attempt.live(contact).await;
    attempt.end_group().await;
    ending.workspace = attempt.move_out(ending.cleared).await;
    attempt.end_filters(ending.workspace.as_ref()).await;
    attempt.tell(AttemptEvent::Ended(ending)).await;
}

/// In place of a [`run`] that died: ends whatever the attempt left, its shim too, and reports that as its end.
pub(crate) async fn bury(
    attempt_id: String,
    events: mpsc::Sender<(String, AttemptEvent)>,
    clock: Clock,
) {
    let swept = kill_marked(ATTEMPT_MARKER, &attempt_id, None, &clock).await;
    let cleared = unproved(swept.killed);
    // Without a supervisor there is nobody to tell.
    let _ = events
        .send((attempt_id, AttemptEvent::Ended(Ending::broken(cleared))))
        .await;
}

/// What a sweep has killed is dead; what it could not see may live.
fn unproved(killed: u32) -> Cleared {
    Cleared {
        empty: false,
        terminated: false,
        killed: killed > 0,
        swept: killed,
    }
}

struct Attempt {
    id: String,
    task_id: String,
    place: Option<workspace::Plan>,
    cleanup_term: Duration,
    files: Option<WantedFiles>,
    directory: PathBuf,
    lines: Lines,
    workshop: Workshop,
    fold: Fold,
    transcript: Transcript,
    /// The shim, where this process started it.
    own_shim: Option<ProcessId>,
    /// The shim that was connected last, whoever started it.
    shim: Option<ProcessId>,
    /// The shim has said that there is a child.
    spawned: bool,
    /// Whom a shim that another process started was seen to have.
    kin: Kin,
    /// The lease that is on disk, or on its way there with `noting`.
    noted: Option<LeaseClock>,
    noting: Option<JoinHandle<()>>,
    /// What ended it: the first thing that was decided on this side.
    cause: Option<Cause>,
    /// When KILL is due, once it was decided that it ends.
    kill_at: Option<Moment>,
    /// The agent was asked to end its turn, and has until then before its process is told.
    asked_until: Option<Moment>,
    /// An event that waits for room.
    pending: Option<AttemptEvent>,
}

/// How a connection to a shim ended.
enum Parting {
    Reported(Box<Report>),
    /// It said nothing: its report is on disk, or there is none.
    Closed,
    /// It is stuck, and was given up.
    Stuck,
    /// The machine was started since: nothing of it is alive.
    Rebooted,
}

impl Attempt {
    async fn live(&mut self, contact: Contact) -> Ending {
        let parting = match contact {
            Contact::Launch { plan, token } => match self.launch(*plan, token).await {
                Ok(connection) => self.stay(connection).await,
                Err(ending) => {
                    self.deliver_all().await;
                    return ending;
                }
            },
            Contact::Adopted(found) => self.adopt(*found).await,
            Contact::Unreachable => match self.seek().await {
                Some(found) => {
                    self.tell(found.news()).await;
                    self.adopt(found).await
                }
                None => Parting::Stuck,
            },
            Contact::Gone { same_boot: true } => Parting::Closed,
            Contact::Gone { same_boot: false } => Parting::Rebooted,
        };
        self.conclude(parting).await
    }

    async fn adopt(&mut self, found: Found) -> Parting {
        let connection = self.take_over(found);
        self.stay(connection).await
    }

    /// Until the shim is over. A connection that closed is no dead shim: whoever greets it last takes the place of the
    /// one before, and so does this daemon again.
    async fn stay(&mut self, mut connection: Connection) -> Parting {
        let mut again_at = self.workshop.clock.now();
        loop {
            let parting = self.follow(&mut connection).await;
            if !matches!(parting, Parting::Closed) || self.read_report().await.is_some() {
                return parting;
            }
            self.wait_for_orders(again_at).await;
            let Some(found) = self.seek().await else {
                return Parting::Closed;
            };
            warn!(attempt_id = %self.id, "the connection to the shim was lost, and is there again");
            again_at = self.workshop.clock.now().after(seek::TRY_AGAIN);
            connection = self.take_over(found);
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
    ) -> Result<Connection, Ending> {
        plan.child.cwd = self.move_in(&plan.workspace).await?;
        self.enter(OncePhase::Started, None);
        if let Err(error) = self.store_lease().await {
            return Err(Ending::not_started("note the lease", &error));
        }
        let noted = self.note_resume(plan.resume.take(), &mut plan.child);
        if let Err(error) = noted.await {
            return Err(Ending::not_started("note what it goes on with", &error));
        }
        let markers = Markers {
            attempt_id: &self.id,
            daemon_id: &self.workshop.daemon_id,
        };
        let started = client::start(&self.workshop.shim, &self.directory, markers);
        let mut connection =
            started.map_err(|error| Ending::not_started("start the attempt's shim", &error))?;
        self.own_shim = connection.shim();
        self.shim = self.own_shim;
        self.hand_over_lock().await?;
        plan.child.group = self.make_group();
        let first = match &plan.words {
            Words::Prompt(prompt) => Stdin {
                id: PROMPT,
                data: prompt.clone(),
                close: true,
            },
            Words::Talk(_) => self.fold.stdin_after(0, 0).next().unwrap_or_default(),
        };
        let launch = follow::launch(plan, token, self.lease());
        connection.launch(&self.workshop.instance_id, first, launch);
        Ok(connection)
    }

    fn enter(&mut self, phase: OncePhase, pid: Option<i32>) {
        let now = self.workshop.clock.now();
        self.fold.enter(phase, pid, now);
    }

    /// Ends what the attempt left, its shim too. That nobody is left can be proved of a shim that this process
    /// started; of another one the relay waits for the end of the lease.
    async fn sweep(&self) -> Cleared {
        let clock = &self.workshop.clock;
        if let Some(shim) = self.own_shim {
            let cleared = kill_family(shim, &self.id, clock).await;
            if cleared.empty {
                return cleared;
            }
        }
        let below = match self.adopted_shim() {
            Some(shim) => kill_below(shim, clock).await,
            None => 0,
        };
        let below = below + self.kin.kill_seen().await;
        let swept = kill_marked(ATTEMPT_MARKER, &self.id, None, clock).await;
        if !swept.is_quiet {
            warn!(attempt_id = %self.id, "processes of the attempt cannot be killed");
        }
        unproved(swept.killed + below)
    }

    async fn tell(&self, event: AttemptEvent) {
        // Without a supervisor there is nobody to tell; the shim ends the child properly.
        let _ = self.lines.events.send((self.id.clone(), event)).await;
    }
}
