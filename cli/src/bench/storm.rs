//! A fleet that comes back all at once: every daemon's connection drops in the same moment, some of them hold attempts, and all dial
//! again at once. Each daemon is a TCP connection of its own.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use baton_proto::v1::{DeadlineProfile, Role, SubmitManyRequest, SubmitRequest};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::latency::LatencySamples;
use super::load::submit_request;
use super::report::{BenchFigure, BenchPhase, BenchReport};
use super::simulated_daemon::{
    DaemonOrder, HelloReply, SimulatedDaemon, SimulatedLink, SimulatedWork,
};
use super::site::{BenchEnvironment, BenchTarget};
use super::witness::CompletionRecorder;
use super::{SETTLE_LIMIT, with_progress};
use crate::args::duration::millis;
use crate::client::relay_client::RelayClient;
use crate::clock;
use crate::error::cli_error::CliError;
use crate::render::console::CliConsole;
use crate::server::open_files;

/// Loopback addresses that the daemons dial from, or the relay's bound on one address and the kernel's ports would be met.
const SOURCE_ADDRESSES: usize = 64;
/// First connections on their way at one time. In the storm there is no such courtesy.
const MAX_FIRST_CONNECTS: usize = 128;
/// A daemon whose connection was not taken dials again after this, as a daemon's first backoff would have it.
const REDIAL_DELAY: Duration = Duration::from_millis(500);
/// The relay lets as many in at once as it takes in this time; where all are back by then nobody had to wait, and nobody was first.
const AT_ONCE_MS: f64 = 500.0;
/// The most tasks of one SubmitMany.
const BATCH_TASKS: usize = 500;

#[derive(Clone, Debug)]
pub(crate) struct StormBenchPlan {
    pub daemons: usize,
    /// Of them, those that hold an attempt each.
    pub holders: usize,
    pub lease: Duration,
    /// All must be back within this.
    pub limit: Duration,
}

impl StormBenchPlan {
    fn settings(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("daemons", self.daemons as u64),
            ("holders", self.holders as u64),
            ("leaseSeconds", self.lease.as_secs()),
            ("limitSeconds", self.limit.as_secs()),
        ]
    }

    /// Some old connections are still open when the new ones come.
    fn connections(&self) -> usize {
        self.daemons + self.daemons / 2 + 64
    }
}

/// What all daemons share.
#[derive(Debug)]
struct StormState {
    url: String,
    token: String,
    /// Set when the storm breaks.
    dropped_at: watch::Sender<Option<Instant>>,
    connected: AtomicU64,
    retry_later_replies: AtomicU64,
    failed_connects: AtomicU64,
    reconnect_times: Mutex<ReconnectTimes>,
    progressed: Notify,
}

/// How long each was away, by whether it had a lease to save.
#[derive(Debug, Default)]
struct ReconnectTimes {
    holders: LatencySamples,
    idle: LatencySamples,
    /// Idle ones that were back before the last holder was.
    idle_before_last_holder: u64,
    idle_count: u64,
    holder_count: u64,
}

impl ReconnectTimes {
    fn count(&self) -> u64 {
        self.idle_count + self.holder_count
    }

    fn record(&mut self, holds: bool, away: Duration) {
        if holds {
            self.holders.add(away);
            self.holder_count += 1;
            self.idle_before_last_holder = self.idle_count;
        } else {
            self.idle.add(away);
            self.idle_count += 1;
        }
    }
}

pub(crate) async fn run(
    place: &BenchTarget,
    plan: &StormBenchPlan,
    console: &CliConsole,
) -> Result<BenchReport, CliError> {
    // In this process and, inherited, in the relay's.
    open_files::raise_limit_for(plan.connections() as u64).map_err(|short| {
        let hint = "raise the limit (`ulimit -Hn`), or measure with fewer daemons";
        CliError::usage(short.to_string(), hint)
    })?;
    let arguments = ["--max-connections", &plan.connections().to_string()].map(str::to_owned);
    let site = BenchEnvironment::open(place, &arguments).await?;
    let mut report = BenchReport::new("storm", site.machine.clone(), plan.settings());
    let mut storm = ReconnectStorm::start(site, plan).await?;
    storm.connect_all(plan, console, &mut report).await?;
    storm.submit_tasks(plan).await?;
    storm.drop_connections(plan, console, &mut report).await;
    storm.check_leases(plan, &mut report).await;
    storm.fleet.shutdown().await;
    storm.site.close().await?;
    Ok(report)
}

/// A relay, and all daemons that live under one sky.
struct ReconnectStorm {
    site: BenchEnvironment,
    state: Arc<StormState>,
    witness: Arc<CompletionRecorder>,
    orders: watch::Sender<DaemonOrder>,
    fleet: JoinSet<()>,
}

impl ReconnectStorm {
    async fn start(site: BenchEnvironment, plan: &StormBenchPlan) -> Result<Self, CliError> {
        let sky = Arc::new(StormState {
            url: site.relay.url.clone(),
            token: site.create_token("bench-fleet", Role::Daemon).await?,
            dropped_at: watch::Sender::new(None),
            connected: AtomicU64::new(0),
            retry_later_replies: AtomicU64::new(0),
            failed_connects: AtomicU64::new(0),
            reconnect_times: Mutex::default(),
            progressed: Notify::new(),
        });
        let witness = Arc::new(CompletionRecorder::new());
        let (orders, obeyed) = watch::channel(DaemonOrder::None);
        let courtesy = Arc::new(Semaphore::new(MAX_FIRST_CONNECTS));
        let mut fleet = JoinSet::new();
        for number in 0..plan.daemons {
            let name = format!("bench-{number}");
            let (orders, witness) = (obeyed.clone(), witness.clone());
            let daemon = SimulatedDaemon::new(&name, 1, SimulatedWork::Hold, orders, witness);
            fleet.spawn(run_daemon(
                daemon,
                source_address(number),
                sky.clone(),
                courtesy.clone(),
            ));
        }
        Ok(Self {
            site,
            state: sky,
            witness,
            orders,
            fleet,
        })
    }

    /// Everybody comes for the first time.
    async fn connect_all(
        &mut self,
        plan: &StormBenchPlan,
        console: &CliConsole,
        report: &mut BenchReport,
    ) -> Result<(), CliError> {
        let from = clock::instant();
        let sky = &self.state;
        let count = || sky.connected.load(Ordering::Relaxed);
        let gathered = with_progress(
            console,
            sky.wait_until_connected(plan.daemons as u64),
            || format!("{} of {} daemons are connected", count(), plan.daemons),
        );
        within_limit("the fleet did not gather", 4 * SETTLE_LIMIT, gathered).await?;
        report.add_phase(
            BenchPhase::new("gathering")
                .with(
                    "daemons",
                    "DAEMONS",
                    BenchFigure::Count(plan.daemons as u64),
                )
                .with("seconds", "TIME", BenchFigure::Seconds(seconds_since(from)))
                .with_usage(self.site.relay.usage()),
        );
        Ok(())
    }

    /// One task for each holder.
    async fn submit_tasks(&mut self, plan: &StormBenchPlan) -> Result<(), CliError> {
        let leased = |_| {
            let mut request = submit_request(String::new());
            if let Some(spec) = &mut request.spec {
                spec.lease_ttl_ms = Some(millis(plan.lease));
                // Nothing but the lease can end it: no agent is started that could meet deadlines.
                spec.profile = Some(DeadlineProfile::default());
            }
            request
        };
        let tasks: Vec<SubmitRequest> = (0..plan.holders).map(leased).collect();
        let client = self.site.connect_clients(1).await?.remove(0);
        for rows in tasks.chunks(BATCH_TASKS) {
            let tasks = rows.to_vec();
            client
                .tasks()
                .submit_many(SubmitManyRequest { tasks })
                .await?;
        }
        let running = self.witness.wait_until_running(plan.holders as u64);
        within_limit("the holders did not start", SETTLE_LIMIT, running).await
    }

    async fn drop_connections(
        &mut self,
        plan: &StormBenchPlan,
        console: &CliConsole,
        report: &mut BenchReport,
    ) {
        let _ = self.site.relay.usage();
        let sky = &self.state;
        let from = clock::instant();
        sky.dropped_at.send_replace(Some(from));
        let back = || sky.lock_reconnect_times().count();
        let returned = with_progress(
            console,
            sky.wait_until_reconnected(plan.daemons as u64),
            || format!("{} of {} daemons are back", back(), plan.daemons),
        );
        let in_limit = timeout(plan.limit, returned).await.is_ok();
        report_reconnects(report, sky, seconds_since(from), self.site.relay.usage());
        let (all, limit) = (plan.daemons, plan.limit.as_secs());
        report.add_check(
            in_limit,
            format!("all {all} were back within {limit} s: {}", back()),
        );
    }

    /// What the leases were for: every holder finishes the attempt that it had.
    async fn check_leases(&self, plan: &StormBenchPlan, report: &mut BenchReport) {
        self.orders.send_replace(DaemonOrder::Complete);
        let completed = self.witness.wait_until_completed(plan.holders as u64);
        let completed = timeout(SETTLE_LIMIT, completed).await.is_ok();
        let (count, lost) = (self.witness.completed_count(), self.witness.lost_count());
        report.add_check(
            completed && lost == 0,
            format!(
                "no healthy lease was lost: {count} of {} attempts completed, {lost} were taken away or done again",
                plan.holders
            ),
        );
    }
}

fn report_reconnects(
    report: &mut BenchReport,
    sky: &StormState,
    elapsed: f64,
    used: super::relay_process::ProcessUsage,
) {
    let away = |counter: &AtomicU64| BenchFigure::Count(counter.load(Ordering::Relaxed));
    let returned = sky.lock_reconnect_times();
    let (holders, idle) = (
        returned.holders.clone().summary(),
        returned.idle.clone().summary(),
    );
    report.add_phase(
        BenchPhase::new("storm")
            .with("seconds", "TIME", BenchFigure::Seconds(elapsed))
            .with("holderBack", "HOLDER BACK", BenchFigure::Latency(holders))
            .with("idleBack", "IDLE BACK", BenchFigure::Latency(idle))
            .with(
                "idleBeforeLastHolder",
                "IDLE BEFORE LAST HOLDER",
                BenchFigure::Count(returned.idle_before_last_holder),
            )
            .with("sentAway", "SENT AWAY", away(&sky.retry_later_replies))
            .with("notTaken", "NOT TAKEN", away(&sky.failed_connects))
            .with_usage(used),
    );
    let nobody_waited = holders.count == 0 || idle.count == 0 || idle.max < AT_ONCE_MS;
    report.add_check(
        nobody_waited || holders.max < idle.max,
        format!("holders came first: the last was back after {:.0} ms, the last idle one after {:.0} ms", holders.max, idle.max),
    );
}

/// One daemon: it dials until it is let in, and again whenever its stream ends.
async fn run_daemon(
    mut daemon: SimulatedDaemon,
    from: IpAddr,
    sky: Arc<StormState>,
    courtesy: Arc<Semaphore>,
) {
    let mut broke = sky.dropped_at.subscribe();
    let polite = courtesy.acquire().await;
    let mut link = sky.connect(&mut daemon, from).await;
    drop(polite);
    sky.connected.fetch_add(1, Ordering::Relaxed);
    sky.progressed.notify_waiters();
    loop {
        tokio::select! {
            changed = broke.changed() => {
                if changed.is_err() {
                    return;
                }
                // The connection goes with its last stream.
                drop(link);
                let holds = daemon.has_attempts();
                link = sky.connect(&mut daemon, from).await;
                let broke_at = *broke.borrow();
                if let Some(at) = broke_at {
                    let away = clock::instant().saturating_duration_since(at);
                    sky.lock_reconnect_times().record(holds, away);
                    sky.progressed.notify_waiters();
                }
            }
            () = daemon.serve(&mut link) => link = sky.connect(&mut daemon, from).await,
        }
    }
}

impl StormState {
    async fn connect(&self, daemon: &mut SimulatedDaemon, from: IpAddr) -> Box<SimulatedLink> {
        loop {
            let pause = match self.try_connect(daemon, from).await {
                Ok(HelloReply::Welcome(link)) => return link,
                Ok(HelloReply::RetryAfter(pause)) => {
                    self.retry_later_replies.fetch_add(1, Ordering::Relaxed);
                    pause
                }
                Err(_) => {
                    self.failed_connects.fetch_add(1, Ordering::Relaxed);
                    REDIAL_DELAY
                }
            };
            sleep(pause).await;
        }
    }

    async fn try_connect(
        &self,
        daemon: &mut SimulatedDaemon,
        from: IpAddr,
    ) -> Result<HelloReply, CliError> {
        let relay = RelayClient::connect_from(&self.url, &self.token, from).await?;
        daemon.dial(relay).await
    }

    fn lock_reconnect_times(&self) -> std::sync::MutexGuard<'_, ReconnectTimes> {
        self.reconnect_times
            .lock()
            .expect("no holder of this lock panics")
    }

    async fn wait_until_connected(&self, count: u64) {
        self.wait_until(|| self.connected.load(Ordering::Relaxed) >= count)
            .await;
    }

    async fn wait_until_reconnected(&self, count: u64) {
        self.wait_until(|| self.lock_reconnect_times().count() >= count)
            .await;
    }

    async fn wait_until(&self, reached: impl Fn() -> bool) {
        loop {
            let progressed = self.progressed.notified();
            if reached() {
                return;
            }
            progressed.await;
        }
    }
}

fn source_address(number: usize) -> IpAddr {
    let last = u8::try_from(number % SOURCE_ADDRESSES).unwrap_or(0);
    IpAddr::V4(Ipv4Addr::new(127, 0, 1, last + 1))
}

async fn within_limit<T>(
    what: &'static str,
    limit: Duration,
    future: impl Future<Output = T>,
) -> Result<T, CliError> {
    let waited = format!("waited for {} s", limit.as_secs());
    let outcome = timeout(limit, future).await;
    outcome.map_err(|_| CliError::local(what, waited))
}

fn seconds_since(from: Instant) -> f64 {
    clock::instant().duration_since(from).as_secs_f64()
}
