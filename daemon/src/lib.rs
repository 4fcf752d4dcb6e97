//! The daemon: keeps one stream to the relay, runs dispatched attempts as child processes, and
//! ensures that no process outlives its attempt.
//!
//! `link` connects to the relay; `supervisor` owns the attempts and outlives every stream;
//! `attempt` runs one attempt; `process/` handles child processes and nothing else; `shim/` is
//! the process that owns a child when the daemon is gone, and `spool/` the transcript that it
//! writes; `agents/` turns a dispatch into a command line; `tools/` serves the calls of agents'
//! tools; `receipts/` checks the files that a task requires. Decisions that depend only on time
//! (leases, endings, sending, backoff) are in a crate of their own, `baton_daemon_core`;
//! `clock` is the only place that reads time.

mod agents;
mod attempt;
mod clock;
mod config;
mod deadlines;
mod frames;
mod health;
mod link;
mod machine;
mod outbox;
mod process;
pub mod receipts;
pub mod shim;
pub mod spool;
mod storage;
mod supervised_attempt;
mod supervisor;
pub mod tools;
mod workspace;

use std::io;

use baton_daemon_core::reconnect_urgency::ReconnectUrgency;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use clock::{BootTime, Clock};
pub use config::{
    ANY_COMMAND_AGENT, AgentConfig, AgentWire, ConfigError, ConfigKeyError, ConfigKeyProblem,
    DaemonConfig, FileConfig, KERNEL_BOOT_ID_FILE, LEASE_EXTENSION_MAX, ResourceLimits, RootConfig,
    WorkspaceRetention, list_config_errors, read_config,
};
pub use health::daemon_status::{DaemonStatus, HealthProblem, RelayContact};
pub use health::preflight_check::{CheckFinding, CheckVerdict, run_daemon_checks};
pub use health::server::{HealthCheckResult, HealthError, check as check_health};
pub use link::LinkError;
pub use machine::disk_monitor::DiskState;
pub use process::{VariableNameError, check_variable_name};
pub use shim::client::ShimProgram;
pub use storage::daemon_identity::IdentityError;
pub use storage::daemon_storage::StorageError;

use attempt::AttemptEnvironment;
use health::server::HealthServer;
use link::RelayLink;
use machine::control_groups::ControlGroups;
use process::adopt_orphans;
use storage::daemon_identity::DaemonIdentity;
use storage::daemon_storage::DaemonStorage;
use supervisor::{StatusChannels, Supervisor, adoption};
use tools::ToolSocket;

/// Frames from the relay on their way to the supervisor. When it is full the link waits, and
/// with it the relay.
const LINK_EVENT_QUEUE: usize = 64;

/// Why a daemon could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Health(#[from] HealthError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("cannot open the socket for agents' tools in the data directory: {0}")]
    Tools(io::Error),
    #[error("cannot start child processes: {0}")]
    Process(#[from] io::Error),
}

/// Runs a daemon until `stop` is canceled and its attempts have ended or are handed over, or
/// until the relay refuses it for good. Losing the stream is no reason to return.
pub async fn run(config: DaemonConfig, stop: CancellationToken) -> Result<(), DaemonError> {
    Daemon::open(config)?.run(stop).await
}

/// A daemon that has its directory, its address and its token, and has not connected yet.
#[derive(Debug)]
pub struct Daemon {
    config: DaemonConfig,
    identity: DaemonIdentity,
    storage: DaemonStorage,
    endpoint: tonic::transport::Endpoint,
    health: HealthServer,
    tool_socket: ToolSocket,
    status: watch::Sender<DaemonStatus>,
}

impl Daemon {
    /// Checks the configuration before anything is started.
    pub fn open(config: DaemonConfig) -> Result<Self, DaemonError> {
        config.validate()?;
        let endpoint = link::endpoint(&config)?;
        link::read_token(&config.token_file)?;
        let identity = DaemonIdentity::open(&config.data_dir, &config.boot_id_file)?;
        let storage = DaemonStorage::open(&config.data_dir)?;
        let health = HealthServer::bind(&config.data_dir, config.health)?;
        let tool_socket = ToolSocket::bind(&config.data_dir).map_err(DaemonError::Tools)?;
        let now = config.clock.now();
        let status = DaemonStatus::new(identity.daemon_id(), config.slots, now);
        let status = watch::Sender::new(status);
        Ok(Self {
            config,
            identity,
            storage,
            endpoint,
            health,
            tool_socket,
            status,
        })
    }

    /// The TCP address of the health checks, if there is one.
    pub fn health_address(&self) -> Option<std::net::SocketAddr> {
        self.health.address()
    }

    pub fn status(&self) -> watch::Receiver<DaemonStatus> {
        self.status.subscribe()
    }

    /// See [`run`]. When the future is dropped, running attempts go on under their shims, as
    /// when the daemon is killed: the next daemon on the same directory adopts them, and
    /// without one they end with their leases.
    pub async fn run(self, stop: CancellationToken) -> Result<(), DaemonError> {
        let Self {
            config,
            identity,
            storage,
            endpoint,
            health,
            tool_socket,
            status,
        } = self;
        let health_status = status.subscribe();
        if config.adopt_orphans {
            adopt_orphans()?;
        }
        let environment = AttemptEnvironment {
            shim: config.shim.clone(),
            daemon_id: identity.daemon_id().to_owned(),
            instance_id: identity.instance_id.clone(),
            boot_id: identity.boot_id.clone(),
            daemon_name: config.name.clone(),
            control_groups: find_control_groups(&config.limits),
            clock: config.clock.clone(),
        };
        let attempts = storage.attempts.clone();
        let (adopted, found) = tokio::join!(
            adoption::adopt_attempts(attempts, &identity.boot_id, &environment),
            agents::find_programs_and_versions(config.agents.clone()),
        );
        let adopted = adopted?;
        let (events, link_events) = mpsc::channel(LINK_EVENT_QUEUE);
        let (call_sender, tool_calls) = mpsc::channel(tools::CALL_QUEUE_SIZE);
        let (urgency_sender, urgency) = watch::channel(ReconnectUrgency::default());
        let finish = CancellationToken::new();
        let link = RelayLink {
            endpoint,
            token_file: config.token_file.clone(),
            clock: config.clock.clone(),
            supervisor: events,
            reconnect_urgency: urgency,
            has_adopted_attempts: !adopted.is_empty(),
            last_token: None,
            finish: finish.clone(),
        };
        let published = StatusChannels {
            reconnect_urgency: urgency_sender,
            status,
        };
        let mut supervisor =
            Supervisor::new(&config, identity, storage, environment, found, published)?;
        supervisor.adopt_all(adopted);
        let supervised = async {
            let result = supervisor.run(link_events, tool_calls, stop).await;
            finish.cancel();
            result
        };
        // In one task, so that dropping this future drops all of it.
        let working = async { tokio::join!(supervised, link.run()).0 };
        tokio::select! {
            result = working => result,
            failed = health.serve(health_status, config.clock.clone()) => failed.map_err(DaemonError::from),
            failed = tool_socket.serve_connections(call_sender) => failed.map_err(DaemonError::Tools),
        }
    }
}

/// Logged once: without control groups only the limits of attempts are missing.
fn find_control_groups(limits: &ResourceLimits) -> Option<ControlGroups> {
    let found = ControlGroups::find(limits);
    if let Err(why) = &found {
        if limits.attempt_memory_mib.is_some() || limits.attempt_processes.is_some() {
            tracing::warn!(
                why,
                "attempts have no control groups; their limits are not enforced"
            );
        } else {
            tracing::info!(why, "attempts have no control groups");
        }
    }
    found.ok()
}
