//! Owns every attempt of this daemon and outlives every link: one loop, one owner, no locks. Losing the
//! stream changes nothing in here but where frames go; leases, deadlines and orders end attempts.
//! The loop never waits for the network or for a child: frames leave when there is room for them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::time::Duration;

use baton_daemon_core::heartbeats::Heartbeats;
use baton_daemon_core::stake::Stake;
use baton_proto::v1::{Hello, RelayFrame};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::DaemonError;
use crate::agents::{Agents, Found};
use crate::attempt::{AttemptEvent, Workshop};
use crate::attempt_dir::{AttemptId, Attempts};
use crate::clock::{Clock, Moment};
use crate::config::DaemonConfig;
use crate::conversations::Conversations;
use crate::disk::Disk;
use crate::epoch::RelayEpochs;
use crate::held::Held;
use crate::identity::Identity;
use crate::link::LinkError;
use crate::memory::Memory;
use crate::outbox::Writer;
use crate::process::reap_orphans;
use crate::session::Session;
use crate::status::{DaemonStatus, Heard};
use crate::storage::Storage;
use crate::tools::{Asked, Tooling};
use crate::workspace::Roots;

pub(crate) mod adoption;
mod calls;
mod course;
mod duties;
mod heartbeat;
mod orders;
mod running;
mod sending;
mod stopping;
mod storing;

use course::{Course, Stopping};
use duties::Duty;
use sending::room;
use stopping::told;

/// Events of all attempts together. Full: the attempts wait, and so do their children.
const EVENTS: usize = 256;
/// Finished attempts that are remembered, so that a repeated dispatch does not run them again.
const REMEMBERED: usize = 1024;
/// Orphans that died unnoticed are waited for this often.
const REAP_EVERY: Duration = Duration::from_secs(5);
/// How often it is looked whether the agents' programs are still there, for the next Hello.
const PROGRAMS_EVERY: Duration = Duration::from_secs(30);
/// The loop turns at least this often, whatever happens.
const TURN_EVERY: Duration = Duration::from_secs(5);
/// How long after its start a daemon counts on a relay that is there.
const AWAITED: Duration = Duration::from_secs(30);

/// From the link.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// It is about to dial and needs to know what the daemon holds.
    HelloWanted(oneshot::Sender<Hello>),
    Up {
        session: Session,
        hello_sent_at: Moment,
        welcome: Box<RelayFrame>,
        /// Learns whether the relay is one to stay with.
        admitted: oneshot::Sender<bool>,
    },
    Frame {
        session: u64,
        frame: Box<RelayFrame>,
    },
    Down {
        session: u64,
    },
    /// There is no stream, and this is why; it dials again later.
    Trouble(String),
    /// It will not dial again.
    GivenUp(LinkError),
}

/// What the daemon says of itself in Hello.
struct Profile {
    name: String,
    slots: u32,
    labels: BTreeMap<String, String>,
    capabilities: Vec<String>,
}

/// The stream and its heartbeats, while there is one.
struct Live {
    session: Session,
    heartbeats: Heartbeats,
    /// When the relay last answered.
    heard_at: Moment,
    /// Whether the relay knows of holds.
    grants_holds: bool,
}

pub(crate) struct Supervisor {
    profile: Profile,
    stopping: Stopping,
    agents: Agents,
    tooling: Tooling,
    identity: Identity,
    workshop: Workshop,
    attempts: Attempts,
    clock: Clock,
    held: BTreeMap<String, Held>,
    /// Attempts with something unsent, each once; served in turn.
    ready: VecDeque<String>,
    forgotten: VecDeque<String>,
    live: Option<Live>,
    epochs: RelayEpochs,
    conversations: Conversations,
    writer: Writer,
    disk: Disk,
    memory: Memory,
    /// Directories that nobody needs any more and that are still there.
    removals: VecDeque<AttemptId>,
    look_at: Moment,
    course: Course,
    given_up: Option<LinkError>,
    /// Why there is no stream, for people.
    trouble: String,
    /// What a newer relay said and this version does not know.
    unknown: u64,
    tasks: JoinSet<()>,
    /// Whose end each of `tasks` owes.
    duties: HashMap<tokio::task::Id, Duty>,
    events: mpsc::Sender<(String, AttemptEvent)>,
    incoming: mpsc::Receiver<(String, AttemptEvent)>,
    /// Until then the relay counts as about to come: nothing is cut because it is not there yet.
    awaited_until: Option<Moment>,
    reap_at: Moment,
    /// When the agents' programs are looked for again, and the look that is under way.
    programs_at: Moment,
    looking: Option<JoinHandle<()>>,
    /// For the link's backoff.
    stake: watch::Sender<Stake>,
    status: watch::Sender<DaemonStatus>,
}

impl Supervisor {
    pub(crate) fn new(
        config: &DaemonConfig,
        identity: Identity,
        storage: Storage,
        workshop: Workshop,
        stake: watch::Sender<Stake>,
        status: watch::Sender<DaemonStatus>,
    ) -> io::Result<Self> {
        let (events, incoming) = mpsc::channel(EVENTS);
        Ok(Self {
            profile: Profile {
                name: config.name.clone(),
                slots: config.slots,
                labels: config.labels.clone(),
                capabilities: config.capabilities.clone(),
            },
            stopping: Stopping {
                drain: config.drain,
                hold: config.hold,
            },
            agents: Agents::new(config.agents.clone(), Roots::new(config)),
            tooling: Tooling::new(&config.tools_program, &config.data_dir),
            memory: Memory::new(config.limits.memory_floor_percent),
            identity,
            workshop,
            attempts: storage.attempts.clone(),
            awaited_until: Some(config.clock.now().after(AWAITED)),
            reap_at: config.clock.now().after(REAP_EVERY),
            programs_at: config.clock.now().after(PROGRAMS_EVERY),
            looking: None,
            clock: config.clock.clone(),
            held: BTreeMap::new(),
            ready: VecDeque::new(),
            forgotten: VecDeque::new(),
            live: None,
            writer: storage.start_writer()?,
            epochs: storage.epochs,
            conversations: storage.conversations,
            disk: storage.disk,
            removals: VecDeque::new(),
            look_at: config.clock.now(),
            course: Course::Working,
            given_up: None,
            trouble: "it has not connected yet".to_owned(),
            unknown: 0,
            tasks: JoinSet::new(),
            duties: HashMap::new(),
            events,
            incoming,
            stake,
            status,
        })
    }

    /// Runs until the order to stop has been carried out.
    pub(crate) async fn run(
        mut self,
        mut link: mpsc::Receiver<LinkEvent>,
        mut calls: mpsc::Receiver<Asked>,
        stop: CancellationToken,
    ) -> Result<(), DaemonError> {
        loop {
            self.on_time();
            self.save();
            self.pump();
            self.publish();
            if self.is_done() {
                break;
            }
            let wake = self.next_wake();
            let outlet = self.crowded_outlet();
            let untold = self.untold();
            tokio::select! {
                // Orders before events: a flood of output must not delay a cancel.
                biased;
                () = stop.cancelled(), if !self.course.is_stopping() => self.begin_drain(),
                Some(event) = link.recv() => self.on_link(event)?,
                Some(report) = self.writer.reports.recv() => self.on_report(report),
                Some((id, event)) = self.incoming.recv() => self.on_attempt(&id, event),
                Some(asked) = calls.recv() => self.on_tool(asked),
                Some(over) = self.tasks.join_next_with_id() => self.on_task_over(over),
                () = room(outlet) => {}
                () = told(untold) => {}
                () = self.clock.sleep_until_some(wake) => {}
            }
        }
        self.say_goodbye();
        let given_up = self.given_up.take();
        self.finish_writing().await;
        given_up.map_or(Ok(()), |error| Err(DaemonError::Link(error)))
    }

    fn on_link(&mut self, event: LinkEvent) -> Result<(), DaemonError> {
        match event {
            LinkEvent::HelloWanted(reply) => {
                // The link may have given up waiting.
                let _ = reply.send(self.hello());
            }
            LinkEvent::Up {
                session,
                hello_sent_at,
                welcome,
                admitted,
            } => {
                let is_admitted = self.on_up(session, hello_sent_at, *welcome)?;
                // The link may have been told to finish.
                let _ = admitted.send(is_admitted);
            }
            LinkEvent::Frame { session, frame } => {
                if self
                    .live
                    .as_ref()
                    .is_some_and(|live| live.session.number == session)
                {
                    self.on_frame(*frame);
                }
            }
            LinkEvent::Down { session } => {
                if self
                    .live
                    .as_ref()
                    .is_some_and(|live| live.session.number == session)
                {
                    self.on_down();
                }
            }
            LinkEvent::Trouble(why) => {
                // Each reason once: the link tries for ever.
                if why != self.trouble {
                    warn!(why, "no stream to the relay");
                }
                self.trouble = why;
            }
            LinkEvent::GivenUp(error) => {
                error!(error = %error, "the relay will not have this daemon");
                self.given_up = Some(error);
                if !self.course.is_stopping() {
                    self.begin_drain();
                }
            }
        }
        Ok(())
    }

    fn on_down(&mut self) {
        info!(
            held = self.held.len(),
            "lost the stream; attempts go on under their leases"
        );
        self.live = None;
        // Until the link knows more.
        "the stream broke".clone_into(&mut self.trouble);
        self.hold_lost();
        self.balance_all();
    }

    fn balance_all(&mut self) {
        let keeping_up = self.is_keeping_up();
        for held in self.held.values_mut() {
            held.balance(keeping_up);
        }
    }

    /// Everything that the clock alone decides.
    fn on_time(&mut self) {
        let now = self.clock.now();
        self.change_all(|held, clock| held.on_time(clock));
        if self
            .live
            .as_ref()
            .is_some_and(|live| live.heartbeats.due_at() <= now)
        {
            self.on_heartbeat_due();
        }
        if self.look_at <= now {
            self.look(now);
        }
        if self.awaited_until.is_some_and(|until| until <= now) {
            self.awaited_until = None;
            // A child that was held back for a relay that did not come says nothing that would let it go.
            self.balance_all();
        }
        if self.reap_at <= now {
            self.reap_at = now.after(REAP_EVERY);
            self.tasks.spawn_blocking(reap_orphans);
        }
        if self.programs_at <= now {
            self.programs_at = now.after(PROGRAMS_EVERY);
            self.look_for_programs();
        }
        self.move_on(now);
    }

    /// What was found of the agents' programs before the first Hello.
    pub(crate) fn know_agents(&mut self, found: BTreeMap<String, Found>) {
        self.agents.on_look(found);
    }

    /// One look at a time: a disk that hangs takes one thread and not all there are.
    fn look_for_programs(&mut self) {
        if self.looking.as_ref().is_none_or(JoinHandle::is_finished) {
            self.looking = Some(tokio::task::spawn_blocking(self.agents.look_again()));
        }
    }

    fn next_wake(&self) -> Option<Moment> {
        let now = self.clock.now();
        let course = self.course.wake_at();
        let heartbeat = self.live.as_ref().map(|live| live.heartbeats.due_at());
        let attempts = self.held.values().filter_map(Held::next_wake).min();
        // Whoever asks how the daemon is must see that the loop turns.
        let turn = Some(now.after(TURN_EVERY));
        let rounds = Some(self.reap_at.min(self.look_at).min(self.programs_at));
        [
            course,
            heartbeat,
            attempts,
            rounds,
            self.awaited_until,
            turn,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn publish(&self) {
        let stake = Stake::of(self.held.values().map(Held::at_stake));
        self.stake
            .send_if_modified(|old| std::mem::replace(old, stake) != stake);
        // As the relay counts: whoever's last word is still to come, also where no process is left.
        let running = self
            .held
            .values()
            .filter(|held| !held.is_finished())
            .count();
        let status = DaemonStatus {
            connected: self.live.is_some(),
            heard: self.live.as_ref().map(|live| Heard {
                at: live.heard_at,
                every: live.heartbeats.interval(),
            }),
            trouble: match self.live {
                Some(_) => String::new(),
                None => self.trouble.clone(),
            },
            turned_at: self.clock.now(),
            daemon_id: self.identity.daemon_id().to_owned(),
            slots: self.profile.slots,
            running: u32::try_from(running).unwrap_or(u32::MAX),
            draining: !self.course.takes_work(),
            disk: self.disk.state(),
            low_memory: self.memory.is_low(),
            unknown: self.unknown,
        };
        self.status.send_if_modified(|old| {
            // A turn alone is no news to those who wait for some.
            old.turned_at = status.turned_at;
            let changed = *old != status;
            *old = status;
            changed
        });
    }

    fn forget(&mut self, id: &str) {
        if let Some(held) = self.held.remove(id) {
            self.removals.extend(held.place.on_disk());
            self.forgotten.push_back(id.to_owned());
            if self.forgotten.len() > REMEMBERED {
                self.forgotten.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests;
