//! Submits tasks in two ways: as fast as the relay accepts them (closed loop), and at a fixed rate
//! (open loop). The open loop times each submit from the moment it was due, so that a slow relay
//! cannot hide its latency by slowing the load down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use baton_proto::unpack_error_detail;
use baton_proto::v1::submit_many_result::Result as RowResult;
use baton_proto::v1::{CommandSpec, SubmitManyRequest, SubmitRequest, TaskSpec};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};
use tonic::{Code, Status};

use crate::client::BenchClient;
use crate::clock;
use crate::error::BenchError;
use crate::fleet::completion_recorder::CompletionRecorder;
use crate::fleet::simulated_daemon::COMMAND_AGENT_NAME;
use crate::measure::latency::LatencySamples;
use crate::measure::relay_process::ProcessUsage;
use crate::measure::report::{BenchFigure, BenchPhase};

const PROMPT_BYTES: usize = 256;
/// Pause after a rejection that has no retry_after_ms.
const DEFAULT_RETRY_DELAY: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct LoadGenerator {
    connections: Vec<BenchClient>,
    shape: LoadShape,
    counters: Arc<LoadCounters>,
    completions: Arc<CompletionRecorder>,
}

/// How the clients submit.
#[derive(Clone, Copy, Debug)]
pub struct LoadShape {
    /// Maximum of concurrent calls on each connection.
    pub in_flight: usize,
    /// Tasks of one SubmitMany; `None` for unary Submit.
    pub batch: Option<usize>,
}

/// The result of one period of load.
#[derive(Debug)]
pub(crate) struct LoadMeasurement {
    pub name: &'static str,
    pub elapsed: Duration,
    /// Durable completions within `elapsed`.
    pub completed: u64,
    /// Tasks that admission rejected.
    pub refused: u64,
    /// Calls whose connection broke.
    pub failed: u64,
    pub submit: LatencySamples,
    pub complete: LatencySamples,
}

impl LoadMeasurement {
    pub(crate) fn tasks_per_second(&self) -> f64 {
        self.completed as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }

    pub(crate) fn into_phase(self, used: ProcessUsage) -> BenchPhase {
        BenchPhase::new(self.name)
            .with(
                "tasksPerSecond",
                "TASKS/S",
                BenchFigure::PerSecond(self.tasks_per_second()),
            )
            .with(
                "submit",
                "SUBMIT",
                BenchFigure::Latency(self.submit.summary()),
            )
            .with(
                "submitToComplete",
                "DONE",
                BenchFigure::Latency(self.complete.summary()),
            )
            .with("refused", "REFUSED", BenchFigure::Count(self.refused))
            .with("failed", "FAILED", BenchFigure::Count(self.failed))
            .with_usage(used)
    }
}

#[derive(Debug, Default)]
struct LoadCounters {
    acknowledged: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    measuring: AtomicBool,
    stop: AtomicBool,
    progress: Notify,
}

impl LoadGenerator {
    pub(crate) fn new(
        connections: Vec<BenchClient>,
        shape: LoadShape,
        completions: Arc<CompletionRecorder>,
    ) -> Self {
        Self {
            connections,
            shape,
            counters: Arc::default(),
            completions,
        }
    }

    /// Submits that the relay has acknowledged as durable.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.counters.acknowledged.load(Ordering::Relaxed)
    }

    /// Closed loop: every slot of every connection submits again when its last submit is
    /// acknowledged.
    pub(crate) async fn run_saturated(
        &self,
        warm_up: Duration,
        window: Duration,
    ) -> LoadMeasurement {
        let mut submitters = self.submit_until_stopped();
        sleep(warm_up).await;
        let before = self.begin_measuring();
        sleep(window).await;
        let mut measured = self.end_measuring("saturation", before);
        self.stop();
        while let Some(samples) = submitters.join_next().await {
            measured.submit.merge(samples.unwrap_or_default());
        }
        measured
    }

    /// Submits as fast as possible until at least `count` tasks are acknowledged in total.
    pub(crate) async fn submit_until(&self, count: u64) {
        let mut submitters = self.submit_until_stopped();
        while self.acknowledged() < count {
            self.counters.progress.notified().await;
        }
        self.stop();
        while submitters.join_next().await.is_some() {}
    }

    fn submit_until_stopped(&self) -> JoinSet<LatencySamples> {
        self.counters.reset();
        let mut submitters = JoinSet::new();
        for relay in &self.connections {
            for _ in 0..self.shape.in_flight {
                submitters.spawn(self.submitter(relay).until_stopped());
            }
        }
        submitters
    }

    fn stop(&self) {
        self.counters.stop.store(true, Ordering::Relaxed);
    }

    /// Open loop: `rate` submits a second over all connections, however long the relay takes.
    pub(crate) async fn run_at_rate(
        &self,
        name: &'static str,
        rate: u32,
        window: Duration,
    ) -> LoadMeasurement {
        self.counters.reset();
        let before = self.begin_measuring();
        let mut connections = JoinSet::new();
        let calls = f64::from(rate) / self.shape.batch.unwrap_or(1) as f64;
        let share = calls / self.connections.len() as f64;
        for relay in &self.connections {
            connections.spawn(self.submitter(relay).at_rate(share, window));
        }
        let mut submit = LatencySamples::default();
        while let Some(samples) = connections.join_next().await {
            submit.merge(samples.unwrap_or_default());
        }
        let mut measured = self.end_measuring(name, before);
        measured.submit = submit;
        measured
    }

    /// Waits until every acknowledged task has completed. One that does not is a bug of the relay.
    pub(crate) async fn wait_until_completed(&self, limit: Duration) -> Result<(), BenchError> {
        let expected = self.acknowledged();
        if timeout(limit, self.completions.wait_until_completed(expected))
            .await
            .is_err()
        {
            let seen = self.completions.completed_count();
            return Err(BenchError::local(
                "the relay lost work",
                format!("it acknowledged {expected} submits and {seen} completions"),
            ));
        }
        Ok(())
    }

    fn submitter(&self, relay: &BenchClient) -> TaskSubmitter {
        TaskSubmitter {
            relay: relay.clone(),
            shape: self.shape,
            counters: self.counters.clone(),
            completions: self.completions.clone(),
        }
    }

    fn begin_measuring(&self) -> MeasurementStart {
        drop(self.completions.take_samples());
        self.counters.measuring.store(true, Ordering::Relaxed);
        MeasurementStart {
            at: clock::instant(),
            completed: self.completions.completed_count(),
        }
    }

    fn end_measuring(&self, name: &'static str, before: MeasurementStart) -> LoadMeasurement {
        self.counters.measuring.store(false, Ordering::Relaxed);
        LoadMeasurement {
            name,
            elapsed: clock::instant().duration_since(before.at),
            completed: self.completions.completed_count() - before.completed,
            refused: self.counters.refused.load(Ordering::Relaxed),
            failed: self.counters.failed.load(Ordering::Relaxed),
            submit: LatencySamples::default(),
            complete: self.completions.take_samples(),
        }
    }
}

struct MeasurementStart {
    at: Instant,
    completed: u64,
}

#[derive(Clone)]
struct TaskSubmitter {
    relay: BenchClient,
    shape: LoadShape,
    counters: Arc<LoadCounters>,
    completions: Arc<CompletionRecorder>,
}

impl TaskSubmitter {
    async fn until_stopped(self) -> LatencySamples {
        let mut samples = LatencySamples::default();
        while !self.counters.stop.load(Ordering::Relaxed) {
            let measured = self.counters.measuring.load(Ordering::Relaxed);
            let begun = clock::instant();
            match self.submit(begun).await {
                Ok(()) if measured => samples.add(clock::instant().duration_since(begun)),
                Ok(()) => {}
                Err(pause) => sleep(pause).await,
            }
        }
        samples
    }

    async fn at_rate(self, per_second: f64, window: Duration) -> LatencySamples {
        let begun = clock::instant();
        let permits = Arc::new(Semaphore::new(self.shape.in_flight));
        let mut running = JoinSet::new();
        let mut samples = LatencySamples::default();
        for number in 0_u32.. {
            let due = begun + Duration::from_secs_f64(f64::from(number) / per_second);
            if due.duration_since(begun) >= window {
                break;
            }
            sleep_until(due.into()).await;
            let permit = permits
                .clone()
                .acquire_owned()
                .await
                .expect("the semaphore is never closed");
            let submitter = self.clone();
            running.spawn(async move {
                let acknowledged = submitter.submit(due).await.is_ok();
                drop(permit);
                acknowledged.then(|| clock::instant().duration_since(due))
            });
            while let Some(done) = running.try_join_next() {
                done.ok()
                    .flatten()
                    .into_iter()
                    .for_each(|latency| samples.add(latency));
            }
        }
        while let Some(done) = running.join_next().await {
            done.ok()
                .flatten()
                .into_iter()
                .for_each(|latency| samples.add(latency));
        }
        samples
    }

    /// Makes one call. The error is the pause before the next one.
    async fn submit(&self, begun: Instant) -> Result<(), Duration> {
        let stamp = self.completions.encode_time(begun);
        let outcome = match self.shape.batch {
            None => self.submit_one(stamp).await,
            Some(rows) => self.submit_many(stamp, rows).await,
        };
        match outcome {
            Ok(SubmitCounts { accepted, refused }) => {
                self.counters.record_submits(accepted, refused);
                if refused > 0 {
                    Err(DEFAULT_RETRY_DELAY)
                } else {
                    Ok(())
                }
            }
            Err(status) => match rejection_delay(&status) {
                Some(delay) => {
                    let rows = self.shape.batch.unwrap_or(1) as u64;
                    self.counters.record_submits(0, rows);
                    Err(delay)
                }
                None => {
                    self.counters.failed.fetch_add(1, Ordering::Relaxed);
                    Err(DEFAULT_RETRY_DELAY)
                }
            },
        }
    }

    async fn submit_one(&self, stamp: String) -> Result<SubmitCounts, Status> {
        self.relay.tasks().submit(submit_request(stamp)).await?;
        Ok(SubmitCounts {
            accepted: 1,
            refused: 0,
        })
    }

    async fn submit_many(&self, stamp: String, rows: usize) -> Result<SubmitCounts, Status> {
        let tasks = std::iter::repeat_n(submit_request(stamp), rows).collect();
        let mut client = self.relay.tasks();
        let answer = client.submit_many(SubmitManyRequest { tasks }).await?;
        let results = answer.into_inner().results;
        let is_accepted = |row: &&_| matches!(row, &&Some(RowResult::Accepted(_)));
        let results = results.iter().map(|row| &row.result);
        let accepted = results.filter(is_accepted).count() as u64;
        Ok(SubmitCounts {
            accepted,
            refused: rows as u64 - accepted,
        })
    }
}

/// How many tasks of one call the relay accepted and refused.
struct SubmitCounts {
    accepted: u64,
    refused: u64,
}

/// How long to wait after the relay rejected a call; `None` if the call failed on the way. Only a
/// transport makes these statuses without an ErrorDetail.
fn rejection_delay(status: &Status) -> Option<Duration> {
    let Some(detail) = unpack_error_detail(status) else {
        let failed_on_the_way = matches!(
            status.code(),
            Code::Unavailable
                | Code::Unknown
                | Code::Internal
                | Code::Cancelled
                | Code::DeadlineExceeded
        );
        return (!failed_on_the_way).then_some(DEFAULT_RETRY_DELAY);
    };
    let requested = detail.retry_after_ms.map(Duration::from_millis);
    Some(requested.unwrap_or(DEFAULT_RETRY_DELAY))
}

impl LoadCounters {
    fn record_submits(&self, accepted: u64, refused: u64) {
        self.acknowledged.fetch_add(accepted, Ordering::Relaxed);
        self.refused.fetch_add(refused, Ordering::Relaxed);
        self.progress.notify_one();
    }

    fn reset(&self) {
        self.refused.store(0, Ordering::Relaxed);
        self.failed.store(0, Ordering::Relaxed);
        self.stop.store(false, Ordering::Relaxed);
    }
}

/// A task with a prompt of 256 bytes and a command. Simulated daemons never run the command.
pub(crate) fn submit_request(channel_id: String) -> SubmitRequest {
    submit_request_for(COMMAND_AGENT_NAME, channel_id)
}

pub(crate) fn submit_request_for(agent: &str, channel_id: String) -> SubmitRequest {
    let spec = TaskSpec {
        agent: agent.to_owned(),
        prompt: "x".repeat(PROMPT_BYTES),
        command: Some(CommandSpec {
            argv: vec!["true".to_owned()],
        }),
        channel_id,
        ..TaskSpec::default()
    };
    SubmitRequest {
        spec: Some(spec),
        ..SubmitRequest::default()
    }
}
