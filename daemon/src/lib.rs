//! The daemon: holds one stream to the relay, runs what it is given as child processes, and lets no
//! process outlive its attempt.
//!
//! `link` dials and reads; `supervisor` owns the attempts and outlives every link; `attempt` is one
//! attempt's life; `process/` knows about child processes and nothing else; `shim/` is the process that
//! holds on to a child when the daemon does not, `spool/` the transcript that it writes; `agents/` turns a
//! dispatch into a command line, `tools/` hears what agents say through them, `receipts/` looks for the files that a
//! task asks for. What it decides by time alone (leases, ends, what
//! leaves, backoff) is a crate of its own, `baton_daemon_core`; `clock` is the only place that reads time.

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

/// Frames from the relay on their way to the supervisor. Full: the link waits, and with it the relay.
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
    #[error("cannot listen to the tools of agents in the data directory: {0}")]
    Tools(io::Error),
    #[error("cannot start child processes: {0}")]
    Process(#[from] io::Error),
}

/// Runs a daemon until `stop` is canceled and what it runs has ended, or until the relay turns it away for
/// good. Losing the relay is no reason to return.
pub async fn run(config: DaemonConfig, stop: CancellationToken) -> Result<(), DaemonError> {
    Daemon::open(config)?.run(stop).await
}

/// A daemon that has its directory, its address and its credential, and has not dialed yet.
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
    /// Finds out what is wrong with the configuration before anything is started.
    pub fn open(config: DaemonConfig) -> Result<Self, DaemonError> {
        config.validate()?;
        let endpoint = link::endpoint(&config)?;
        link::read_token(&config.token_file)?;
        let identity = DaemonIdentity::open(&config.data_dir, &config.boot_id_file)?;
        let storage = DaemonStorage::open(&config.data_dir)?;
        let health = HealthServer::bind(&config.data_dir, config.health)?;
        let desk = ToolSocket::bind(&config.data_dir).map_err(DaemonError::Tools)?;
        let now = config.clock.now();
        let status = DaemonStatus::new(identity.daemon_id(), config.slots, now);
        let status = watch::Sender::new(status);
        Ok(Self {
            config,
            identity,
            storage,
            endpoint,
            health,
            tool_socket: desk,
            status,
        })
    }

    /// Where health checks are answered over TCP, if they are.
    pub fn health_address(&self) -> Option<std::net::SocketAddr> {
        self.health.address()
    }

    pub fn status(&self) -> watch::Receiver<DaemonStatus> {
        self.status.subscribe()
    }

    /// See [`run`]. Dropping the future leaves what still runs to its shims, as killing the daemon does: the next one
    /// on the same directory takes it over, and without one it ends with its lease.
    pub async fn run(self, stop: CancellationToken) -> Result<(), DaemonError> {
        let Self {
            config,
            identity,
            storage,
            endpoint,
            health,
            tool_socket: desk,
            status,
        } = self;
        let checkups = status.subscribe();
        if config.adopt_orphans {
            adopt_orphans()?;
        }
        let workshop = AttemptEnvironment {
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
            adoption::adopt_attempts(attempts, &identity.boot_id, &workshop),
            agents::find_programs_and_versions(config.agents.clone()),
        );
        let adopted = adopted?;
        let (events, link_events) = mpsc::channel(LINK_EVENT_QUEUE);
        let (calls, asked) = mpsc::channel(tools::CALL_QUEUE_SIZE);
        let (at_stake, stake) = watch::channel(ReconnectUrgency::default());
        let finish = CancellationToken::new();
        let link = RelayLink {
            endpoint,
            token_file: config.token_file.clone(),
            clock: config.clock.clone(),
            supervisor: events,
            reconnect_urgency: stake,
            has_adopted_attempts: !adopted.is_empty(),
            last_token: None,
            finish: finish.clone(),
        };
        let published = StatusChannels {
            reconnect_urgency: at_stake,
            status,
        };
        let mut supervisor =
            Supervisor::new(&config, identity, storage, workshop, found, published)?;
        supervisor.adopt_all(adopted);
        let supervised = async {
            let result = supervisor.run(link_events, asked, stop).await;
            finish.cancel();
            result
        };
        // In one task: whoever drops this future drops all.
        let working = async { tokio::join!(supervised, link.run()).0 };
        tokio::select! {
            result = working => result,
            failed = health.serve(checkups, config.clock.clone()) => failed.map_err(DaemonError::from),
            failed = desk.serve_connections(calls) => failed.map_err(DaemonError::Tools),
        }
    }
}

/// Said once: without groups everything works but the limits of attempts.
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
