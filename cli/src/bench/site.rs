//! Where a bench takes place: a relay in a process of its own on a fresh data directory, and those who speak to it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_proto::v1::{CreateTokenRequest, Role};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::machine::{MachineInfo, TMPFS_MAGIC};
use super::relay_process::{MeasuredRelay, RelayStartCommand};
use super::simulated_daemon::{DaemonOrder, HelloReply, SimulatedDaemon, SimulatedWork};
use super::witness::CompletionRecorder;
use crate::client::relay_client::RelayClient;
use crate::commands::operator::token;
use crate::error::cli_error::CliError;

const TENANT: &str = "bench";

/// What the command line says about where and what to measure.
#[derive(Clone, Debug)]
pub(crate) struct BenchTarget {
    /// Where the relay's data directory is made; it should be on a real disk.
    pub parent: PathBuf,
    /// The executable whose relay is measured; this one if absent.
    pub program: Option<PathBuf>,
}

#[derive(Debug)]
pub(crate) struct BenchEnvironment {
    pub relay: MeasuredRelay,
    pub machine: MachineInfo,
    admin: RelayClient,
    start: RelayStartCommand,
    dir: TempDir,
}

impl BenchEnvironment {
    /// `arguments` are the relay's, after its address and its data.
    pub(crate) async fn open(place: &BenchTarget, arguments: &[String]) -> Result<Self, CliError> {
        let dir = create_data_dir(&place.parent)?;
        let machine =
            MachineInfo::measure(dir.path()).map_err(|e| CliError::local("time a sync", e))?;
        let start = RelayStartCommand {
            program: place.program.clone(),
            arguments: arguments.to_vec(),
        };
        let relay = MeasuredRelay::start(dir.path(), &start).await?;
        let admin = RelayClient::connect(&relay.url, &relay.admin_token()?, None).await?;
        Ok(Self {
            relay,
            machine,
            admin,
            start,
            dir,
        })
    }

    pub(crate) async fn close(self) -> Result<(), CliError> {
        self.relay.stop().await
    }

    /// Kills the relay as a power cut would and starts it again on the same data.
    pub(crate) async fn kill_and_restart(self) -> Result<Self, CliError> {
        self.relay.kill().await?;
        let relay = MeasuredRelay::start(self.dir.path(), &self.start).await?;
        let admin = RelayClient::connect(&relay.url, &relay.admin_token()?, None).await?;
        Ok(Self {
            relay,
            admin,
            ..self
        })
    }

    pub(crate) async fn create_token(&self, name: &str, role: Role) -> Result<String, CliError> {
        let request = CreateTokenRequest {
            name: name.to_owned(),
            tenant: TENANT.to_owned(),
            role: role.into(),
            ..CreateTokenRequest::default()
        };
        let mut operator = self.admin.operator();
        let response = operator.create_token(request).await?.into_inner();
        token::token_and_secret(response).map(|(_, secret)| secret)
    }

    /// Connections of one submitter.
    pub(crate) async fn connect_clients(&self, count: usize) -> Result<Vec<RelayClient>, CliError> {
        let secret = self
            .create_token("bench-submitter", Role::Submitter)
            .await?;
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            clients.push(RelayClient::connect(&self.relay.url, &secret, None).await?);
        }
        Ok(clients)
    }

    /// Daemons that serve until the fleet is dropped.
    pub(crate) async fn start_fleet(
        &self,
        plan: SimulatedFleetPlan,
    ) -> Result<SimulatedFleet, CliError> {
        let (orders, obeyed) = watch::channel(DaemonOrder::None);
        let mut serving = JoinSet::new();
        for number in 1..=plan.daemons {
            let name = format!("bench-{number}");
            // A daemon's id is bound to its credential, so each one has its own.
            let secret = self.create_token(&name, Role::Daemon).await?;
            let relay = RelayClient::connect(&self.relay.url, &secret, None).await?;
            let witness = plan.witness.clone();
            let work = plan.work.clone();
            let mut daemon = SimulatedDaemon::new(&name, plan.slots, work, obeyed.clone(), witness);
            let HelloReply::Welcome(mut link) = daemon.dial(relay).await? else {
                return Err(CliError::local(
                    "a daemon was sent away",
                    "nothing runs yet",
                ));
            };
            serving.spawn(async move { daemon.serve(&mut link).await });
        }
        Ok(SimulatedFleet {
            orders,
            _serving: serving,
        })
    }
}

/// A few daemons that all do the same.
#[derive(Debug)]
pub(crate) struct SimulatedFleetPlan {
    pub daemons: usize,
    pub slots: u32,
    pub work: SimulatedWork,
    pub witness: Arc<CompletionRecorder>,
}

#[derive(Debug)]
pub(crate) struct SimulatedFleet {
    orders: watch::Sender<DaemonOrder>,
    _serving: JoinSet<()>,
}

impl SimulatedFleet {
    pub(crate) fn send_order(&self, order: DaemonOrder) {
        self.orders.send_replace(order);
    }
}

fn create_data_dir(parent: &Path) -> Result<TempDir, CliError> {
    tempfile::Builder::new()
        .prefix("baton-bench-")
        .tempdir_in(parent)
        .map_err(|error| {
            CliError::usage(
                format!("make a directory in {}: {error}", parent.display()),
                "name a writable directory on a real disk with --data",
            )
        })
}

/// A temporary directory that is not in memory: syncing to memory would flatter the figures.
pub(crate) fn default_parent() -> PathBuf {
    let temp = std::env::temp_dir();
    let in_memory = rustix::fs::statfs(&temp).is_ok_and(|stat| stat.f_type == TMPFS_MAGIC);
    if in_memory { PathBuf::from(".") } else { temp }
}
