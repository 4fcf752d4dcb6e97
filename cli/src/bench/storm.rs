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

use super::latency::Samples;
use super::load::request;
use super::report::{Figure, Phase, Report};
use super::simulated_daemon::{Answer, Link, Order, SimulatedDaemon, Work};
use super::site::{Place, Site};
use super::witness::Witness;
use super::{SETTLE_LIMIT, shown};
use crate::client::Relay;
use crate::clock;
use crate::console::Console;
use crate::duration::millis;
use crate::errors::CliError;
use crate::open_files;

/// Loopback addresses that the daemons dial from, or the relay's bound on one address and the kernel's ports would be met.
const ADDRESSES: usize = 64;
/// First connections on their way at one time. In the storm there is no such courtesy.
const COURTESY: usize = 128;
/// A daemon whose connection was not taken dials again after this, as a daemon's first backoff would have it.
const REDIAL: Duration = Duration::from_millis(500);
/// The relay lets as many in at once as it takes in this time; where all are back by then nobody had to wait, and nobody was first.
const AT_ONCE_MS: f64 = 500.0;
/// The most tasks of one SubmitMany.
const ROWS: usize = 500;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub daemons: usize,
    /// Of them, those that hold an attempt each.
    pub holders: usize,
    pub lease: Duration,
    /// All must be back within this.
    pub limit: Duration,
}

impl Plan {
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
struct Sky {
    url: String,
    token: String,
    /// Set when the storm breaks.
    broke: watch::Sender<Option<Instant>>,
    connected: AtomicU64,
    sent_away: AtomicU64,
    not_taken: AtomicU64,
    returned: Mutex<Returned>,
    progressed: Notify,
}

/// How long each was away, by whether it had a lease to save.
#[derive(Debug, Default)]
struct Returned {
    holders: Samples,
    idle: Samples,
    /// Idle ones that were back before the last holder was.
    idle_before: u64,
    idle_count: u64,
    holder_count: u64,
}

impl Returned {
    fn count(&self) -> u64 {
        self.idle_count + self.holder_count
    }

    fn note(&mut self, holds: bool, away: Duration) {
        if holds {
            self.holders.add(away);
            self.holder_count += 1;
            self.idle_before = self.idle_count;
        } else {
            self.idle.add(away);
            self.idle_count += 1;
        }
    }
}

pub(crate) async fn run(place: &Place, plan: &Plan, console: &Console) -> Result<Report, CliError> {
    // In this process and, inherited, in the relay's.
    open_files::allow(plan.connections() as u64).map_err(|short| {
        let hint = "raise the limit (`ulimit -Hn`), or measure with fewer daemons";
        CliError::usage(short.to_string(), hint)
    })?;
    let arguments = ["--max-connections", &plan.connections().to_string()].map(str::to_owned);
    let site = Site::open(place, &arguments).await?;
    let mut report = Report::new("storm", site.machine.clone(), plan.settings());
    let mut storm = Storm::over(site, plan).await?;
    storm.gather(plan, console, &mut report).await?;
    storm.hand_out(plan).await?;
    storm.break_out(plan, console, &mut report).await;
    storm.count_leases(plan, &mut report).await;
    storm.fleet.shutdown().await;
    storm.site.close().await?;
    Ok(report)
}

/// A relay, and all daemons that live under one sky.
struct Storm {
    site: Site,
    sky: Arc<Sky>,
    witness: Arc<Witness>,
    orders: watch::Sender<Order>,
    fleet: JoinSet<()>,
}

impl Storm {
    async fn over(site: Site, plan: &Plan) -> Result<Self, CliError> {
        let sky = Arc::new(Sky {
            url: site.relay.url.clone(),
            token: site.token("bench-fleet", Role::Daemon).await?,
            broke: watch::Sender::new(None),
            connected: AtomicU64::new(0),
            sent_away: AtomicU64::new(0),
            not_taken: AtomicU64::new(0),
            returned: Mutex::default(),
            progressed: Notify::new(),
        });
        let witness = Arc::new(Witness::new());
        let (orders, obeyed) = watch::channel(Order::None);
        let courtesy = Arc::new(Semaphore::new(COURTESY));
        let mut fleet = JoinSet::new();
        for number in 0..plan.daemons {
            let name = format!("bench-{number}");
            let (orders, witness) = (obeyed.clone(), witness.clone());
            let daemon = SimulatedDaemon::new(&name, 1, Work::Hold, orders, witness);
            fleet.spawn(live(daemon, address(number), sky.clone(), courtesy.clone()));
        }
        Ok(Self {
            site,
            sky,
            witness,
            orders,
            fleet,
        })
    }

    /// Everybody comes for the first time.
    async fn gather(
        &mut self,
        plan: &Plan,
        console: &Console,
        report: &mut Report,
    ) -> Result<(), CliError> {
        let from = clock::instant();
        let sky = &self.sky;
        let count = || sky.connected.load(Ordering::Relaxed);
        let gathered = shown(console, sky.until_connected(plan.daemons as u64), || {
            format!("{} of {} daemons are connected", count(), plan.daemons)
        });
        in_time("the fleet did not gather", 4 * SETTLE_LIMIT, gathered).await?;
        report.phase(
            Phase::new("gathering")
                .with("daemons", "DAEMONS", Figure::Count(plan.daemons as u64))
                .with("seconds", "TIME", Figure::Seconds(seconds_since(from)))
                .used(self.site.relay.usage()),
        );
        Ok(())
    }

    /// One task for each holder.
    async fn hand_out(&mut self, plan: &Plan) -> Result<(), CliError> {
        let leased = |_| {
            let mut request = request(String::new());
            if let Some(spec) = &mut request.spec {
                spec.lease_ttl_ms = Some(millis(plan.lease));
                // Nothing but the lease can end it: no agent is started that could meet deadlines.
                spec.profile = Some(DeadlineProfile::default());
            }
            request
        };
        let tasks: Vec<SubmitRequest> = (0..plan.holders).map(leased).collect();
        let client = self.site.clients(1).await?.remove(0);
        for rows in tasks.chunks(ROWS) {
            let tasks = rows.to_vec();
            client
                .tasks()
                .submit_many(SubmitManyRequest { tasks })
                .await?;
        }
        let running = self.witness.until_running(plan.holders as u64);
        in_time("the holders did not start", SETTLE_LIMIT, running).await
    }

    async fn break_out(&mut self, plan: &Plan, console: &Console, report: &mut Report) {
        let _ = self.site.relay.usage();
        let sky = &self.sky;
        let from = clock::instant();
        sky.broke.send_replace(Some(from));
        let back = || sky.returned().count();
        let returned = shown(console, sky.until_returned(plan.daemons as u64), || {
            format!("{} of {} daemons are back", back(), plan.daemons)
        });
        let in_limit = timeout(plan.limit, returned).await.is_ok();
        tell(report, sky, seconds_since(from), self.site.relay.usage());
        let (all, limit) = (plan.daemons, plan.limit.as_secs());
        report.check(
            in_limit,
            format!("all {all} were back within {limit} s: {}", back()),
        );
    }

    /// What the leases were for: every holder finishes the attempt that it had.
    async fn count_leases(&self, plan: &Plan, report: &mut Report) {
        self.orders.send_replace(Order::Complete);
        let completed = self.witness.until_completed(plan.holders as u64);
        let completed = timeout(SETTLE_LIMIT, completed).await.is_ok();
        let (count, lost) = (self.witness.count(), self.witness.lost());
        report.check(
            completed && lost == 0,
            format!(
                "no healthy lease was lost: {count} of {} attempts completed, {lost} were taken away or done again",
                plan.holders
            ),
        );
    }
}

fn tell(report: &mut Report, sky: &Sky, elapsed: f64, used: super::relay_process::Usage) {
    let away = |counter: &AtomicU64| Figure::Count(counter.load(Ordering::Relaxed));
    let returned = sky.returned();
    let (holders, idle) = (
        returned.holders.clone().summary(),
        returned.idle.clone().summary(),
    );
    report.phase(
        Phase::new("storm")
            .with("seconds", "TIME", Figure::Seconds(elapsed))
            .with("holderBack", "HOLDER BACK", Figure::Latency(holders))
            .with("idleBack", "IDLE BACK", Figure::Latency(idle))
            .with(
                "idleBeforeLastHolder",
                "IDLE BEFORE LAST HOLDER",
                Figure::Count(returned.idle_before),
            )
            .with("sentAway", "SENT AWAY", away(&sky.sent_away))
            .with("notTaken", "NOT TAKEN", away(&sky.not_taken))
            .used(used),
    );
    let nobody_waited = holders.count == 0 || idle.count == 0 || idle.max < AT_ONCE_MS;
    report.check(
        nobody_waited || holders.max < idle.max,
        format!("holders came first: the last was back after {:.0} ms, the last idle one after {:.0} ms", holders.max, idle.max),
    );
}

/// One daemon: it dials until it is let in, and again whenever its stream ends.
async fn live(mut daemon: SimulatedDaemon, from: IpAddr, sky: Arc<Sky>, courtesy: Arc<Semaphore>) {
    let mut broke = sky.broke.subscribe();
    let polite = courtesy.acquire().await;
    let mut link = sky.enter(&mut daemon, from).await;
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
                let holds = daemon.holds_any();
                link = sky.enter(&mut daemon, from).await;
                let broke_at = *broke.borrow();
                if let Some(at) = broke_at {
                    let away = clock::instant().saturating_duration_since(at);
                    sky.returned().note(holds, away);
                    sky.progressed.notify_waiters();
                }
            }
            () = daemon.serve(&mut link) => link = sky.enter(&mut daemon, from).await,
        }
    }
}

impl Sky {
    async fn enter(&self, daemon: &mut SimulatedDaemon, from: IpAddr) -> Box<Link> {
        loop {
            let pause = match self.try_enter(daemon, from).await {
                Ok(Answer::Welcome(link)) => return link,
                Ok(Answer::Later(pause)) => {
                    self.sent_away.fetch_add(1, Ordering::Relaxed);
                    pause
                }
                Err(_) => {
                    self.not_taken.fetch_add(1, Ordering::Relaxed);
                    REDIAL
                }
            };
            sleep(pause).await;
        }
    }

    async fn try_enter(
        &self,
        daemon: &mut SimulatedDaemon,
        from: IpAddr,
    ) -> Result<Answer, CliError> {
        let relay = Relay::connect_from(&self.url, &self.token, from).await?;
        daemon.dial(relay).await
    }

    fn returned(&self) -> std::sync::MutexGuard<'_, Returned> {
        self.returned.lock().expect("no holder of this lock panics")
    }

    async fn until_connected(&self, count: u64) {
        self.until(|| self.connected.load(Ordering::Relaxed) >= count)
            .await;
    }

    async fn until_returned(&self, count: u64) {
        self.until(|| self.returned().count() >= count).await;
    }

    async fn until(&self, reached: impl Fn() -> bool) {
        loop {
            let progressed = self.progressed.notified();
            if reached() {
                return;
            }
            progressed.await;
        }
    }
}

fn address(number: usize) -> IpAddr {
    let last = u8::try_from(number % ADDRESSES).unwrap_or(0);
    IpAddr::V4(Ipv4Addr::new(127, 0, 1, last + 1))
}

async fn in_time<T>(
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
