//! Output bench: simulated attempts write lines, the relay stores them, and every watcher receives
//! each line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_proto::v1::read_output_response::Item;
use baton_proto::v1::{ReadOutputRequest, ReadOutputResponse};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Streaming;

use crate::SETTLE_LIMIT;
use crate::client::BenchClient;
use crate::clock;
use crate::environment::{BenchEnvironment, BenchTarget, SimulatedFleetPlan};
use crate::error::BenchError;
use crate::fleet::completion_recorder::CompletionRecorder;
use crate::fleet::output_writer::{LINE_BYTES, OutputWorkload};
use crate::fleet::simulated_daemon::{OUTPUT_AGENT_NAME, SimulatedWork};
use crate::load::submit_request_for;
use crate::measure::report::{BenchFigure, BenchPhase, BenchReport};
use crate::progress::{BenchProgress, with_progress};

#[derive(Clone, Debug)]
pub struct OutputBenchPlan {
    /// Attempts that write at the same time, each on its own daemon.
    pub writers: usize,
    /// Lines of one attempt; the relay stores at most 64 MiB of each attempt.
    pub lines: u64,
    pub chunk_lines: usize,
    pub watchers: usize,
    /// Rounds run one after the other, each with new attempts.
    pub rounds: usize,
}

impl OutputBenchPlan {
    fn settings(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("writers", self.writers as u64),
            ("linesPerWriter", self.lines),
            ("lineBytes", LINE_BYTES as u64),
            ("chunkBytes", (self.chunk_lines * LINE_BYTES) as u64),
            ("watchers", self.watchers as u64),
            ("rounds", self.rounds as u64),
        ]
    }
}

pub async fn run(
    target: &BenchTarget,
    plan: &OutputBenchPlan,
    progress: &dyn BenchProgress,
) -> Result<BenchReport, BenchError> {
    let mut environment = BenchEnvironment::open(target, &[]).await?;
    let mut report = BenchReport::new("output", environment.machine.clone(), plan.settings());
    let completions = Arc::new(CompletionRecorder::new());
    let (begin, begun) = watch::channel(false);
    let writing = OutputWorkload::new(plan.lines, plan.chunk_lines, begun);
    let expected = writing.lines() * plan.writers as u64;
    let fleet = environment
        .start_fleet(SimulatedFleetPlan {
            daemons: plan.writers,
            slots: 1,
            work: SimulatedWork::Write(writing),
            completions: completions.clone(),
        })
        .await?;
    let clients = environment.connect_clients(plan.watchers).await?;
    for round in 1..=plan.rounds as u64 {
        begin.send_replace(false);
        let received = Arc::new(AtomicU64::new(0));
        let mut watching = JoinSet::new();
        submit_round(&clients, plan.writers, &received, &mut watching).await?;
        let runs = completions.wait_until_running(round * plan.writers as u64);
        let runs = timeout(SETTLE_LIMIT, runs).await;
        runs.map_err(|_| BenchError::local("the attempts did not start", "no daemon took them"))?;
        let _ = environment.relay.usage();
        begin.send_replace(true);
        let from = clock::instant();
        let line = || {
            format!(
                "round {round}: {} lines received",
                received.load(Ordering::Relaxed)
            )
        };
        let totals =
            with_progress(progress, lines_per_watcher(watching, plan.watchers), line).await?;
        let done = completions.wait_until_completed(round * plan.writers as u64);
        let done = timeout(SETTLE_LIMIT, done).await;
        done.map_err(|_| {
            BenchError::local("the attempts did not end", "their output may be lost")
        })?;
        let elapsed = clock::instant().duration_since(from);
        report.add_phase(round_phase(expected, elapsed).with_usage(environment.relay.usage()));
        report.add_check(
            totals.iter().all(|lines| *lines == expected),
            format!(
                "round {round}: {expected} lines were written; the watchers received {totals:?}"
            ),
        );
    }
    drop(fleet);
    environment.close().await?;
    Ok(report)
}

fn round_phase(lines: u64, elapsed: Duration) -> BenchPhase {
    let seconds = elapsed.as_secs_f64();
    let bytes = lines * LINE_BYTES as u64;
    BenchPhase::new("round")
        .with("lines", "LINES", BenchFigure::Count(lines))
        .with("seconds", "TIME", BenchFigure::Seconds(seconds))
        .with(
            "linesPerSecond",
            "LINES/S",
            BenchFigure::PerSecond(lines as f64 / seconds),
        )
        .with(
            "bytesPerSecond",
            "BYTES/S",
            BenchFigure::Bytes((bytes as f64 / seconds) as u64),
        )
}

/// Submits the tasks of a round; every watcher follows each of them from the first byte.
async fn submit_round(
    watchers: &[BenchClient],
    writers: usize,
    received: &Arc<AtomicU64>,
    watching: &mut JoinSet<(usize, Result<u64, BenchError>)>,
) -> Result<(), BenchError> {
    for _ in 0..writers {
        let mut tasks = watchers[0].tasks();
        let submitted = tasks
            .submit(submit_request_for(OUTPUT_AGENT_NAME, String::new()))
            .await?
            .into_inner();
        let task_id = submitted.task.unwrap_or_default().task_id;
        for (number, relay) in watchers.iter().enumerate() {
            let request = ReadOutputRequest {
                task_id: task_id.clone(),
                follow: true,
                ..ReadOutputRequest::default()
            };
            let stream = relay.tasks().read_output(request).await?.into_inner();
            let received = received.clone();
            watching.spawn(async move { (number, count_lines(stream, &received).await) });
        }
    }
    Ok(())
}

/// Counts the lines of one stream and fails if a chunk is missing or out of order.
async fn count_lines(
    mut stream: Streaming<ReadOutputResponse>,
    received: &AtomicU64,
) -> Result<u64, BenchError> {
    let (mut lines, mut at) = (0, 0);
    while let Some(message) = stream.message().await? {
        match message.item {
            Some(Item::Chunk(chunk)) if chunk.offset == at => {
                let fresh = chunk.data.iter().filter(|byte| **byte == b'\n').count() as u64;
                lines += fresh;
                at = chunk.end_offset;
                received.fetch_add(fresh, Ordering::Relaxed);
            }
            Some(Item::Chunk(_) | Item::Cut(_)) => {
                return Err(BenchError::local(
                    "output has a gap",
                    format!("after byte {at}"),
                ));
            }
            Some(Item::End(_)) | None => {}
        }
    }
    Ok(lines)
}

/// The number of lines that each watcher received from all attempts.
async fn lines_per_watcher(
    mut watching: JoinSet<(usize, Result<u64, BenchError>)>,
    watchers: usize,
) -> Result<Vec<u64>, BenchError> {
    let mut totals = vec![0; watchers];
    while let Some(ended) = watching.join_next().await {
        let (number, lines) = ended.map_err(|e| BenchError::local("a watcher panicked", e))?;
        totals[number] += lines?;
    }
    Ok(totals)
}
