//! Fault storms over a whole system: kills alone, and all faults at once.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use baton_proto::v1::{Role, TaskState};
use baton_tests::{
    IsolatedNetwork, LeaseAgent, TestClient, boottime, join_all, wait_until_marked_gone,
};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::chaos_run::ChaosRun;
use crate::child_watcher::ChildWatcher;
use crate::client_load::{ClientLoad, LoadClient};
use crate::daemon_faults::{
    DaemonUnderFault, InjectedDaemonFault, collect_remembered_frames, inject_daemon_faults,
};
use crate::final_state::{list_all_tasks, record_final_state};
use crate::lease_holders::{LoadAgent, SCOPE};
use crate::relay_faults::{InjectedRelayFault, RelayUnderFault};
use crate::{configured_amount, host_support, sleep_unless_stopped};

const TENANTS: [&str; 2] = ["acme", "bolt"];
/// A tenant whose daemons serve both.
const SHARED_TENANT: &str = "*";
/// Limit after the last fault. A task may have to wait for several leases and fences in
/// sequence.
const RECOVERY_LIMIT: Duration = Duration::from_secs(300);
/// Agents with their own leases, per tenant.
const AGENTS_PER_TENANT: usize = 2;
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A whole system with working clients.
struct FaultStorm {
    run: ChaosRun,
    relay: RelayUnderFault,
    daemons: Vec<DaemonUnderFault>,
    tenants: Vec<(&'static str, TestClient)>,
    load: Arc<ClientLoad>,
    running_clients: JoinSet<()>,
    mark: &'static str,
    _children: ChildWatcher,
    _dir: TempDir,
}

struct StormSize {
    daemons: usize,
    /// How many of them are in an isolated network.
    isolated_daemons: usize,
    /// Per tenant.
    clients: usize,
}

impl FaultStorm {
    async fn start(name: &'static str, size: &StormSize) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let run = ChaosRun::new(name);
        let victim = RelayUnderFault::start(dir.path(), &run.recorder).await;
        let admin = victim.admin().clone();
        let view = run.recorder.participant_log("children");
        let children = ChildWatcher::watch(dir.path(), view.expect("a file can be created"));
        let load = ClientLoad::new(&children.socket, name);
        let mut tenants = Vec::new();
        let mut working = JoinSet::new();
        for tenant in TENANTS {
            let client = admin.client_of_tenant(tenant, Role::Submitter).await;
            for number in 0..size.clients {
                working.spawn(Box::pin(
                    new_load_client(&run, &client, tenant, number, &load).run(),
                ));
            }
            for number in 0..AGENTS_PER_TENANT {
                let name = format!("agent-{tenant}-{number}");
                let agent = LeaseAgent::of_tenant(&admin, tenant, &name, SCOPE).await;
                working.spawn(Box::pin(new_load_agent(&run, agent, tenant, &load).run()));
            }
            tenants.push((tenant, client));
        }
        let fleet = start_daemons(&admin, &run, dir.path(), size).await;
        Self {
            run,
            relay: victim,
            daemons: fleet,
            tenants,
            load,
            running_clients: working,
            mark: name,
            _children: children,
            _dir: dir,
        }
    }

    /// After the last fault: waits until every accepted task has ended, and records the final
    /// state.
    async fn recover_and_record(mut self) -> ChaosRun {
        self.load.stop();
        let recovery = async {
            while let Some(ended) = self.running_clients.join_next().await {
                ended.expect("a client does not panic");
            }
            let mut ticks = tokio::time::interval(POLL_INTERVAL);
            for (_, client) in &self.tenants {
                while count_open_tasks(client).await > 0 {
                    ticks.tick().await;
                }
            }
        };
        let recovery = tokio::time::timeout(RECOVERY_LIMIT, recovery).await;
        if recovery.is_err() {
            println!("not every task ended within {RECOVERY_LIMIT:?}; the checker lists them");
        }
        wait_until_marked_gone(self.mark).await;
        for (tenant, client) in &self.tenants {
            record_final_state(client, tenant, &self.run.recorder).await;
        }
        join_all(self.daemons.iter_mut().map(|member| member.stop())).await;
        self.relay.stop().await;
        self.run
    }
}

fn new_load_client(
    run: &ChaosRun,
    client: &TestClient,
    tenant: &'static str,
    number: usize,
    load: &Arc<ClientLoad>,
) -> LoadClient {
    let name = format!("client-{tenant}-{number}");
    let view = run.recorder.participant_log(&name);
    LoadClient {
        // A separate connection.
        client: TestClient::new(client.url(), client.token_secret()),
        tenant,
        view: view.expect("a file can be created"),
        name,
        load: load.clone(),
        calls: AtomicU64::new(1),
    }
}

fn new_load_agent(
    run: &ChaosRun,
    agent: LeaseAgent,
    tenant: &'static str,
    load: &Arc<ClientLoad>,
) -> LoadAgent {
    let view = run.recorder.participant_log(&agent.name);
    LoadAgent {
        client: TestClient::new(agent.client.url(), agent.client.token_secret()),
        tenant,
        view: view.expect("a file can be created"),
        name: agent.name,
        load: load.clone(),
        calls: AtomicU64::new(1),
    }
}

async fn start_daemons(
    admin: &TestClient,
    run: &ChaosRun,
    dir: &Path,
    size: &StormSize,
) -> Vec<DaemonUnderFault> {
    let network = if size.isolated_daemons > 0 && host_support::can_make_networks() {
        Some(Arc::new(
            IsolatedNetwork::create().expect("the host support check succeeded"),
        ))
    } else {
        None
    };
    let started = (0..size.daemons).map(|number| {
        let tenant = [TENANTS[0], TENANTS[1], SHARED_TENANT][number % 3];
        let network = network.clone().filter(|_| number < size.isolated_daemons);
        let name = format!("daemon-{number}");
        DaemonUnderFault::start(admin, &run.recorder, dir, (name, tenant), network)
    });
    join_all(started).await
}

async fn count_open_tasks(client: &TestClient) -> usize {
    let tasks = list_all_tasks(client).await;
    let open = tasks.iter().filter(|task| {
        matches!(
            task.state(),
            TaskState::Pending | TaskState::Queued | TaskState::Running
        )
    });
    open.count()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_or_doubled_by_kills_under_load() {
    let kills = configured_amount("BATON_CHAOS_KILLS", 6);
    let size = StormSize {
        daemons: 6,
        isolated_daemons: 0,
        clients: 8,
    };
    let mut storm = FaultStorm::start("kills", &size).await;
    storm.run.require_counts(&[
        ("fault: relay killed", kills),
        ("fault: daemon killed", kills / 10),
        ("submits acknowledged", kills * 3),
        ("tasks completed", kills * 2),
        ("unknown outcomes", kills / 2),
        ("watches resumed", kills),
        ("processes", kills * 2),
        ("outputs read", kills * 2),
        ("blocks acknowledged", kills / 2),
        ("resumes acknowledged", kills / 6),
        ("pick-ups acknowledged", kills / 6),
        ("progress acknowledged", kills / 2),
        ("checkpoints acknowledged", kills / 2),
    ]);
    let stop = CancellationToken::new();
    let view = storm.relay.view().clone();
    let others = collect_remembered_frames(&storm.daemons);
    let begun = boottime();
    let (victim, load) = (&mut storm.relay, &storm.load);
    let kill = async {
        victim.kill_under_load(kills, load, &stop).await;
        stop.cancel();
    };
    let mix = [InjectedDaemonFault::Kill];
    tokio::join!(
        kill,
        inject_daemon_faults(&mut storm.daemons, &mix, (4_000, &others), &view, &stop)
    );
    let took = boottime().saturating_sub(begun);
    let verdict = storm.recover_and_record().await.finish();
    println!(
        "{kills} kills of the relay in {} s, {} of daemons: {} submits and {} cancels acknowledged, {} ends reported, {} tasks \
         completed; none lost, none doubled",
        took.as_secs(),
        verdict.count("fault: daemon killed"),
        verdict.count("submits acknowledged"),
        verdict.count("cancels acknowledged"),
        verdict.count("ends reported by daemons"),
        verdict.count("tasks completed"),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_promise_holds_while_everything_breaks() {
    let seconds = configured_amount("BATON_CHAOS_SECONDS", 15);
    let size = StormSize {
        daemons: 20,
        isolated_daemons: 4,
        clients: 10,
    };
    let mut storm = FaultStorm::start("everything", &size).await;
    let minutes = seconds / 60;
    let mut least = vec![
        ("submits acknowledged", seconds),
        ("tasks completed", seconds / 2),
        ("cancels acknowledged", seconds / 20),
        ("submits repeated", seconds / 20),
        ("probes of another tenant", seconds / 20),
        // These require a killed relay and a worker that was stopped past its lease, which not
        // every short run has.
        ("watches resumed", minutes * 6),
        ("fenced frames", minutes),
        ("processes", seconds),
        ("outputs read", seconds),
        ("blocks acknowledged", seconds / 5),
        ("resumes acknowledged", seconds / 15),
        ("pick-ups acknowledged", seconds / 15),
        ("progress acknowledged", seconds / 5),
        ("checkpoints acknowledged", seconds / 5),
        ("fault: relay killed", minutes * 2),
        ("fault: relay stopped", minutes),
        ("fault: daemon killed", minutes * 2),
        ("fault: daemon stopped", minutes * 2),
        ("fault: stream cut", minutes * 2),
        ("lost attempts", minutes),
        ("cancels of finished tasks", minutes),
    ];
    if storm.relay.has_small_disk() {
        least.push(("fault: disk full", minutes));
    }
    if host_support::can_make_networks() {
        least.push(("fault: network cut", minutes));
    }
    storm.run.require_counts(&least);
    inject_all_faults(&mut storm, Duration::from_secs(seconds)).await;
    let verdict = storm.recover_and_record().await.finish();
    println!(
        "{seconds} s of all faults: {} submits acknowledged, {} attempts lost, {} frames fenced, {} processes; no rule violated",
        verdict.count("submits acknowledged"),
        verdict.count("lost attempts"),
        verdict.count("fenced frames"),
        verdict.count("processes"),
    );
}

/// All faults at once for a while: the relay and three groups of daemons, each with its own
/// mix.
async fn inject_all_faults(storm: &mut FaultStorm, time: Duration) {
    let stop = CancellationToken::new();
    let view = storm.relay.view().clone();
    let others = collect_remembered_frames(&storm.daemons);
    // The daemons in isolated networks are first.
    let (isolated, rest) = storm.daemons.split_at_mut(4);
    let (crashing, misbehaving) = rest.split_at_mut(8);
    let frame_faults = [
        InjectedDaemonFault::RepeatOldFrame,
        InjectedDaemonFault::SendForgedFrame,
        InjectedDaemonFault::CutStream,
    ];
    let crash_faults = [
        InjectedDaemonFault::Kill,
        InjectedDaemonFault::Stop,
        InjectedDaemonFault::CutStream,
        InjectedDaemonFault::Stop,
        InjectedDaemonFault::RepeatOldFrame,
        InjectedDaemonFault::SendForgedFrame,
    ];
    let network_faults = [
        InjectedDaemonFault::DropPackets,
        InjectedDaemonFault::Kill,
        InjectedDaemonFault::SendForgedFrame,
    ];
    let relay_faults = [
        InjectedRelayFault::Kill,
        InjectedRelayFault::Kill,
        InjectedRelayFault::Stop,
        InjectedRelayFault::FullDisk,
    ];
    let end = async {
        sleep_unless_stopped(time, &stop).await;
        stop.cancel();
    };
    tokio::join!(
        end,
        storm.relay.inject_faults(&relay_faults, 4_000, &stop),
        inject_daemon_faults(isolated, &network_faults, (2_000, &others), &view, &stop),
        inject_daemon_faults(crashing, &crash_faults, (1_500, &others), &view, &stop),
        inject_daemon_faults(misbehaving, &frame_faults, (600, &others), &view, &stop),
    );
}
