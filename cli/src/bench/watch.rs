//! Many watchers of many tasks: how long an event takes from the daemon that says it to each of those who watch, what they cost the
//! relay, and whether others suffer from one who reads slowly and one who does not read at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_proto::v1::watch_task_response::Item;
use baton_proto::v1::{
    ReadOutputRequest, ReadOutputResponse, Role, WatchTaskRequest, WatchTaskResponse,
};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tonic::Streaming;

use super::latency::Samples;
use super::load::{request, request_of};
use super::output_writer::Writing;
use super::report::{Figure, Phase, Report};
use super::simulated_daemon::{Order, WRITING_AGENT, Work};
use super::site::{Fleet, FleetPlan, Place, Site};
use super::witness::Witness;
use super::{SETTLE_LIMIT, shown};
use crate::client::Relay;
use crate::console::Console;
use crate::errors::CliError;

/// Below the relay's bounds on streams of one connection, and of one token.
const STREAMS_PER_CONNECTION: usize = 128;
const STREAMS_PER_TOKEN: usize = 1_000;
/// What the slow reader takes in a second.
const SLOW_BYTES: usize = 1024;
/// Both frames of a tool call are events.
const EVENTS_PER_CALL: u64 = 2;
/// Of the attempt that the slow ones read; about 32 MiB, more than any window on the way.
const FLOOD_LINES: u64 = 131_072;
const FLOOD_CHUNK_LINES: usize = 16;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub tasks: usize,
    pub watchers_per_task: usize,
    /// Tool calls of each task, one after the other.
    pub calls: u64,
    /// Between two of them.
    pub every: Duration,
}

impl Plan {
    fn settings(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("tasks", self.tasks as u64),
            ("watchersPerTask", self.watchers_per_task as u64),
            ("calls", self.calls),
            ("everyMs", crate::duration::millis(self.every)),
        ]
    }

    fn watchers(&self) -> usize {
        self.tasks * self.watchers_per_task
    }
}

/// What the watchers of one phase saw.
#[derive(Debug, Default)]
struct Seen {
    ready: AtomicU64,
    events: AtomicU64,
    lagged: AtomicU64,
    samples: std::sync::Mutex<Samples>,
    progressed: Notify,
}

pub(crate) async fn run(place: &Place, plan: &Plan, console: &Console) -> Result<Report, CliError> {
    let mut site = Site::open(place, &[]).await?;
    let mut report = Report::new("watch", site.machine.clone(), plan.settings());
    for (name, with_slow) in [("alone", false), ("beside slow ones", true)] {
        let bench = Bench::open(&site, plan).await?;
        let slow = if with_slow {
            Some(Slow::start(&site).await?)
        } else {
            None
        };
        let _ = site.relay.usage();
        let seen = bench.seen.clone();
        let line = || {
            format!(
                "{name}: {} events received",
                seen.events.load(Ordering::Relaxed)
            )
        };
        let complete = shown(console, bench.drive(plan), line).await;
        let expected = plan.watchers() as u64 * plan.calls * EVENTS_PER_CALL;
        let events = seen.events.load(Ordering::Relaxed);
        let lagged = seen.lagged.load(Ordering::Relaxed);
        let latency = std::mem::take(&mut *seen.samples()).summary();
        report.phase(
            Phase::new(name)
                .with(
                    "watchers",
                    "WATCHERS",
                    Figure::Count(plan.watchers() as u64),
                )
                .with("events", "EVENTS", Figure::Count(events))
                .with("delivery", "DELIVERY", Figure::Latency(latency))
                .with("lagged", "LAGGED", Figure::Count(lagged))
                .used(site.relay.usage()),
        );
        report.check(
            complete && events == expected && lagged == 0,
            format!("{name}: every watcher received every event once: {events} of {expected}"),
        );
        if let Some(slow) = slow {
            slow.judge(&mut report).await;
        }
    }
    site.close().await?;
    Ok(report)
}

/// Tasks that are held, and everybody who watches them.
struct Bench {
    fleet: Fleet,
    witness: Arc<Witness>,
    seen: Arc<Seen>,
    _watching: JoinSet<()>,
}

impl Bench {
    async fn open(site: &Site, plan: &Plan) -> Result<Self, CliError> {
        let witness = Arc::new(Witness::new());
        let fleet = site
            .fleet(FleetPlan {
                daemons: 4,
                slots: u32::try_from(plan.tasks).unwrap_or(4096).min(4096),
                work: Work::Hold,
                witness: witness.clone(),
            })
            .await?;
        let client = site.clients(1).await?.remove(0);
        let mut tasks = Vec::with_capacity(plan.tasks);
        for _ in 0..plan.tasks {
            let submitted = client.tasks().submit(request(String::new())).await?;
            tasks.push(submitted.into_inner().task.unwrap_or_default().task_id);
        }
        let runs = timeout(SETTLE_LIMIT, witness.until_running(plan.tasks as u64)).await;
        runs.map_err(|_| CliError::local("the tasks did not start", "no daemon took them"))?;
        let seen = Arc::new(Seen::default());
        let mut watching = JoinSet::new();
        let readers = readers(site, plan.watchers()).await?;
        for number in 0..plan.watchers() {
            let request = WatchTaskRequest {
                task_id: tasks[number % plan.tasks].clone(),
                ..WatchTaskRequest::default()
            };
            let reader = &readers[number / STREAMS_PER_CONNECTION];
            let stream = reader.tasks().watch(request).await?.into_inner();
            watching.spawn(watch_events(stream, seen.clone(), witness.clone()));
        }
        let ready = seen.until(&seen.ready, plan.watchers() as u64);
        let ready = timeout(SETTLE_LIMIT, ready).await;
        ready.map_err(|_| CliError::local("the watchers did not catch up", "none lagged"))?;
        Ok(Self {
            fleet,
            witness,
            seen,
            _watching: watching,
        })
    }

    /// Every call, at its time; whether all events arrived in the end.
    async fn drive(&self, plan: &Plan) -> bool {
        let mut ticks = interval(plan.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for call in 1..=plan.calls {
            ticks.tick().await;
            self.fleet.order(Order::UseTool(call));
            // The newest order counts, so the next one waits until this one was obeyed everywhere.
            let expected = call * EVENTS_PER_CALL * plan.watchers() as u64;
            let arrived = self.seen.until(&self.seen.events, expected);
            if timeout(SETTLE_LIMIT, arrived).await.is_err() {
                return false;
            }
        }
        self.fleet.order(Order::Complete);
        let completed = self.witness.until_completed(plan.tasks as u64);
        timeout(SETTLE_LIMIT, completed).await.is_ok()
    }
}

/// Enough connections for that many streams.
async fn readers(site: &Site, streams: usize) -> Result<Vec<Relay>, CliError> {
    let mut readers = Vec::new();
    let mut token = String::new();
    for number in 0..streams.div_ceil(STREAMS_PER_CONNECTION) {
        if number % (STREAMS_PER_TOKEN / STREAMS_PER_CONNECTION) == 0 {
            token = site.token("bench-reader", Role::ReadOnly).await?;
        }
        readers.push(Relay::connect(&site.relay.url, &token, None).await?);
    }
    Ok(readers)
}

async fn watch_events(
    mut stream: Streaming<WatchTaskResponse>,
    seen: Arc<Seen>,
    witness: Arc<Witness>,
) {
    while let Ok(Some(message)) = stream.message().await {
        match message.item {
            Some(Item::Event(event)) if !event.tool_call_id.is_empty() => {
                if let Some(latency) = witness.since(&event.tool_call_id) {
                    seen.samples().add(latency);
                }
                seen.count(&seen.events);
            }
            Some(Item::CaughtUp(_)) => seen.count(&seen.ready),
            Some(Item::Lagged(_)) => seen.count(&seen.lagged),
            Some(Item::Event(_) | Item::HistoryCut(_)) | None => {}
        }
    }
}

impl Seen {
    fn count(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
        self.progressed.notify_waiters();
    }

    fn samples(&self) -> std::sync::MutexGuard<'_, Samples> {
        self.samples.lock().expect("no holder of this lock panics")
    }

    async fn until(&self, counter: &AtomicU64, count: u64) {
        loop {
            let progressed = self.progressed.notified();
            if counter.load(Ordering::Relaxed) >= count {
                return;
            }
            progressed.await;
        }
    }
}

/// An attempt that floods, followed by one who reads 1 KB/s, one who has stopped reading, and one who keeps up.
struct Slow {
    _fleet: Fleet,
    expected: u64,
    healthy: JoinSet<u64>,
    _slow: JoinSet<()>,
    /// Never read; dropping it would end the stream.
    _stopped: Streaming<ReadOutputResponse>,
}

impl Slow {
    async fn start(site: &Site) -> Result<Self, CliError> {
        let witness = Arc::new(Witness::new());
        let (begin, begun) = watch::channel(false);
        let writing = Writing::new(FLOOD_LINES, FLOOD_CHUNK_LINES, begun);
        let expected = writing.bytes();
        let fleet = site
            .fleet(FleetPlan {
                daemons: 1,
                slots: 1,
                work: Work::Write(writing),
                witness: witness.clone(),
            })
            .await?;
        let clients = site.clients(3).await?;
        let flood = request_of(WRITING_AGENT, String::new());
        let submitted = clients[0].tasks().submit(flood).await?;
        let task_id = submitted.into_inner().task.unwrap_or_default().task_id;
        let mut streams = Vec::new();
        for client in &clients {
            let request = ReadOutputRequest {
                task_id: task_id.clone(),
                follow: true,
                ..ReadOutputRequest::default()
            };
            streams.push(client.tasks().read_output(request).await?.into_inner());
        }
        let (mut healthy, mut slow) = (JoinSet::new(), JoinSet::new());
        let stopped = streams.remove(2);
        slow.spawn(read_slowly(streams.remove(1)));
        healthy.spawn(read_all(streams.remove(0)));
        begin.send_replace(true);
        Ok(Self {
            _fleet: fleet,
            expected,
            healthy,
            _slow: slow,
            _stopped: stopped,
        })
    }

    async fn judge(mut self, report: &mut Report) {
        let read = timeout(SETTLE_LIMIT, self.healthy.join_next()).await;
        let bytes = read.ok().flatten().and_then(Result::ok).unwrap_or(0);
        report.check(
            bytes == self.expected,
            format!(
                "a reader beside the slow ones received all output: {bytes} of {} bytes",
                self.expected
            ),
        );
    }
}

async fn read_all(mut stream: Streaming<ReadOutputResponse>) -> u64 {
    use baton_proto::v1::read_output_response::Item;
    let mut bytes = 0;
    while let Ok(Some(message)) = stream.message().await {
        if let Some(Item::Chunk(chunk)) = message.item {
            bytes += chunk.data.len() as u64;
        }
    }
    bytes
}

async fn read_slowly(mut stream: Streaming<ReadOutputResponse>) {
    use baton_proto::v1::read_output_response::Item;
    while let Ok(Some(message)) = stream.message().await {
        if let Some(Item::Chunk(chunk)) = message.item {
            let seconds = chunk.data.len() as f64 / SLOW_BYTES as f64;
            sleep(Duration::from_secs_f64(seconds)).await;
        }
    }
}
