//! Output from simulated attempts to those who follow it: every line stored by the relay and received by each watcher.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_proto::v1::read_output_response::Item;
use baton_proto::v1::{ReadOutputRequest, ReadOutputResponse};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Streaming;

use super::load::submit_request_for;
use super::output_writer::{LINE_BYTES, OutputWorkload};
use super::report::{BenchFigure, BenchPhase, BenchReport};
use super::simulated_daemon::{OUTPUT_AGENT_NAME, SimulatedWork};
use super::site::{BenchEnvironment, BenchTarget, SimulatedFleetPlan};
use super::witness::CompletionRecorder;
use super::{SETTLE_LIMIT, with_progress};
use crate::client::relay_client::RelayClient;
use crate::clock;
use crate::error::cli_error::CliError;
use crate::render::console::CliConsole;

#[derive(Clone, Debug)]
pub(crate) struct OutputBenchPlan {
    /// Attempts that write at the same time, each on a daemon of its own.
    pub writers: usize,
    /// Lines of one attempt; the relay stores 64 MiB of each.
    pub lines: u64,
    pub chunk_lines: usize,
    pub watchers: usize,
    /// One after the other: each has new attempts.
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

pub(crate) async fn run(
    place: &BenchTarget,
    plan: &OutputBenchPlan,
    console: &CliConsole,
) -> Result<BenchReport, CliError> {
    let mut site = BenchEnvironment::open(place, &[]).await?;
    let mut report = BenchReport::new("output", site.machine.clone(), plan.settings());
    let witness = Arc::new(CompletionRecorder::new());
    let (begin, begun) = watch::channel(false);
    let writing = OutputWorkload::new(plan.lines, plan.chunk_lines, begun);
    let expected = writing.lines() * plan.writers as u64;
    let fleet = site
        .start_fleet(SimulatedFleetPlan {
            daemons: plan.writers,
            slots: 1,
            work: SimulatedWork::Write(writing),
            witness: witness.clone(),
        })
        .await?;
    let clients = site.connect_clients(plan.watchers).await?;
    for round in 1..=plan.rounds as u64 {
        begin.send_replace(false);
        let received = Arc::new(AtomicU64::new(0));
        let mut watching = JoinSet::new();
        submit_round(&clients, plan.writers, &received, &mut watching).await?;
        let runs = witness.wait_until_running(round * plan.writers as u64);
        let runs = timeout(SETTLE_LIMIT, runs).await;
        runs.map_err(|_| CliError::local("the attempts did not start", "no daemon took them"))?;
        let _ = site.relay.usage();
        begin.send_replace(true);
        let from = clock::instant();
        let line = || {
            format!(
                "round {round}: {} lines received",
                received.load(Ordering::Relaxed)
            )
        };
        let totals =
            with_progress(console, lines_per_watcher(watching, plan.watchers), line).await?;
        let done = witness.wait_until_completed(round * plan.writers as u64);
        let done = timeout(SETTLE_LIMIT, done).await;
        done.map_err(|_| CliError::local("the attempts did not end", "their output may be lost"))?;
        let elapsed = clock::instant().duration_since(from);
        report.add_phase(round_phase(expected, elapsed).with_usage(site.relay.usage()));
        report.add_check(
            totals.iter().all(|lines| *lines == expected),
            format!(
                "round {round}: {expected} lines were written; the watchers received {totals:?}"
            ),
        );
    }
    drop(fleet);
    site.close().await?;
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

/// Tasks for this round, each followed by every watcher from its first byte.
async fn submit_round(
    watchers: &[RelayClient],
    writers: usize,
    received: &Arc<AtomicU64>,
    watching: &mut JoinSet<(usize, Result<u64, CliError>)>,
) -> Result<(), CliError> {
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

/// Lines that arrived, in order and without a gap.
async fn count_lines(
    mut stream: Streaming<ReadOutputResponse>,
    received: &AtomicU64,
) -> Result<u64, CliError> {
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
                return Err(CliError::local(
                    "output has a gap",
                    format!("after byte {at}"),
                ));
            }
            Some(Item::End(_)) | None => {}
        }
    }
    Ok(lines)
}

/// What each watcher received of all attempts.
async fn lines_per_watcher(
    mut watching: JoinSet<(usize, Result<u64, CliError>)>,
    watchers: usize,
) -> Result<Vec<u64>, CliError> {
    let mut totals = vec![0; watchers];
    while let Some(ended) = watching.join_next().await {
        let (number, lines) = ended.map_err(|e| CliError::local("a watcher panicked", e))?;
        totals[number] += lines?;
    }
    Ok(totals)
}
