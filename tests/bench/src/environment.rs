//! The environment of one bench: a relay process with a fresh data directory, and the clients and
//! simulated daemons that connect to it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_proto::v1::{CreateTokenRequest, Role};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::client::BenchClient;
use crate::fleet::completion_recorder::CompletionRecorder;
use crate::fleet::simulated_daemon::{DaemonOrder, HelloReply, SimulatedDaemon, SimulatedWork};
use crate::measure::machine::{MachineInfo, TMPFS_MAGIC};
use crate::measure::relay_process::{MeasuredRelay, RelayStartCommand};

use crate::error::BenchError;

const TENANT: &str = "bench";

/// Where to measure, and which relay.
#[derive(Clone, Debug)]
pub struct BenchTarget {
    /// Directory in which the relay's data directory is created. It should be on a real disk.
    pub parent: PathBuf,
    /// The baton executable whose relay is measured.
    pub program: PathBuf,
}

#[derive(Debug)]
pub(crate) struct BenchEnvironment {
    pub relay: MeasuredRelay,
    pub machine: MachineInfo,
    admin: BenchClient,
    start: RelayStartCommand,
    dir: TempDir,
}

impl BenchEnvironment {
    /// Starts the relay; `arguments` are added after its address and data directory.
    pub(crate) async fn open(
        target: &BenchTarget,
        arguments: &[String],
    ) -> Result<Self, BenchError> {
        let dir = create_data_dir(&target.parent)?;
        let machine =
            MachineInfo::measure(dir.path()).map_err(|e| BenchError::local("time a sync", e))?;
        let start = RelayStartCommand {
            program: target.program.clone(),
            arguments: arguments.to_vec(),
        };
        let relay = MeasuredRelay::start(dir.path(), &start).await?;
        let admin = BenchClient::connect(&relay.url, &relay.admin_token()?).await?;
        Ok(Self {
            relay,
            machine,
            admin,
            start,
            dir,
        })
    }

    pub(crate) async fn close(self) -> Result<(), BenchError> {
        self.relay.stop().await
    }

    /// Kills the relay with SIGKILL and starts it again on the same data.
    pub(crate) async fn kill_and_restart(self) -> Result<Self, BenchError> {
        self.relay.kill().await?;
        let relay = MeasuredRelay::start(self.dir.path(), &self.start).await?;
        let admin = BenchClient::connect(&relay.url, &relay.admin_token()?).await?;
        Ok(Self {
            relay,
            admin,
            ..self
        })
    }

    pub(crate) async fn create_token(&self, name: &str, role: Role) -> Result<String, BenchError> {
        let request = CreateTokenRequest {
            name: name.to_owned(),
            tenant: TENANT.to_owned(),
            role: role.into(),
            ..CreateTokenRequest::default()
        };
        let mut operator = self.admin.operator();
        let response = operator.create_token(request).await?.into_inner();
        let secret = response.secret.ok_or_else(|| {
            BenchError::local(
                "the relay's response has no token",
                "it may be of another version",
            )
        })?;
        Ok(secret.value)
    }

    /// Connections that share the token of one submitter.
    pub(crate) async fn connect_clients(
        &self,
        count: usize,
    ) -> Result<Vec<BenchClient>, BenchError> {
        let secret = self
            .create_token("bench-submitter", Role::Submitter)
            .await?;
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            clients.push(BenchClient::connect(&self.relay.url, &secret).await?);
        }
        Ok(clients)
    }

    /// Starts daemons that serve until the fleet is dropped.
    pub(crate) async fn start_fleet(
        &self,
        plan: SimulatedFleetPlan,
    ) -> Result<SimulatedFleet, BenchError> {
        let (orders, received_orders) = watch::channel(DaemonOrder::None);
        let mut serving = JoinSet::new();
        for number in 1..=plan.daemons {
            let name = format!("bench-{number}");
            // A daemon's id is bound to its token, so each daemon needs its own.
            let secret = self.create_token(&name, Role::Daemon).await?;
            let relay = BenchClient::connect(&self.relay.url, &secret).await?;
            let completions = plan.completions.clone();
            let work = plan.work.clone();
            let orders = received_orders.clone();
            let mut daemon = SimulatedDaemon::new(&name, plan.slots, work, orders, completions);
            let HelloReply::Welcome(mut link) = daemon.dial(relay).await? else {
                return Err(BenchError::local(
                    "the relay did not admit a simulated daemon",
                    "it asked for a later retry though no other work runs",
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

/// Daemons with the same slots and the same work.
#[derive(Debug)]
pub(crate) struct SimulatedFleetPlan {
    pub daemons: usize,
    pub slots: u32,
    pub work: SimulatedWork,
    pub completions: Arc<CompletionRecorder>,
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

fn create_data_dir(parent: &Path) -> Result<TempDir, BenchError> {
    tempfile::Builder::new()
        .prefix("baton-bench-")
        .tempdir_in(parent)
        .map_err(|error| BenchError::Usage {
            what: format!("cannot create a directory in {}: {error}", parent.display()),
            hint: "pass a writable directory on a real disk with --data".to_owned(),
        })
}

/// The directory for temporary files, or the current one if that is in memory, where a sync costs
/// nothing and the figures would be too good.
pub fn default_parent() -> PathBuf {
    let temp = std::env::temp_dir();
    let in_memory = rustix::fs::statfs(&temp).is_ok_and(|stat| stat.f_type == TMPFS_MAGIC);
    if in_memory { PathBuf::from(".") } else { temp }
}
