//! Storms over a whole system: kills alone, and everything at once.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use baton_proto::v1::{Role, TaskState};
use baton_tests::{Agent, Client, Island, boottime, marked_gone, together};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::children::Children;
use crate::clients::{Customer, Load};
use crate::ends::{all_tasks, record};
use crate::fleet::{Member, Trouble, memories, troubles};
use crate::holders::{Holder, SCOPE};
use crate::relay_faults::{Fault, Victim};
use crate::run::Run;
use crate::{amount, pass, skips};

const TENANTS: [&str; 2] = ["acme", "bolt"];
/// Serves both.
const SHARED: &str = "*";
/// After all faults are over. A task may have to wait for several leases and fences one after the other.
const HEALING: Duration = Duration::from_secs(300);
/// Agents without a daemon, per tenant.
const HOLDERS: usize = 2;
const LOOK: Duration = Duration::from_millis(250);

/// A whole system with its clients at work.
struct Storm {
    run: Run,
    victim: Victim,
    fleet: Vec<Member>,
    tenants: Vec<(&'static str, Client)>,
    load: Arc<Load>,
    working: JoinSet<()>,
    mark: &'static str,
    _children: Children,
    _dir: TempDir,
}

struct Size {
    daemons: usize,
    /// Of them behind a network of their own.
    islanders: usize,
    /// Per tenant.
    clients: usize,
}

impl Storm {
    async fn begin(name: &'static str, size: &Size) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let run = Run::new(name);
        let victim = Victim::start(dir.path(), &run.recorder).await;
        let admin = victim.admin().clone();
        let view = run.recorder.viewpoint("children");
        let children = Children::watch(dir.path(), view.expect("a file can be made"));
        let load = Load::new(&children.socket, name);
        let mut tenants = Vec::new();
        let mut working = JoinSet::new();
        for tenant in TENANTS {
            let client = admin.of_tenant(tenant, Role::Submitter).await;
            for number in 0..size.clients {
                working.spawn(Box::pin(
                    customer(&run, &client, tenant, number, &load).work(),
                ));
            }
            for number in 0..HOLDERS {
                let name = format!("agent-{tenant}-{number}");
                let agent = Agent::of_tenant(&admin, tenant, &name, SCOPE).await;
                working.spawn(Box::pin(holder(&run, agent, tenant, &load).work()));
            }
            tenants.push((tenant, client));
        }
        let fleet = fleet(&admin, &run, dir.path(), size).await;
        Self {
            run,
            victim,
            fleet,
            tenants,
            load,
            working,
            mark: name,
            _children: children,
            _dir: dir,
        }
    }

    /// Nothing is broken any more: everything that was accepted comes to its end, and is looked at.
    async fn heal(mut self) -> Run {
        self.load.stop();
        let healed = async {
            while let Some(ended) = self.working.join_next().await {
                ended.expect("a client works to its end");
            }
            let mut ticks = tokio::time::interval(LOOK);
            for (_, client) in &self.tenants {
                while open(client).await > 0 {
                    ticks.tick().await;
                }
            }
        };
        let healed = tokio::time::timeout(HEALING, healed).await;
        if healed.is_err() {
            println!("not everything ended within {HEALING:?}; the judge will say what");
        }
        marked_gone(self.mark).await;
        for (tenant, client) in &self.tenants {
            record(client, tenant, &self.run.recorder).await;
        }
        together(self.fleet.iter_mut().map(|member| member.stop())).await;
        self.victim.stop().await;
        self.run
    }
}

fn customer(
    run: &Run,
    client: &Client,
    tenant: &'static str,
    number: usize,
    load: &Arc<Load>,
) -> Customer {
    let name = format!("client-{tenant}-{number}");
    let view = run.recorder.viewpoint(&name);
    Customer {
        // A connection of its own.
        client: Client::new(client.url(), client.secret()),
        tenant,
        view: view.expect("a file can be made"),
        name,
        load: load.clone(),
        calls: AtomicU64::new(1),
    }
}

fn holder(run: &Run, agent: Agent, tenant: &'static str, load: &Arc<Load>) -> Holder {
    let view = run.recorder.viewpoint(&agent.name);
    Holder {
        client: Client::new(agent.client.url(), agent.client.secret()),
        tenant,
        view: view.expect("a file can be made"),
        name: agent.name,
        load: load.clone(),
        calls: AtomicU64::new(1),
    }
}

async fn fleet(admin: &Client, run: &Run, dir: &Path, size: &Size) -> Vec<Member> {
    let island = if size.islanders > 0 && skips::can_make_networks() {
        Some(Arc::new(Island::make().expect("it was tried out")))
    } else {
        None
    };
    let started = (0..size.daemons).map(|number| {
        let tenant = [TENANTS[0], TENANTS[1], SHARED][number % 3];
        let island = island.clone().filter(|_| number < size.islanders);
        let name = format!("daemon-{number}");
        Member::start(admin, &run.recorder, dir, (name, tenant), island)
    });
    together(started).await
}

async fn open(client: &Client) -> usize {
    let tasks = all_tasks(client).await;
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
    let kills = amount("BATON_CHAOS_KILLS", 6);
    let size = Size {
        daemons: 6,
        islanders: 0,
        clients: 8,
    };
    let mut storm = Storm::begin("kills", &size).await;
    storm.run.at_least(&[
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
    let view = storm.victim.view().clone();
    let others = memories(&storm.fleet);
    let begun = boottime();
    let (victim, load) = (&mut storm.victim, &storm.load);
    let kill = async {
        victim.kills(kills, load, &stop).await;
        stop.cancel();
    };
    let mix = [Trouble::Kill];
    tokio::join!(
        kill,
        troubles(&mut storm.fleet, &mix, (4_000, &others), &view, &stop)
    );
    let took = boottime().saturating_sub(begun);
    let verdict = storm.heal().await.end();
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
    let seconds = amount("BATON_CHAOS_SECONDS", 15);
    let size = Size {
        daemons: 20,
        islanders: 4,
        clients: 10,
    };
    let mut storm = Storm::begin("everything", &size).await;
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
    if storm.victim.has_small_disk() {
        least.push(("fault: disk full", minutes));
    }
    if skips::can_make_networks() {
        least.push(("fault: network cut", minutes));
    }
    storm.run.at_least(&least);
    weather(&mut storm, Duration::from_secs(seconds)).await;
    let verdict = storm.heal().await.end();
    println!(
        "{seconds} s of everything: {} submits acknowledged, {} attempts lost, {} frames fenced, {} processes; every promise held",
        verdict.count("submits acknowledged"),
        verdict.count("lost attempts"),
        verdict.count("fenced frames"),
        verdict.count("processes"),
    );
}

/// Everything at once, for a while: the relay, and three groups of daemons, each with troubles of its own.
async fn weather(storm: &mut Storm, time: Duration) {
    let stop = CancellationToken::new();
    let view = storm.victim.view().clone();
    let others = memories(&storm.fleet);
    // Islanders are first.
    let (islanders, rest) = storm.fleet.split_at_mut(4);
    let (some, more) = rest.split_at_mut(8);
    let lies = [Trouble::Echo, Trouble::Lie, Trouble::Cut];
    let crashes = [
        Trouble::Kill,
        Trouble::Stop,
        Trouble::Cut,
        Trouble::Stop,
        Trouble::Echo,
        Trouble::Lie,
    ];
    let networks = [Trouble::Unplug, Trouble::Kill, Trouble::Lie];
    let faults = [Fault::Kill, Fault::Kill, Fault::Stop, Fault::FullDisk];
    let end = async {
        pass(time, &stop).await;
        stop.cancel();
    };
    tokio::join!(
        end,
        storm.victim.faults(&faults, 4_000, &stop),
        troubles(islanders, &networks, (2_000, &others), &view, &stop),
        troubles(some, &crashes, (1_500, &others), &view, &stop),
        troubles(more, &lies, (600, &others), &view, &stop),
    );
}
