//! Owns every attempt of this daemon and outlives every stream: one loop, one owner, no locks.
//!
//! Losing the stream changes nothing here except where frames go; leases, deadlines and orders end
//! attempts. The loop never waits for the network, the disk or a child: frames are sent when there
//! is room for them. Each subject has its own owner with private state: [`AttemptTable`],
//! [`AttemptTasks`], [`RelaySession`], [`DiskJobs`], [`WorkerResources`], [`ShutdownSequence`]. The
//! supervisor connects them.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use baton_daemon_core::reconnect_urgency::ReconnectUrgency;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::DaemonError;
use crate::agents::{AgentRegistry, ProgramStatus};
use crate::attempt::AttemptEnvironment;
use crate::clock::{BootTime, Clock};
use crate::config::DaemonConfig;
use crate::health::daemon_status::DaemonStatus;
use crate::machine::memory_monitor::MemoryMonitor;
use crate::storage::attempt_dir::AttemptDirectories;
use crate::storage::conversation_store::ConversationStore;
use crate::storage::daemon_identity::DaemonIdentity;
use crate::storage::daemon_storage::DaemonStorage;
use crate::storage::relay_epochs::RelayEpochs;
use crate::tools::{ToolRequest, ToolServerSettings};
use crate::workspace::WorkspaceRoots;

pub(crate) mod adoption;
mod agent_programs;
mod attempt_run;
mod attempt_table;
mod attempt_tasks;
mod disk_jobs;
mod dispatch;
mod heartbeat;
mod relay_frames;
mod relay_session;
mod shutdown;
mod tool_calls;
mod worker_resources;

pub(crate) use relay_session::LinkEvent;

use agent_programs::AgentPrograms;
use attempt_table::AttemptTable;
use attempt_tasks::{AttemptTasks, EventReceiver};
use disk_jobs::DiskJobs;
use relay_session::{RelaySession, wait_for_room};
use shutdown::{ShutdownSequence, wait_for_delivery};
use worker_resources::WorkerResources;

/// The loop turns at least this often, so that a health check sees that it is alive.
const LOOP_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// What Hello says of the daemon.
struct DaemonDescription {
    name: String,
    labels: BTreeMap<String, String>,
    capabilities: Vec<String>,
}

/// Where the supervisor publishes its state.
#[derive(Debug)]
pub(crate) struct StatusChannels {
    /// For the link's backoff.
    pub(crate) reconnect_urgency: watch::Sender<ReconnectUrgency>,
    pub(crate) status: watch::Sender<DaemonStatus>,
}

pub(crate) struct Supervisor {
    description: DaemonDescription,
    identity: DaemonIdentity,
    clock: Clock,
    attempts: AttemptTable,
    tasks: AttemptTasks,
    attempt_events: EventReceiver,
    attempt_dirs: AttemptDirectories,
    programs: AgentPrograms,
    tooling: ToolServerSettings,
    relay: RelaySession,
    epochs: RelayEpochs,
    conversations: ConversationStore,
    disk: DiskJobs,
    resources: WorkerResources,
    shutdown: ShutdownSequence,
    published: StatusChannels,
}

impl Supervisor {
    /// `programs` is what was found of the agents' programs before the first Hello.
    pub(crate) fn new(
        config: &DaemonConfig,
        identity: DaemonIdentity,
        storage: DaemonStorage,
        environment: AttemptEnvironment,
        programs: BTreeMap<String, ProgramStatus>,
        published: StatusChannels,
    ) -> io::Result<Self> {
        let clock = config.clock.clone();
        let now = clock.now();
        let registry = AgentRegistry::new(config.agents.clone(), WorkspaceRoots::new(config));
        let memory = MemoryMonitor::new(config.limits.memory_floor_percent);
        let (tasks, attempt_events) = AttemptTasks::new(environment, clock.clone());
        Ok(Self {
            description: DaemonDescription {
                name: config.name.clone(),
                labels: config.labels.clone(),
                capabilities: config.capabilities.clone(),
            },
            identity,
            attempts: AttemptTable::new(config.slots, clock.clone()),
            tasks,
            attempt_events,
            attempt_dirs: storage.attempts.clone(),
            programs: AgentPrograms::new(registry, programs, now),
            tooling: ToolServerSettings::new(&config.tools_program, &config.data_dir),
            relay: RelaySession::new(now),
            disk: DiskJobs::new(storage.start_writer()?),
            epochs: storage.epochs,
            conversations: storage.conversations,
            resources: WorkerResources::new(storage.disk, memory, now),
            shutdown: ShutdownSequence::new(config.drain, config.lease_extension),
            clock,
            published,
        })
    }

    /// Runs until the order to stop has been carried out.
    pub(crate) async fn run(
        mut self,
        mut link: mpsc::Receiver<LinkEvent>,
        mut tool_calls: mpsc::Receiver<ToolRequest>,
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
            let full_queue = self
                .relay
                .full_frame_queue()
                .filter(|_| self.attempts.has_queued());
            let undelivered = self.undelivered_leases();
            tokio::select! {
                // Orders before events: much output must not delay a cancel.
                biased;
                () = stop.cancelled(), if !self.shutdown.is_stopping() => self.begin_drain(),
                Some(event) = link.recv() => self.on_link_event(event)?,
                Some(report) = self.disk.next_report() => self.on_writer_report(report),
                Some((id, event)) = self.attempt_events.recv() => self.on_attempt_event(&id, event),
                Some(call) = tool_calls.recv() => self.on_tool_call(call),
                Some(joined) = self.tasks.join_next() => self.on_task_ended(joined),
                () = wait_for_room(full_queue) => {}
                () = wait_for_delivery(undelivered) => {}
                () = self.clock.sleep_until_some(wake) => {}
            }
        }
        self.send_goodbye();
        let link_error = self.relay.take_link_error();
        self.finish_writing().await;
        link_error.map_or(Ok(()), |error| Err(DaemonError::Link(error)))
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
                // The link may have been ordered to finish.
                let _ = admitted.send(is_admitted);
            }
            LinkEvent::Frame { session, frame } if self.relay.is_current(session) => {
                self.on_frame(*frame);
            }
            LinkEvent::Disconnected { session } if self.relay.is_current(session) => {
                self.on_disconnected();
            }
            // They belong to a stream that was replaced.
            LinkEvent::Frame { .. } | LinkEvent::Disconnected { .. } => {}
            LinkEvent::NotConnected(why) => self.relay.on_not_connected(why),
            LinkEvent::GivenUp(error) => {
                error!(error = %error, "the relay refuses this daemon; stopping");
                self.relay.on_given_up(error);
                if !self.shutdown.is_stopping() {
                    self.begin_drain();
                }
            }
        }
        Ok(())
    }

    fn on_disconnected(&mut self) {
        info!(
            held = self.attempts.len(),
            "lost the stream; attempts go on under their leases"
        );
        self.relay.on_lost();
        self.shutdown.on_stream_lost();
        self.attempts.update_backpressure(self.relay.is_expected());
    }

    /// Everything that depends on time alone.
    fn on_time(&mut self) {
        let now = self.clock.now();
        self.attempts
            .update_all(|attempt, clock| attempt.on_time(clock));
        if self.relay.is_heartbeat_due(now) {
            self.on_heartbeat_due(now);
        }
        self.check_disk_if_due(now);
        if self.relay.stop_awaiting(now) {
            // A child that was paused for a relay that did not come causes no event that would
            // resume it.
            self.attempts.update_backpressure(self.relay.is_expected());
        }
        self.tasks.reap_orphans_if_due(now);
        self.programs.check_if_due(now);
        self.advance_shutdown(now);
    }

    fn next_wake(&self) -> Option<BootTime> {
        let periodic = [
            self.clock.now().after(LOOP_INTERVAL_MAX),
            self.tasks.reap_at(),
            self.resources.check_at(),
            self.programs.check_at(),
        ];
        periodic
            .into_iter()
            .chain(self.shutdown.wake_at())
            .chain(self.relay.next_wake())
            .chain(self.attempts.next_wake())
            .min()
    }

    fn send_frames(&mut self) {
        if let Some(frames) = self.relay.frames() {
            self.attempts.send_frames(frames);
        }
    }

    fn publish_status(&self) {
        let urgency = self.attempts.reconnect_urgency();
        self.published
            .reconnect_urgency
            .send_if_modified(|old| std::mem::replace(old, urgency) != urgency);
        let status = DaemonStatus {
            connected: self.relay.is_connected(),
            relay_contact: self.relay.contact(),
            disconnect_reason: self.relay.disconnect_reason().to_owned(),
            loop_turned_at: self.clock.now(),
            daemon_id: self.identity.daemon_id().to_owned(),
            slots: self.attempts.slots(),
            running: self.attempts.unfinished(),
            draining: !self.shutdown.accepts_work(),
            disk: self.resources.disk_state(),
            low_memory: self.resources.is_memory_low(),
            unknown_messages: self.relay.unknown_messages(),
        };
        self.published.status.send_if_modified(|old| {
            // A turn of the loop alone does not wake those who wait for a change.
            old.loop_turned_at = status.loop_turned_at;
            let changed = *old != status;
            *old = status;
            changed
        });
    }
}

/// A value of 0 on the wire means "not set".
fn positive_millis(millis: u64) -> Option<Duration> {
    (millis > 0).then(|| Duration::from_millis(millis))
}

#[cfg(test)]
mod tests;
