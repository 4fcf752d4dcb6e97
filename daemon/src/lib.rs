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
mod attempt_dir;
mod cgroups;
mod checked;
mod checkup;
mod clock;
mod config;
mod conversations;
mod disk;
mod epoch;
mod frames;
mod health;
mod held;
mod identity;
mod link;
mod memory;
mod outbox;
mod phases;
mod private_socket;
mod process;
pub mod receipts;
mod session;
pub mod shim;
pub mod spool;
mod status;
mod storage;
mod supervisor;
mod timers;
pub mod tools;
mod whole_file;
mod workspace;

use std::io;

use baton_daemon_core::stake::Stake;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use checkup::{Finding, Verdict, examine};
pub use clock::{Clock, Moment};
pub use config::{
    ANY_COMMAND, AgentConfig, AgentWire, ConfigError, DaemonConfig, FileConfig, HOLD_MAX,
    KERNEL_BOOT_ID, Keep, KeyFault, KeyProblem, Limits, RootConfig, config_faults, read_config,
};
pub use disk::DiskState;
pub use health::{Checkup, HealthError, check as check_health};
pub use identity::IdentityError;
pub use link::LinkError;
pub use process::{NameFault, check_variable};
pub use shim::client::ShimProgram;
pub use status::{Ailment, DaemonStatus, Heard};
pub use storage::StorageError;

use attempt::Workshop;
use cgroups::Groups;
use health::HealthChecks;
use identity::Identity;
use link::Link;
use process::adopt_orphans;
use storage::Storage;
use supervisor::{Supervisor, adoption};
use tools::Desk;

/// Frames from the relay on their way to the supervisor. Full: the link waits, and with it the relay.
const LINK_EVENTS: usize = 64;

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
    identity: Identity,
    storage: Storage,
    endpoint: tonic::transport::Endpoint,
    health: HealthChecks,
    desk: Desk,
    status: watch::Sender<DaemonStatus>,
}

impl Daemon {
    /// Finds out what is wrong with the configuration before anything is started.
    pub fn open(config: DaemonConfig) -> Result<Self, DaemonError> {
        config.check()?;
        let endpoint = link::endpoint(&config)?;
        link::read_token(&config.token_file)?;
        let identity = Identity::open(&config.data_dir, &config.boot_id_file)?;
        let storage = Storage::open(&config.data_dir)?;
        let health = HealthChecks::bind(&config.data_dir, config.health)?;
        let desk = Desk::bind(&config.data_dir).map_err(DaemonError::Tools)?;
        let now = config.clock.now();
        let status = DaemonStatus::new(identity.daemon_id(), config.slots, now);
        let status = watch::Sender::new(status);
        Ok(Self {
            config,
            identity,
            storage,
            endpoint,
            health,
            desk,
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
            desk,
            status,
        } = self;
        let checkups = status.subscribe();
        if config.adopt_orphans {
            adopt_orphans()?;
        }
        let workshop = Workshop {
            shim: config.shim.clone(),
            daemon_id: identity.daemon_id().to_owned(),
            instance_id: identity.instance_id.clone(),
            boot_id: identity.boot_id.clone(),
            name: config.name.clone(),
            groups: groups(&config.limits),
            clock: config.clock.clone(),
        };
        let attempts = storage.attempts.clone();
        let (adopted, found) = tokio::join!(
            adoption::take_over(attempts, &identity.boot_id, &workshop),
            agents::look_for_versions(config.agents.clone()),
        );
        let adopted = adopted?;
        let (events, link_events) = mpsc::channel(LINK_EVENTS);
        let (calls, asked) = mpsc::channel(tools::CALLS);
        let (at_stake, stake) = watch::channel(Stake::default());
        let finish = CancellationToken::new();
        let link = Link {
            endpoint,
            token_file: config.token_file.clone(),
            clock: config.clock.clone(),
            supervisor: events,
            stake,
            is_expected: !adopted.is_empty(),
            shown: None,
            finish: finish.clone(),
        };
        let mut supervisor =
            Supervisor::new(&config, identity, storage, workshop, at_stake, status)?;
        supervisor.know_agents(found);
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
            failed = health.answer(checkups, config.clock.clone()) => failed.map_err(DaemonError::from),
            failed = desk.answer(calls) => failed.map_err(DaemonError::Tools),
        }
    }
}

/// Said once: without groups everything works but the limits of attempts.
fn groups(limits: &Limits) -> Option<Groups> {
    let found = Groups::find(limits);
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
