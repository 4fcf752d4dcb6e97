//! Storms over a whole system: kills alone, and everything at once.

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
/// Serves both.
const SHARED_TENANT: &str = "*";
/// After all faults are over. A task may have to wait for several leases and fences one after the other.
const RECOVERY_LIMIT: Duration = Duration::from_secs(300);
/// Agents without a daemon, per tenant.
const AGENTS_PER_TENANT: usize = 2;
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A whole system with its clients at work.
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
    /// Of them behind a network of their own.
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
        let children = ChildWatcher::watch(dir.path(), view.expect("a file can be made"));
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

    /// Nothing is broken any more: everything that was accepted comes to its end, and is looked at.
    async fn recover_and_record(mut self) -> ChaosRun {
        self.load.stop();
        let healed = async {
            while let Some(ended) = self.running_clients.join_next().await {
                ended.expect("a client works to its end");
            }
            let mut ticks = tokio::time::interval(POLL_INTERVAL);
            for (_, client) in &self.tenants {
                while count_open_tasks(client).await > 0 {
                    ticks.tick().await;
                }
            }
        };
        let healed = tokio::time::timeout(RECOVERY_LIMIT, healed).await;
        if healed.is_err() {
            println!("not everything ended within {RECOVERY_LIMIT:?}; the judge will say what");
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
        // A connection of its own.
        client: TestClient::new(client.url(), client.token_secret()),
        tenant,
        view: view.expect("a file can be made"),
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
        view: view.expect("a file can be made"),
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
    let island = if size.isolated_daemons > 0 && host_support::can_make_networks() {
        Some(Arc::new(
            IsolatedNetwork::create().expect("it was tried out"),
        ))
    } else {
        None
    };
    let started = (0..size.daemons).map(|number| {
        let tenant = [TENANTS[0], TENANTS[1], SHARED_TENANT][number % 3];
        let island = island.clone().filter(|_| number < size.isolated_daemons);
        let name = format!("daemon-{number}");
        DaemonUnderFault::start(admin, &run.recorder, dir, (name, tenant), island)
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
        ("watches taken up again", kills),
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
        "{kills} kills of the relay in {} s, {} of daemons: {} submits and {} cancels acknowledged, {} ends told, {} tasks \
         completed; none lost, none doubled",
        took.as_secs(),
        verdict.count("fault: daemon killed"),
        verdict.count("submits acknowledged"),
        verdict.count("cancels acknowledged"),
        verdict.count("ends told by daemons"),
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
        ("submits answered again", seconds / 20),
        ("probes of another tenant", seconds / 20),
        // They take a relay that was killed, and a worker that was stopped past its lease: not in every short run.
        ("watches taken up again", minutes * 6),
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
        ("cancels that came late", minutes),
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
        "{seconds} s of everything: {} submits acknowledged, {} attempts lost, {} frames fenced, {} processes; every promise held",
        verdict.count("submits acknowledged"),
        verdict.count("lost attempts"),
        verdict.count("fenced frames"),
        verdict.count("processes"),
    );
}

/// Everything at once, for a while: the relay, and three groups of daemons, each with troubles of its own.
async fn inject_all_faults(storm: &mut FaultStorm, time: Duration) {
    let stop = CancellationToken::new();
    let view = storm.relay.view().clone();
    let others = collect_remembered_frames(&storm.daemons);
    // Islanders are first.
    let (islanders, rest) = storm.daemons.split_at_mut(4);
    let (some, more) = rest.split_at_mut(8);
    let lies = [
        InjectedDaemonFault::RepeatOldFrame,
        InjectedDaemonFault::SendForgedFrame,
        InjectedDaemonFault::CutStream,
    ];
    let crashes = [
        InjectedDaemonFault::Kill,
        InjectedDaemonFault::Stop,
        InjectedDaemonFault::CutStream,
        InjectedDaemonFault::Stop,
        InjectedDaemonFault::RepeatOldFrame,
        InjectedDaemonFault::SendForgedFrame,
    ];
    let networks = [
        InjectedDaemonFault::DropPackets,
        InjectedDaemonFault::Kill,
        InjectedDaemonFault::SendForgedFrame,
    ];
    let faults = [
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
        storm.relay.inject_faults(&faults, 4_000, &stop),
        inject_daemon_faults(islanders, &networks, (2_000, &others), &view, &stop),
        inject_daemon_faults(some, &crashes, (1_500, &others), &view, &stop),
        inject_daemon_faults(more, &lies, (600, &others), &view, &stop),
    );
}
