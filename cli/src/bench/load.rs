//! Two ways of asking for work: as much as the relay takes (closed loop), and at a fixed rate (open loop, timed from the moment
//! a submit was due, so that a slow relay cannot hide its slowness by slowing the load down).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use baton_proto::v1::{CommandSpec, SubmitRequest, TaskSpec};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use super::completions::Completions;
use super::latency::Samples;
use super::relay_process::Memory;
use super::report::Phase;
use super::simulated_daemon::AGENT;
use crate::client::Relay;
use crate::clock;
use crate::errors::CliError;

const PROMPT_BYTES: usize = 256;
/// After a refusal that names no time of its own.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Load {
    connections: Vec<Relay>,
    in_flight: usize,
    counters: Arc<Counters>,
    completions: Arc<Completions>,
}

#[derive(Debug, Default)]
struct Counters {
    acknowledged: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    measuring: AtomicBool,
    stop: AtomicBool,
}

impl Load {
    pub(crate) fn new(
        connections: Vec<Relay>,
        in_flight: usize,
        completions: Arc<Completions>,
    ) -> Self {
        Self {
            connections,
            in_flight,
            counters: Arc::default(),
            completions,
        }
    }

    /// Submits that the relay has acknowledged as durable.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.counters.acknowledged.load(Ordering::Relaxed)
    }

    /// Every slot of every connection submits again as soon as its last submit is acknowledged.
    pub(crate) async fn saturate(&self, warm_up: Duration, window: Duration) -> Phase {
        self.counters.reset();
        let mut submitters = JoinSet::new();
        for relay in &self.connections {
            for _ in 0..self.in_flight {
                let submitter = self.submitter(relay);
                submitters.spawn(submitter.until_stopped());
            }
        }
        sleep(warm_up).await;
        let before = self.begin_measuring();
        sleep(window).await;
        let mut phase = self.end_measuring("saturation", before);
        self.counters.stop.store(true, Ordering::Relaxed);
        while let Some(samples) = submitters.join_next().await {
            phase.submit.merge(samples.unwrap_or_default());
        }
        phase
    }

    /// `rate` submits a second over all connections, whatever the relay does.
    pub(crate) async fn steady(&self, rate: u32, window: Duration) -> Phase {
        self.counters.reset();
        let before = self.begin_measuring();
        let mut connections = JoinSet::new();
        let share = f64::from(rate) / self.connections.len() as f64;
        for relay in &self.connections {
            connections.spawn(self.submitter(relay).at_rate(share, window, self.in_flight));
        }
        let mut submit = Samples::default();
        while let Some(samples) = connections.join_next().await {
            submit.merge(samples.unwrap_or_default());
        }
        let mut phase = self.end_measuring("steady", before);
        phase.submit = submit;
        phase
    }

    /// Waits until all that was acknowledged has completed: an acknowledged task that does not is a bug of the relay.
    pub(crate) async fn settle(&self, limit: Duration) -> Result<(), CliError> {
        let expected = self.acknowledged();
        if timeout(limit, self.completions.reach(expected))
            .await
            .is_err()
        {
            let seen = self.completions.count();
            return Err(CliError::local(
                "the relay lost work",
                format!("{expected} submits were acknowledged, {seen} completions were"),
            ));
        }
        Ok(())
    }

    fn submitter(&self, relay: &Relay) -> Submitter {
        Submitter {
            relay: relay.clone(),
            counters: self.counters.clone(),
            completions: self.completions.clone(),
        }
    }

    fn begin_measuring(&self) -> Mark {
        drop(self.completions.take_samples());
        self.counters.measuring.store(true, Ordering::Relaxed);
        Mark {
            at: clock::instant(),
            completed: self.completions.count(),
        }
    }

    fn end_measuring(&self, name: &'static str, before: Mark) -> Phase {
        self.counters.measuring.store(false, Ordering::Relaxed);
        Phase {
            name,
            elapsed: clock::instant().duration_since(before.at),
            completed: self.completions.count() - before.completed,
            refused: self.counters.refused.load(Ordering::Relaxed),
            failed: self.counters.failed.load(Ordering::Relaxed),
            submit: Samples::default(),
            complete: self.completions.take_samples(),
            memory: Memory::default(),
            relay_cpu_seconds: 0.0,
        }
    }
}

struct Mark {
    at: Instant,
    completed: u64,
}

impl Counters {
    fn reset(&self) {
        self.refused.store(0, Ordering::Relaxed);
        self.failed.store(0, Ordering::Relaxed);
        self.stop.store(false, Ordering::Relaxed);
    }
}

#[derive(Clone)]
struct Submitter {
    relay: Relay,
    counters: Arc<Counters>,
    completions: Arc<Completions>,
}

impl Submitter {
    async fn until_stopped(self) -> Samples {
        let mut samples = Samples::default();
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

    async fn at_rate(self, per_second: f64, window: Duration, in_flight: usize) -> Samples {
        let begun = clock::instant();
        let slots = Arc::new(Semaphore::new(in_flight));
        let mut running = JoinSet::new();
        let mut samples = Samples::default();
        for number in 0_u32.. {
            let due = begun + Duration::from_secs_f64(f64::from(number) / per_second);
            if due.duration_since(begun) >= window {
                break;
            }
            sleep_until(due.into()).await;
            let slot = slots
                .clone()
                .acquire_owned()
                .await
                .expect("the semaphore is never closed");
            let submitter = self.clone();
            running.spawn(async move {
                let acknowledged = submitter.submit(due).await.is_ok();
                drop(slot);
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

    /// One submit; after a refusal, how long to wait before the next.
    async fn submit(&self, begun: Instant) -> Result<(), Duration> {
        let request = request(self.completions.stamp(begun));
        match self
            .relay
            .tasks()
            .submit(request)
            .await
            .map_err(CliError::from)
        {
            Ok(_) => {
                self.counters.acknowledged.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(CliError::Refused(refusal)) => {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                Err(refusal
                    .retry_after_ms
                    .map_or(REFUSED_PAUSE, Duration::from_millis))
            }
            Err(_) => {
                self.counters.failed.fetch_add(1, Ordering::Relaxed);
                Err(REFUSED_PAUSE)
            }
        }
    }
}

fn request(channel_id: String) -> SubmitRequest {
    let spec = TaskSpec {
        agent: AGENT.to_owned(),
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
