//! Storm bench: the connections of all daemons drop at the same time and all daemons reconnect at
//! once. Some of them hold attempts. Each daemon has its own TCP connection.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use baton_proto::v1::{DeadlineProfile, Role, SubmitManyRequest, SubmitRequest};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::SETTLE_LIMIT;
use crate::environment::{BenchEnvironment, BenchTarget};
use crate::fleet::completion_recorder::CompletionRecorder;
use crate::fleet::simulated_daemon::{
    DaemonOrder, HelloReply, SimulatedDaemon, SimulatedLink, SimulatedWork,
};
use crate::load::submit_request;
use crate::measure::latency::LatencySamples;
use crate::measure::relay_process::ProcessUsage;
use crate::measure::report::{BenchFigure, BenchPhase, BenchReport};
use crate::progress::{BenchProgress, with_progress};

use crate::client::BenchClient;
use crate::clock::{self, millis};
use crate::error::BenchError;

/// Number of loopback addresses that the daemons connect from. With one address, the relay's limit
/// on connections per address and the kernel's number of ports would be reached.
const SOURCE_ADDRESSES: usize = 64;
/// Limit on concurrent first connections. The storm itself has no such limit.
const MAX_FIRST_CONNECTS: usize = 128;
/// Pause before a daemon whose connection failed connects again, as in a daemon's first backoff.
const REDIAL_DELAY: Duration = Duration::from_millis(500);
/// The relay admits at once as many daemons as it can serve in this time. If all are back by then,
/// no daemon had to wait and the order in which they returned means nothing.
const AT_ONCE_MS: f64 = 500.0;
/// The largest number of tasks in one SubmitMany.
const BATCH_TASKS: usize = 500;

#[derive(Clone, Debug)]
pub struct StormBenchPlan {
    pub daemons: usize,
    /// How many of the daemons hold an attempt.
    pub holders: usize,
    pub lease: Duration,
    /// All daemons must be back within this time.
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

    /// Connections that this process and the relay must be able to open. Some old ones are still
    /// open when the new ones arrive.
    pub fn connections(&self) -> usize {
        self.daemons + self.daemons / 2 + 64
    }
}

/// State that all daemons share.
#[derive(Debug)]
struct StormState {
    url: String,
    token: String,
    /// Set when the connections are dropped.
    dropped_at: watch::Sender<Option<Instant>>,
    connected: AtomicU64,
    retry_later_replies: AtomicU64,
    failed_connects: AtomicU64,
    reconnect_times: Mutex<ReconnectTimes>,
    progressed: Notify,
}

/// How long the daemons were away, separately for holders of a lease and idle ones.
#[derive(Debug, Default)]
struct ReconnectTimes {
    holders: LatencySamples,
    idle: LatencySamples,
    /// Idle daemons that were back before the last holder.
    idle_before_last_holder: u64,
    idle_count: u64,
    holder_count: u64,
}

impl ReconnectTimes {
    fn count(&self) -> u64 {
        self.idle_count + self.holder_count
    }

    fn record(&mut self, is_holder: bool, away: Duration) {
        if is_holder {
            self.holders.add(away);
            self.holder_count += 1;
            self.idle_before_last_holder = self.idle_count;
        } else {
            self.idle.add(away);
            self.idle_count += 1;
        }
    }
}

/// The caller raises the limit on open files for [`StormBenchPlan::connections`] first; the relay's
/// process inherits it.
pub async fn run(
    target: &BenchTarget,
    plan: &StormBenchPlan,
    progress: &dyn BenchProgress,
) -> Result<BenchReport, BenchError> {
    let arguments = ["--max-connections", &plan.connections().to_string()].map(str::to_owned);
    let environment = BenchEnvironment::open(target, &arguments).await?;
    let mut report = BenchReport::new("storm", environment.machine.clone(), plan.settings());
    let mut storm = ReconnectStorm::start(environment, plan).await?;
    storm.connect_all(plan, progress, &mut report).await?;
    storm.submit_tasks(plan).await?;
    storm.drop_connections(plan, progress, &mut report).await;
    storm.check_leases(plan, &mut report).await;
    storm.fleet.shutdown().await;
    storm.environment.close().await?;
    Ok(report)
}

/// The relay and all daemons of the storm.
struct ReconnectStorm {
    environment: BenchEnvironment,
    state: Arc<StormState>,
    completions: Arc<CompletionRecorder>,
    orders: watch::Sender<DaemonOrder>,
    fleet: JoinSet<()>,
}

impl ReconnectStorm {
    async fn start(
        environment: BenchEnvironment,
        plan: &StormBenchPlan,
    ) -> Result<Self, BenchError> {
        let state = Arc::new(StormState {
            url: environment.relay.url.clone(),
            token: environment
                .create_token("bench-fleet", Role::Daemon)
                .await?,
            dropped_at: watch::Sender::new(None),
            connected: AtomicU64::new(0),
            retry_later_replies: AtomicU64::new(0),
            failed_connects: AtomicU64::new(0),
            reconnect_times: Mutex::default(),
            progressed: Notify::new(),
        });
        let completions = Arc::new(CompletionRecorder::new());
        let (orders, received_orders) = watch::channel(DaemonOrder::None);
        let first_connects = Arc::new(Semaphore::new(MAX_FIRST_CONNECTS));
        let mut fleet = JoinSet::new();
        for number in 0..plan.daemons {
            let name = format!("bench-{number}");
            let (orders, completions) = (received_orders.clone(), completions.clone());
            let daemon = SimulatedDaemon::new(&name, 1, SimulatedWork::Hold, orders, completions);
            fleet.spawn(run_daemon(
                daemon,
                source_address(number),
                state.clone(),
                first_connects.clone(),
            ));
        }
        Ok(Self {
            environment,
            state,
            completions,
            orders,
            fleet,
        })
    }

    /// Waits for the first connection of all daemons.
    async fn connect_all(
        &mut self,
        plan: &StormBenchPlan,
        progress: &dyn BenchProgress,
        report: &mut BenchReport,
    ) -> Result<(), BenchError> {
        let from = clock::instant();
        let state = &self.state;
        let count = || state.connected.load(Ordering::Relaxed);
        let connected = with_progress(
            progress,
            state.wait_until_connected(plan.daemons as u64),
            || format!("{} of {} daemons are connected", count(), plan.daemons),
        );
        let what = "not all daemons could connect";
        within_limit(what, 4 * SETTLE_LIMIT, connected).await?;
        report.add_phase(
            BenchPhase::new("gathering")
                .with(
                    "daemons",
                    "DAEMONS",
                    BenchFigure::Count(plan.daemons as u64),
                )
                .with("seconds", "TIME", BenchFigure::Seconds(seconds_since(from)))
                .with_usage(self.environment.relay.usage()),
        );
        Ok(())
    }

    /// Submits one task for each holder.
    async fn submit_tasks(&mut self, plan: &StormBenchPlan) -> Result<(), BenchError> {
        let leased = |_| {
            let mut request = submit_request(String::new());
            if let Some(spec) = &mut request.spec {
                spec.lease_ttl_ms = Some(millis(plan.lease));
                // No deadlines: no agent is started that could meet them, so only the lease may end
                // the attempt.
                spec.profile = Some(DeadlineProfile::default());
            }
            request
        };
        let tasks: Vec<SubmitRequest> = (0..plan.holders).map(leased).collect();
        let client = self.environment.connect_clients(1).await?.remove(0);
        for rows in tasks.chunks(BATCH_TASKS) {
            let tasks = rows.to_vec();
            client
                .tasks()
                .submit_many(SubmitManyRequest { tasks })
                .await?;
        }
        let running = self.completions.wait_until_running(plan.holders as u64);
        within_limit("not all attempts started", SETTLE_LIMIT, running).await
    }

    async fn drop_connections(
        &mut self,
        plan: &StormBenchPlan,
        progress: &dyn BenchProgress,
        report: &mut BenchReport,
    ) {
        let _ = self.environment.relay.usage();
        let state = &self.state;
        let from = clock::instant();
        state.dropped_at.send_replace(Some(from));
        let back = || state.lock_reconnect_times().count();
        let returned = with_progress(
            progress,
            state.wait_until_reconnected(plan.daemons as u64),
            || format!("{} of {} daemons are back", back(), plan.daemons),
        );
        let in_limit = timeout(plan.limit, returned).await.is_ok();
        report_reconnects(
            report,
            state,
            seconds_since(from),
            self.environment.relay.usage(),
        );
        let (all, limit) = (plan.daemons, plan.limit.as_secs());
        report.add_check(
            in_limit,
            format!("all {all} were back within {limit} s: {}", back()),
        );
    }

    /// Checks that every holder can still complete its attempt.
    async fn check_leases(&self, plan: &StormBenchPlan, report: &mut BenchReport) {
        self.orders.send_replace(DaemonOrder::Complete);
        let completed = self.completions.wait_until_completed(plan.holders as u64);
        let completed = timeout(SETTLE_LIMIT, completed).await.is_ok();
        let (count, lost) = (
            self.completions.completed_count(),
            self.completions.lost_count(),
        );
        report.add_check(
            completed && lost == 0,
            format!(
                "no healthy lease was lost: {count} of {} attempts completed, {lost} were revoked or repeated",
                plan.holders
            ),
        );
    }
}

fn report_reconnects(
    report: &mut BenchReport,
    state: &StormState,
    elapsed: f64,
    used: ProcessUsage,
) {
    let count = |counter: &AtomicU64| BenchFigure::Count(counter.load(Ordering::Relaxed));
    let returned = state.lock_reconnect_times();
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
            .with("sentAway", "SENT AWAY", count(&state.retry_later_replies))
            .with("notTaken", "NOT TAKEN", count(&state.failed_connects))
            .with_usage(used),
    );
    let no_daemon_waited = holders.count == 0 || idle.count == 0 || idle.max < AT_ONCE_MS;
    report.add_check(
        no_daemon_waited || holders.max < idle.max,
        format!(
            "holders came first: the last was back after {:.0} ms, the last idle one after {:.0} ms",
            holders.max, idle.max
        ),
    );
}

/// Runs one daemon: connects until the relay admits it, and again whenever its stream ends.
async fn run_daemon(
    mut daemon: SimulatedDaemon,
    from: IpAddr,
    state: Arc<StormState>,
    first_connects: Arc<Semaphore>,
) {
    let mut dropped = state.dropped_at.subscribe();
    let permit = first_connects.acquire().await;
    let mut link = state.connect(&mut daemon, from).await;
    drop(permit);
    state.connected.fetch_add(1, Ordering::Relaxed);
    state.progressed.notify_waiters();
    loop {
        tokio::select! {
            changed = dropped.changed() => {
                if changed.is_err() {
                    return;
                }
                // Dropping the last stream closes the connection.
                drop(link);
                let is_holder = daemon.has_attempts();
                link = state.connect(&mut daemon, from).await;
                let dropped_at = *dropped.borrow();
                if let Some(at) = dropped_at {
                    let away = clock::instant().saturating_duration_since(at);
                    state.lock_reconnect_times().record(is_holder, away);
                    state.progressed.notify_waiters();
                }
            }
            () = daemon.serve(&mut link) => link = state.connect(&mut daemon, from).await,
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
    ) -> Result<HelloReply, BenchError> {
        let relay = BenchClient::connect_from(&self.url, &self.token, from).await?;
        daemon.dial(relay).await
    }

    fn lock_reconnect_times(&self) -> std::sync::MutexGuard<'_, ReconnectTimes> {
        self.reconnect_times
            .lock()
            .expect("no code panics under this lock")
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
) -> Result<T, BenchError> {
    let waited = format!("waited for {} s", limit.as_secs());
    let outcome = timeout(limit, future).await;
    outcome.map_err(|_| BenchError::local(what, waited))
}

fn seconds_since(from: Instant) -> f64 {
    clock::instant().duration_since(from).as_secs_f64()
}
