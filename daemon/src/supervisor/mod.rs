//! Owns every attempt of this daemon and outlives every link: one loop, one owner, no locks. Losing the
//! stream changes nothing in here but where frames go; leases, deadlines and orders end attempts.
//! The loop never waits for the network or for a child: frames leave when there is room for them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::time::Duration;

use baton_daemon_core::heartbeat_tracker::HeartbeatTracker;
use baton_daemon_core::reconnect_urgency::ReconnectUrgency;
use baton_proto::v1::{Hello, RelayFrame};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::DaemonError;
use crate::agents::{AgentRegistry, ProgramStatus};
use crate::attempt::{AttemptEnvironment, AttemptEvent};
use crate::clock::{BootTime, Clock};
use crate::config::DaemonConfig;
use crate::health::daemon_status::{DaemonStatus, RelayContact};
use crate::link::LinkError;
use crate::link::link_session::LinkSession;
use crate::machine::disk_monitor::DiskMonitor;
use crate::machine::memory_monitor::MemoryMonitor;
use crate::outbox::OutboxWriter;
use crate::process::reap_orphans;
use crate::storage::attempt_dir::{AttemptDirectories, AttemptId};
use crate::storage::conversation_store::ConversationStore;
use crate::storage::daemon_identity::DaemonIdentity;
use crate::storage::daemon_storage::DaemonStorage;
use crate::storage::relay_epochs::RelayEpochs;
use crate::supervised_attempt::SupervisedAttempt;
use crate::tools::{ToolRequest, ToolServerSettings};
use crate::workspace::WorkspaceRoots;

pub(crate) mod adoption;
mod attempt_run;
mod attempt_tasks;
mod disk_jobs;
mod heartbeat;
mod relay_frames;
mod send_queue;
mod shutdown;
mod shutdown_plan;
mod tool_calls;

use attempt_tasks::AttemptTaskKind;
use send_queue::wait_for_room;
use shutdown::wait_for_delivery;
use shutdown_plan::{ShutdownPlan, ShutdownSettings};

/// Events of all attempts together. Full: the attempts wait, and so do their children.
const EVENT_QUEUE: usize = 256;
/// Finished attempts that are remembered, so that a repeated dispatch does not run them again.
const FINISHED_IDS_MAX: usize = 1024;
/// Orphans that died unnoticed are waited for this often.
const REAP_INTERVAL: Duration = Duration::from_secs(5);
/// How often it is looked whether the agents' programs are still there, for the next Hello.
const PROGRAM_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// The loop turns at least this often, whatever happens.
const LOOP_INTERVAL_MAX: Duration = Duration::from_secs(5);
/// How long after its start a daemon counts on a relay that is there.
const RELAY_WAIT_AFTER_START: Duration = Duration::from_secs(30);

/// From the link.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// It is about to dial and needs to know what the daemon holds.
    HelloRequested(oneshot::Sender<Hello>),
    Connected {
        session: LinkSession,
        hello_sent_at: BootTime,
        welcome: Box<RelayFrame>,
        /// Learns whether the relay is one to stay with.
        admitted: oneshot::Sender<bool>,
    },
    Frame {
        session: u64,
        frame: Box<RelayFrame>,
    },
    Disconnected {
        session: u64,
    },
    /// There is no stream, and this is why; it dials again later.
    NotConnected(String),
    /// It will not dial again.
    GivenUp(LinkError),
}

/// What the daemon says of itself in Hello.
struct DaemonDescription {
    name: String,
    slots: u32,
    labels: BTreeMap<String, String>,
    capabilities: Vec<String>,
}

/// The stream and its heartbeats, while there is one.
struct LiveSession {
    session: LinkSession,
    heartbeats: HeartbeatTracker,
    /// When the relay last answered.
    last_answer_at: BootTime,
    /// Whether the relay knows of holds.
    grants_lease_extensions: bool,
}

pub(crate) struct Supervisor {
    description: DaemonDescription,
    shutdown_settings: ShutdownSettings,
    agents: AgentRegistry,
    tooling: ToolServerSettings,
    identity: DaemonIdentity,
    attempt_environment: AttemptEnvironment,
    attempt_dirs: AttemptDirectories,
    clock: Clock,
    supervised: BTreeMap<String, SupervisedAttempt>,
    /// Attempts with something unsent, each once; served in turn.
    send_queue: VecDeque<String>,
    finished_ids: VecDeque<String>,
    live_session: Option<LiveSession>,
    epochs: RelayEpochs,
    conversations: ConversationStore,
    writer: OutboxWriter,
    disk: DiskMonitor,
    memory: MemoryMonitor,
    /// Directories that nobody needs any more and that are still there.
    dirs_to_remove: VecDeque<AttemptId>,
    disk_check_at: BootTime,
    shutdown_plan: ShutdownPlan,
    link_error: Option<LinkError>,
    /// Why there is no stream, for people.
    disconnect_reason: String,
    /// What a newer relay said and this version does not know.
    unknown_messages: u64,
    tasks: JoinSet<()>,
    /// Whose end each of `tasks` owes.
    task_kinds: HashMap<tokio::task::Id, AttemptTaskKind>,
    event_sender: mpsc::Sender<(String, AttemptEvent)>,
    attempt_events: mpsc::Receiver<(String, AttemptEvent)>,
    /// Until then the relay counts as about to come: nothing is cut because it is not there yet.
    relay_awaited_until: Option<BootTime>,
    reap_at: BootTime,
    /// When the agents' programs are looked for again, and the look that is under way.
    program_check_at: BootTime,
    program_check: Option<JoinHandle<()>>,
    /// For the link's backoff.
    reconnect_urgency: watch::Sender<ReconnectUrgency>,
    status: watch::Sender<DaemonStatus>,
}

impl Supervisor {
    pub(crate) fn new(
        config: &DaemonConfig,
        identity: DaemonIdentity,
        storage: DaemonStorage,
        workshop: AttemptEnvironment,
        stake: watch::Sender<ReconnectUrgency>,
        status: watch::Sender<DaemonStatus>,
    ) -> io::Result<Self> {
        let (events, incoming) = mpsc::channel(EVENT_QUEUE);
        Ok(Self {
            description: DaemonDescription {
                name: config.name.clone(),
                slots: config.slots,
                labels: config.labels.clone(),
                capabilities: config.capabilities.clone(),
            },
            shutdown_settings: ShutdownSettings {
                drain: config.drain,
                lease_extension: config.lease_extension,
            },
            agents: AgentRegistry::new(config.agents.clone(), WorkspaceRoots::new(config)),
            tooling: ToolServerSettings::new(&config.tools_program, &config.data_dir),
            memory: MemoryMonitor::new(config.limits.memory_floor_percent),
            identity,
            attempt_environment: workshop,
            attempt_dirs: storage.attempts.clone(),
            relay_awaited_until: Some(config.clock.now().after(RELAY_WAIT_AFTER_START)),
            reap_at: config.clock.now().after(REAP_INTERVAL),
            program_check_at: config.clock.now().after(PROGRAM_CHECK_INTERVAL),
            program_check: None,
            clock: config.clock.clone(),
            supervised: BTreeMap::new(),
            send_queue: VecDeque::new(),
            finished_ids: VecDeque::new(),
            live_session: None,
            writer: storage.start_writer()?,
            epochs: storage.epochs,
            conversations: storage.conversations,
            disk: storage.disk,
            dirs_to_remove: VecDeque::new(),
            disk_check_at: config.clock.now(),
            shutdown_plan: ShutdownPlan::Working,
            link_error: None,
            disconnect_reason: "it has not connected yet".to_owned(),
            unknown_messages: 0,
            tasks: JoinSet::new(),
            task_kinds: HashMap::new(),
            event_sender: events,
            attempt_events: incoming,
            reconnect_urgency: stake,
            status,
        })
    }

    /// Runs until the order to stop has been carried out.
    pub(crate) async fn run(
        mut self,
        mut link: mpsc::Receiver<LinkEvent>,
        mut calls: mpsc::Receiver<ToolRequest>,
        stop: CancellationToken,
    ) -> Result<(), DaemonError> {
        loop {
            self.on_time();
            self.submit_jobs();
            self.send_frames();
            self.publish_status();
            if self.is_shutdown_complete() {
                break;
            }
            let wake = self.next_wake();
            let outlet = self.full_frame_queue();
            let untold = self.undelivered_leases();
            tokio::select! {
                // Orders before events: a flood of output must not delay a cancel.
                biased;
                () = stop.cancelled(), if !self.shutdown_plan.is_stopping() => self.begin_drain(),
                Some(event) = link.recv() => self.on_link_event(event)?,
                Some(report) = self.writer.reports.recv() => self.on_writer_report(report),
                Some((id, event)) = self.attempt_events.recv() => self.on_attempt_event(&id, event),
                Some(asked) = calls.recv() => self.on_tool_call(asked),
                Some(over) = self.tasks.join_next_with_id() => self.on_task_ended(over),
                () = wait_for_room(outlet) => {}
                () = wait_for_delivery(untold) => {}
                () = self.clock.sleep_until_some(wake) => {}
            }
        }
        self.send_goodbye();
        let given_up = self.link_error.take();
        self.finish_writing().await;
        given_up.map_or(Ok(()), |error| Err(DaemonError::Link(error)))
    }

    fn on_link_event(&mut self, event: LinkEvent) -> Result<(), DaemonError> {
        match event {
            LinkEvent::HelloRequested(reply) => {
                // The link may have given up waiting.
                let _ = reply.send(self.hello());
            }
            LinkEvent::Connected {
                session,
                hello_sent_at,
                welcome,
                admitted,
            } => {
                let is_admitted = self.on_connected(session, hello_sent_at, *welcome)?;
                // The link may have been told to finish.
                let _ = admitted.send(is_admitted);
            }
            LinkEvent::Frame { session, frame } => {
                if self
                    .live_session
                    .as_ref()
                    .is_some_and(|live| live.session.number == session)
                {
                    self.on_frame(*frame);
                }
            }
            LinkEvent::Disconnected { session } => {
                if self
                    .live_session
                    .as_ref()
                    .is_some_and(|live| live.session.number == session)
                {
                    self.on_disconnected();
                }
            }
            LinkEvent::NotConnected(why) => {
                // Each reason once: the link tries for ever.
                if why != self.disconnect_reason {
                    warn!(why, "no stream to the relay");
                }
                self.disconnect_reason = why;
            }
            LinkEvent::GivenUp(error) => {
                error!(error = %error, "the relay will not have this daemon");
                self.link_error = Some(error);
                if !self.shutdown_plan.is_stopping() {
                    self.begin_drain();
                }
            }
        }
        Ok(())
    }

    fn on_disconnected(&mut self) {
        info!(
            held = self.supervised.len(),
            "lost the stream; attempts go on under their leases"
        );
        self.live_session = None;
        // Until the link knows more.
        "the stream broke".clone_into(&mut self.disconnect_reason);
        self.on_lease_extension_lost();
        self.update_backpressure();
    }

    fn update_backpressure(&mut self) {
        let keeping_up = self.is_relay_expected();
        for held in self.supervised.values_mut() {
            held.update_backpressure(keeping_up);
        }
    }

    /// Everything that the clock alone decides.
    fn on_time(&mut self) {
        let now = self.clock.now();
        self.update_all(|held, clock| held.on_time(clock));
        if self
            .live_session
            .as_ref()
            .is_some_and(|live| live.heartbeats.next_action_at() <= now)
        {
            self.on_heartbeat_due();
        }
        if self.disk_check_at <= now {
            self.request_disk_check(now);
        }
        if self.relay_awaited_until.is_some_and(|until| until <= now) {
            self.relay_awaited_until = None;
            // A child that was held back for a relay that did not come says nothing that would let it go.
            self.update_backpressure();
        }
        if self.reap_at <= now {
            self.reap_at = now.after(REAP_INTERVAL);
            self.tasks.spawn_blocking(reap_orphans);
        }
        if self.program_check_at <= now {
            self.program_check_at = now.after(PROGRAM_CHECK_INTERVAL);
            self.check_programs();
        }
        self.advance_shutdown(now);
    }

    /// What was found of the agents' programs before the first Hello.
    pub(crate) fn set_agent_programs(&mut self, found: BTreeMap<String, ProgramStatus>) {
        self.agents.set_program_status(found);
    }

    /// One look at a time: a disk that hangs takes one thread and not all there are.
    fn check_programs(&mut self) {
        if self
            .program_check
            .as_ref()
            .is_none_or(JoinHandle::is_finished)
        {
            self.program_check = Some(tokio::task::spawn_blocking(self.agents.recheck_programs()));
        }
    }

    fn next_wake(&self) -> Option<BootTime> {
        let now = self.clock.now();
        let course = self.shutdown_plan.wake_at();
        let heartbeat = self
            .live_session
            .as_ref()
            .map(|live| live.heartbeats.next_action_at());
        let attempts = self
            .supervised
            .values()
            .filter_map(SupervisedAttempt::next_wake)
            .min();
        // Whoever asks how the daemon is must see that the loop turns.
        let turn = Some(now.after(LOOP_INTERVAL_MAX));
        let rounds = Some(
            self.reap_at
                .min(self.disk_check_at)
                .min(self.program_check_at),
        );
        [
            course,
            heartbeat,
            attempts,
            rounds,
            self.relay_awaited_until,
            turn,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn publish_status(&self) {
        let stake = ReconnectUrgency::from_attempts(
            self.supervised
                .values()
                .map(SupervisedAttempt::reconnect_urgency),
        );
        self.reconnect_urgency
            .send_if_modified(|old| std::mem::replace(old, stake) != stake);
        // As the relay counts: whoever's last word is still to come, also where no process is left.
        let running = self
            .supervised
            .values()
            .filter(|held| !held.is_finished())
            .count();
        let status = DaemonStatus {
            connected: self.live_session.is_some(),
            relay_contact: self.live_session.as_ref().map(|live| RelayContact {
                at: live.last_answer_at,
                interval: live.heartbeats.interval(),
            }),
            disconnect_reason: match self.live_session {
                Some(_) => String::new(),
                None => self.disconnect_reason.clone(),
            },
            loop_turned_at: self.clock.now(),
            daemon_id: self.identity.daemon_id().to_owned(),
            slots: self.description.slots,
            running: u32::try_from(running).unwrap_or(u32::MAX),
            draining: !self.shutdown_plan.accepts_work(),
            disk: self.disk.state(),
            low_memory: self.memory.is_low(),
            unknown_messages: self.unknown_messages,
        };
        self.status.send_if_modified(|old| {
            // A turn alone is no news to those who wait for some.
            old.loop_turned_at = status.loop_turned_at;
            let changed = *old != status;
            *old = status;
            changed
        });
    }

    fn remove_attempt(&mut self, id: &str) {
        if let Some(held) = self.supervised.remove(id) {
            self.dirs_to_remove.extend(held.outbox_location.dir_id());
            self.finished_ids.push_back(id.to_owned());
            if self.finished_ids.len() > FINISHED_IDS_MAX {
                self.finished_ids.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests;
