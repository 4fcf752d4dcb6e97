//! The load generator: a relay in a process of its own, simulated daemons over real gRPC, and two phases of load. Every figure
//! counts what the relay has said to be durable; nothing here is faster than a client could be.

mod completions;
mod latency;
mod load;
mod relay_process;
mod report;
mod simulated_daemon;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use baton_proto::v1::{CreateTokenRequest, Role};
use tempfile::TempDir;
use tokio::task::JoinSet;

use self::completions::Completions;
use self::load::Load;
use self::relay_process::RelayProcess;
use self::report::{Phase, Report};
use self::simulated_daemon::SimulatedDaemon;
use crate::client::Relay;
use crate::commands::token;
use crate::console::Console;
use crate::errors::CliError;

/// Before figures are taken, so that connections, caches and the allocator are warm.
const WARM_UP: Duration = Duration::from_secs(2);
/// What was acknowledged has to complete within this after the load stops.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub window: Duration,
    pub connections: usize,
    pub in_flight: usize,
    pub daemons: usize,
    pub slots: u32,
    /// The relay's bound on open tasks.
    pub max_open: u32,
    /// Tasks per second of the second phase; half of what the first one reached if absent.
    pub rate: Option<u32>,
    /// Where the relay's data directory is made; it should be on a real disk.
    pub parent: PathBuf,
}

pub(crate) async fn tasks(plan: &Plan, console: &Console) -> Result<Report, CliError> {
    let data = directory(&plan.parent)?;
    let relay = RelayProcess::start(data.path(), plan.max_open).await?;
    let completions = Arc::new(Completions::new());
    let mut fleet = JoinSet::new();
    let load = connect(plan, &relay, completions, &mut fleet).await?;

    console.note(&format!(
        "saturation: {} submits in flight",
        plan.connections * plan.in_flight
    ));
    let cpu_before = relay.cpu_seconds();
    let mut saturation = load.saturate(WARM_UP, plan.window).await;
    load.settle(SETTLE_LIMIT).await?;
    saturation.relay_cpu_seconds = relay.cpu_seconds() - cpu_before;
    saturation.memory = relay.memory();

    let rate = plan.rate.unwrap_or_else(|| saturation.half_rate());
    console.note(&format!("steady: {rate} submits a second"));
    let cpu_before = relay.cpu_seconds();
    let mut steady = load.steady(rate, plan.window).await;
    load.settle(SETTLE_LIMIT).await?;
    steady.relay_cpu_seconds = relay.cpu_seconds() - cpu_before;
    steady.memory = relay.memory();

    let tasks = load.acknowledged();
    let disk_bytes = relay.disk_bytes();
    fleet.shutdown().await;
    relay.stop().await?;
    Ok(Report {
        plan: plan.clone(),
        phases: [saturation, steady],
        rate,
        tasks,
        disk_bytes,
    })
}

fn directory(parent: &Path) -> Result<TempDir, CliError> {
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

/// Daemons first, so that the first task finds them there.
async fn connect(
    plan: &Plan,
    relay: &RelayProcess,
    completions: Arc<Completions>,
    fleet: &mut JoinSet<()>,
) -> Result<Load, CliError> {
    let admin = Relay::connect(&relay.url, &relay.admin_token()?, None).await?;
    for number in 1..=plan.daemons {
        let name = format!("bench-{number}");
        // A daemon's id is bound to its credential, so each one has its own.
        let secret = mint(&admin, &name, Role::Daemon).await?;
        let link = Relay::connect(&relay.url, &secret, None).await?;
        let daemon = SimulatedDaemon::start(&link, name, plan.slots, completions.clone()).await?;
        fleet.spawn(daemon.serve());
    }
    let secret = mint(&admin, "bench-submitter", Role::Submitter).await?;
    let mut connections = Vec::with_capacity(plan.connections);
    for _ in 0..plan.connections {
        connections.push(Relay::connect(&relay.url, &secret, None).await?);
    }
    Ok(Load::new(connections, plan.in_flight, completions))
}

async fn mint(admin: &Relay, name: &str, role: Role) -> Result<String, CliError> {
    let request = CreateTokenRequest {
        name: name.to_owned(),
        tenant: TENANT.to_owned(),
        role: role.into(),
        ..CreateTokenRequest::default()
    };
    let response = admin.operator().create_token(request).await?.into_inner();
    token::parts(response).map(|(_, secret)| secret)
}

const TENANT: &str = "bench";

/// A temporary directory that is not in memory: syncing to memory would flatter the figures.
pub(crate) fn default_parent() -> PathBuf {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    let temp = std::env::temp_dir();
    let in_memory = rustix::fs::statfs(&temp).is_ok_and(|stat| stat.f_type == TMPFS_MAGIC);
    if in_memory { PathBuf::from(".") } else { temp }
}

impl Phase {
    fn half_rate(&self) -> u32 {
        let half = (self.tasks_per_second() / 2.0).round();
        // Saturating by definition of a float cast; a machine that does 2^33 tasks a second may complain.
        (half as u32).max(1)
    }
}
