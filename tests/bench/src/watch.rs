//! Watch bench: many watchers of many tasks. Measures how long an event takes from a daemon to each
//! watcher, what the watchers cost the relay, and whether a slow reader or one that has stopped
//! reading affects the others.

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

use crate::SETTLE_LIMIT;
use crate::client::BenchClient;
use crate::clock::millis;
use crate::environment::{BenchEnvironment, BenchTarget, SimulatedFleet, SimulatedFleetPlan};
use crate::error::BenchError;
use crate::fleet::completion_recorder::CompletionRecorder;
use crate::fleet::output_writer::OutputWorkload;
use crate::fleet::simulated_daemon::{DaemonOrder, OUTPUT_AGENT_NAME, SimulatedWork};
use crate::load::{submit_request, submit_request_for};
use crate::measure::latency::LatencySamples;
use crate::measure::report::{BenchFigure, BenchPhase, BenchReport};
use crate::progress::{BenchProgress, with_progress};

/// Below the relay's limits on streams of one connection and of one token.
const STREAMS_PER_CONNECTION: usize = 128;
const STREAMS_PER_TOKEN: usize = 1_000;
const SLOW_BYTES_PER_SECOND: usize = 1024;
/// Start and end of a tool call are one event each.
const EVENTS_PER_CALL: u64 = 2;
/// Output of the attempt that the slow readers follow: about 32 MiB, more than all flow-control
/// windows together.
const FLOOD_LINES: u64 = 131_072;
const FLOOD_CHUNK_LINES: usize = 16;

#[derive(Clone, Debug)]
pub struct WatchBenchPlan {
    pub tasks: usize,
    pub watchers_per_task: usize,
    /// Tool calls of each task, one after the other.
    pub calls: u64,
    /// Time between two calls.
    pub every: Duration,
}

impl WatchBenchPlan {
    fn settings(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("tasks", self.tasks as u64),
            ("watchersPerTask", self.watchers_per_task as u64),
            ("calls", self.calls),
            ("everyMs", millis(self.every)),
        ]
    }

    fn watchers(&self) -> usize {
        self.tasks * self.watchers_per_task
    }
}

/// Counts and latencies of all watchers of one phase.
#[derive(Debug, Default)]
struct WatcherCounts {
    ready: AtomicU64,
    events: AtomicU64,
    lagged: AtomicU64,
    samples: std::sync::Mutex<LatencySamples>,
    progressed: Notify,
}

pub async fn run(
    target: &BenchTarget,
    plan: &WatchBenchPlan,
    progress: &dyn BenchProgress,
) -> Result<BenchReport, BenchError> {
    let mut environment = BenchEnvironment::open(target, &[]).await?;
    let mut report = BenchReport::new("watch", environment.machine.clone(), plan.settings());
    for (name, with_slow) in [("alone", false), ("beside slow ones", true)] {
        let bench = WatchedTasks::open(&environment, plan).await?;
        let slow = if with_slow {
            Some(SlowReaders::start(&environment).await?)
        } else {
            None
        };
        let _ = environment.relay.usage();
        let seen = bench.counts.clone();
        let line = || {
            format!(
                "{name}: {} events received",
                seen.events.load(Ordering::Relaxed)
            )
        };
        let complete = with_progress(progress, bench.run_tool_calls(plan), line).await;
        let expected = plan.watchers() as u64 * plan.calls * EVENTS_PER_CALL;
        let events = seen.events.load(Ordering::Relaxed);
        let lagged = seen.lagged.load(Ordering::Relaxed);
        let latency = std::mem::take(&mut *seen.lock_samples()).summary();
        report.add_phase(
            BenchPhase::new(name)
                .with(
                    "watchers",
                    "WATCHERS",
                    BenchFigure::Count(plan.watchers() as u64),
                )
                .with("events", "EVENTS", BenchFigure::Count(events))
                .with("delivery", "DELIVERY", BenchFigure::Latency(latency))
                .with("lagged", "LAGGED", BenchFigure::Count(lagged))
                .with_usage(environment.relay.usage()),
        );
        report.add_check(
            complete && events == expected && lagged == 0,
            format!("{name}: every watcher received every event once: {events} of {expected}"),
        );
        if let Some(slow) = slow {
            slow.report_result(&mut report).await;
        }
    }
    environment.close().await?;
    Ok(report)
}

/// Running tasks and their watchers.
struct WatchedTasks {
    fleet: SimulatedFleet,
    completions: Arc<CompletionRecorder>,
    counts: Arc<WatcherCounts>,
    _watching: JoinSet<()>,
}

impl WatchedTasks {
    async fn open(
        environment: &BenchEnvironment,
        plan: &WatchBenchPlan,
    ) -> Result<Self, BenchError> {
        let completions = Arc::new(CompletionRecorder::new());
        let fleet = environment
            .start_fleet(SimulatedFleetPlan {
                daemons: 4,
                slots: u32::try_from(plan.tasks).unwrap_or(4096).min(4096),
                work: SimulatedWork::Hold,
                completions: completions.clone(),
            })
            .await?;
        let client = environment.connect_clients(1).await?.remove(0);
        let mut tasks = Vec::with_capacity(plan.tasks);
        for _ in 0..plan.tasks {
            let submitted = client.tasks().submit(submit_request(String::new())).await?;
            tasks.push(submitted.into_inner().task.unwrap_or_default().task_id);
        }
        let running = completions.wait_until_running(plan.tasks as u64);
        let running = timeout(SETTLE_LIMIT, running).await;
        running.map_err(|_| BenchError::local("the tasks did not start", "no daemon took them"))?;
        let seen = Arc::new(WatcherCounts::default());
        let mut watching = JoinSet::new();
        let readers = connect_readers(environment, plan.watchers()).await?;
        for number in 0..plan.watchers() {
            let request = WatchTaskRequest {
                task_id: tasks[number % plan.tasks].clone(),
                ..WatchTaskRequest::default()
            };
            let reader = &readers[number / STREAMS_PER_CONNECTION];
            let stream = reader.tasks().watch(request).await?.into_inner();
            watching.spawn(watch_events(stream, seen.clone(), completions.clone()));
        }
        let ready = seen.wait_until(&seen.ready, plan.watchers() as u64);
        let ready = timeout(SETTLE_LIMIT, ready).await;
        ready.map_err(|_| {
            let seconds = SETTLE_LIMIT.as_secs();
            BenchError::local(
                "not all watchers caught up with their task's events",
                format!("waited for {seconds} s"),
            )
        })?;
        Ok(Self {
            fleet,
            completions,
            counts: seen,
            _watching: watching,
        })
    }

    /// Makes every tool call at its time. Returns whether all events arrived.
    async fn run_tool_calls(&self, plan: &WatchBenchPlan) -> bool {
        let mut ticks = interval(plan.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for call in 1..=plan.calls {
            ticks.tick().await;
            self.fleet.send_order(DaemonOrder::UseTool(call));
            // A daemon carries out only the newest order, so the next one waits until all events of
            // this one have arrived.
            let expected = call * EVENTS_PER_CALL * plan.watchers() as u64;
            let arrived = self.counts.wait_until(&self.counts.events, expected);
            if timeout(SETTLE_LIMIT, arrived).await.is_err() {
                return false;
            }
        }
        self.fleet.send_order(DaemonOrder::Complete);
        let completed = self.completions.wait_until_completed(plan.tasks as u64);
        timeout(SETTLE_LIMIT, completed).await.is_ok()
    }
}

/// Opens enough connections for that many streams.
async fn connect_readers(
    environment: &BenchEnvironment,
    streams: usize,
) -> Result<Vec<BenchClient>, BenchError> {
    let mut readers = Vec::new();
    let mut token = String::new();
    for number in 0..streams.div_ceil(STREAMS_PER_CONNECTION) {
        if number % (STREAMS_PER_TOKEN / STREAMS_PER_CONNECTION) == 0 {
            token = environment
                .create_token("bench-reader", Role::ReadOnly)
                .await?;
        }
        readers.push(BenchClient::connect(&environment.relay.url, &token).await?);
    }
    Ok(readers)
}

async fn watch_events(
    mut stream: Streaming<WatchTaskResponse>,
    seen: Arc<WatcherCounts>,
    completions: Arc<CompletionRecorder>,
) {
    while let Ok(Some(message)) = stream.message().await {
        match message.item {
            Some(Item::Event(event)) if !event.tool_call_id.is_empty() => {
                if let Some(latency) = completions.elapsed_since(&event.tool_call_id) {
                    seen.lock_samples().add(latency);
                }
                seen.increment(&seen.events);
            }
            Some(Item::CaughtUp(_)) => seen.increment(&seen.ready),
            Some(Item::Lagged(_)) => seen.increment(&seen.lagged),
            Some(Item::Event(_) | Item::HistoryCut(_)) | None => {}
        }
    }
}

impl WatcherCounts {
    fn increment(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
        self.progressed.notify_waiters();
    }

    fn lock_samples(&self) -> std::sync::MutexGuard<'_, LatencySamples> {
        self.samples.lock().expect("no code panics under this lock")
    }

    async fn wait_until(&self, counter: &AtomicU64, count: u64) {
        loop {
            let progressed = self.progressed.notified();
            if counter.load(Ordering::Relaxed) >= count {
                return;
            }
            progressed.await;
        }
    }
}

/// An attempt with much output and three readers: one reads 1 KB/s, one does not read, one keeps
/// up.
struct SlowReaders {
    _fleet: SimulatedFleet,
    expected: u64,
    healthy: JoinSet<u64>,
    _slow: JoinSet<()>,
    /// Kept open and never read.
    _stopped: Streaming<ReadOutputResponse>,
}

impl SlowReaders {
    async fn start(environment: &BenchEnvironment) -> Result<Self, BenchError> {
        let completions = Arc::new(CompletionRecorder::new());
        let (begin, begun) = watch::channel(false);
        let writing = OutputWorkload::new(FLOOD_LINES, FLOOD_CHUNK_LINES, begun);
        let expected = writing.bytes();
        let fleet = environment
            .start_fleet(SimulatedFleetPlan {
                daemons: 1,
                slots: 1,
                work: SimulatedWork::Write(writing),
                completions: completions.clone(),
            })
            .await?;
        let clients = environment.connect_clients(3).await?;
        let flood = submit_request_for(OUTPUT_AGENT_NAME, String::new());
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

    async fn report_result(mut self, report: &mut BenchReport) {
        let read = timeout(SETTLE_LIMIT, self.healthy.join_next()).await;
        let bytes = read.ok().flatten().and_then(Result::ok).unwrap_or(0);
        report.add_check(
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
            let seconds = chunk.data.len() as f64 / SLOW_BYTES_PER_SECOND as f64;
            sleep(Duration::from_secs_f64(seconds)).await;
        }
    }
}
