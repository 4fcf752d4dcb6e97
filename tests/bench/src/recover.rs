//! Recover bench: submit latency with an empty and with a full store, disk space per finished task,
//! and the time from a kill until the relay serves again with live tasks in the store.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::v1::{GetTaskRequest, ListTasksRequest, TaskState};
use tokio::time::timeout;

use crate::SETTLE_LIMIT;
use crate::client::BenchClient;
use crate::clock;
use crate::environment::{BenchEnvironment, BenchTarget, SimulatedFleetPlan};
use crate::error::BenchError;
use crate::fleet::completion_recorder::CompletionRecorder;
use crate::fleet::simulated_daemon::SimulatedWork;
use crate::load::{LoadGenerator, LoadMeasurement, LoadShape, submit_request};
use crate::measure::report::{BenchFigure, BenchPhase, BenchReport};
use crate::progress::{BenchProgress, with_progress};
use crate::tasks::disk_phase;

const DAEMONS: usize = 4;
const SLOTS: u32 = 256;
const CONNECTIONS: usize = 8;
/// Tasks of one SubmitMany while the store is filled.
const BATCH_TASKS: usize = 100;
const UNARY_SHAPE: LoadShape = LoadShape {
    in_flight: 64,
    batch: None,
};
const FILL_SHAPE: LoadShape = LoadShape {
    in_flight: 1,
    batch: Some(BATCH_TASKS),
};

#[derive(Clone, Debug)]
pub struct RecoverBenchPlan {
    pub finished: u64,
    pub live: u64,
    /// Submits a second while latencies are measured.
    pub rate: u32,
    pub window: Duration,
    /// The relay's --retain-bytes. Less than the finished tasks need shows the cost of retention.
    pub retain_bytes: String,
}

impl RecoverBenchPlan {
    fn settings(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("finished", self.finished),
            ("live", self.live),
            ("rate", self.rate.into()),
            ("seconds", self.window.as_secs()),
        ]
    }

    fn arguments(&self) -> Vec<String> {
        let max_open = (self.live + 4096).max(8192).to_string();
        let flags = [
            ["--max-open", &max_open],
            ["--max-open-per-tenant", &max_open],
            ["--retain-bytes", &self.retain_bytes],
        ];
        flags
            .iter()
            .flatten()
            .map(|argument| (*argument).to_owned())
            .collect()
    }
}

pub async fn run(
    target: &BenchTarget,
    plan: &RecoverBenchPlan,
    progress: &dyn BenchProgress,
) -> Result<BenchReport, BenchError> {
    let mut environment = BenchEnvironment::open(target, &plan.arguments()).await?;
    let mut report = BenchReport::new("recover", environment.machine.clone(), plan.settings());
    let completions = Arc::new(CompletionRecorder::new());
    let fleet = environment
        .start_fleet(SimulatedFleetPlan {
            daemons: DAEMONS,
            slots: SLOTS,
            work: SimulatedWork::Complete,
            completions: completions.clone(),
        })
        .await?;
    let clients = environment.connect_clients(CONNECTIONS).await?;
    let unary = LoadGenerator::new(clients.clone(), UNARY_SHAPE, completions.clone());
    let filling = LoadGenerator::new(clients.clone(), FILL_SHAPE, completions.clone());
    let tasks = || {
        format!(
            "{} of {} tasks finished",
            completions.completed_count(),
            plan.finished
        )
    };

    // A first, unreported run warms up connections, caches and the allocator.
    measure_submits(&unary, "warm-up", plan).await;
    wait_until_completed(&completions, unary.acknowledged()).await?;
    let _ = environment.relay.usage();
    let empty = measure_submits(&unary, "empty", plan).await;
    wait_until_completed(&completions, unary.acknowledged()).await?;
    let before = submit_p99(&empty);
    report.add_phase(empty.into_phase(environment.relay.usage()));

    let already = unary.acknowledged();
    let fill = filling.submit_until(plan.finished.saturating_sub(already));
    with_progress(progress, fill, tasks).await;
    wait_until_completed(&completions, already + filling.acknowledged()).await?;
    let _ = environment.relay.usage();
    let full = measure_submits(&unary, "full", plan).await;
    wait_until_completed(&completions, unary.acknowledged() + filling.acknowledged()).await?;
    let after = submit_p99(&full);
    report.add_phase(full.into_phase(environment.relay.usage()));
    report.add_phase(disk_phase(
        environment.relay.disk_bytes(),
        completions.completed_count(),
    ));
    drop(fleet);

    let newest = submit_live_tasks(&clients, plan, progress).await?;
    let environment = measure_restart(
        environment,
        plan,
        &newest,
        after / before.max(0.001),
        &mut report,
    )
    .await?;
    environment.close().await?;
    Ok(report)
}

async fn measure_submits(
    load: &LoadGenerator,
    name: &'static str,
    plan: &RecoverBenchPlan,
) -> LoadMeasurement {
    load.run_at_rate(name, plan.rate, plan.window).await
}

async fn wait_until_completed(
    completions: &CompletionRecorder,
    submitted: u64,
) -> Result<(), BenchError> {
    let completed = timeout(SETTLE_LIMIT, completions.wait_until_completed(submitted)).await;
    completed.map_err(|_| {
        let (completed, lost) = (completions.completed_count(), completions.lost_count());
        BenchError::local(
            "the relay lost work",
            format!(
                "{completed} of {submitted} tasks completed, {lost} attempts were revoked or repeated"
            ),
        )
    })
}

fn submit_p99(measured: &LoadMeasurement) -> f64 {
    measured.submit.clone().summary().p99
}

/// Submits tasks while no daemon is connected, so that they are live when the relay is killed.
/// Returns the id of the last one.
async fn submit_live_tasks(
    clients: &[BenchClient],
    plan: &RecoverBenchPlan,
    progress: &dyn BenchProgress,
) -> Result<String, BenchError> {
    let completions = Arc::new(CompletionRecorder::new());
    let waiting = LoadGenerator::new(clients.to_vec(), FILL_SHAPE, completions);
    let line = || {
        format!(
            "{} of {} live tasks submitted",
            waiting.acknowledged(),
            plan.live
        )
    };
    with_progress(progress, waiting.submit_until(plan.live), line).await;
    let last = clients[0]
        .tasks()
        .submit(submit_request(String::new()))
        .await?;
    Ok(last.into_inner().task.unwrap_or_default().task_id)
}

/// Kills the relay, restarts it and measures the time until it listens, answers for a live task and
/// offers a task to a daemon.
async fn measure_restart(
    environment: BenchEnvironment,
    plan: &RecoverBenchPlan,
    newest: &str,
    slowdown: f64,
    report: &mut BenchReport,
) -> Result<BenchEnvironment, BenchError> {
    let killed = clock::instant();
    let since = || clock::instant().duration_since(killed).as_secs_f64();
    let mut environment = environment.kill_and_restart().await?;
    let listening = since();
    let get = GetTaskRequest {
        task_id: newest.to_owned(),
        include_spec: false,
    };
    let client = environment.connect_clients(1).await?.remove(0);
    client.tasks().get(get).await?;
    let answering = since();
    let completions = Arc::new(CompletionRecorder::new());
    let fleet = environment
        .start_fleet(SimulatedFleetPlan {
            daemons: 1,
            slots: SLOTS,
            work: SimulatedWork::Hold,
            completions: completions.clone(),
        })
        .await?;
    let offered = timeout(SETTLE_LIMIT, completions.wait_until_offered(1)).await;
    offered.map_err(|_| BenchError::local("no live task was offered again", "the relay is up"))?;
    let serving = since();
    let known = count_open_tasks(&client, plan.live).await?;
    drop(fleet);
    report.add_phase(
        BenchPhase::new("restart")
            .with("liveTasks", "LIVE TASKS", BenchFigure::Count(known))
            .with(
                "listeningSeconds",
                "LISTENING",
                BenchFigure::Seconds(listening),
            )
            .with(
                "answeringSeconds",
                "ANSWERING",
                BenchFigure::Seconds(answering),
            )
            .with("servingSeconds", "SERVING", BenchFigure::Seconds(serving))
            .with(
                "submitP99Ratio",
                "SUBMIT P99 FULL/EMPTY",
                BenchFigure::Ratio(slowdown),
            )
            .with_usage(environment.relay.usage()),
    );
    report.add_check(
        known >= plan.live,
        format!(
            "every live task is in the store after the kill: {known} of {}",
            plan.live
        ),
    );
    Ok(environment)
}

/// Counts open tasks in the relay's list. Stops at twice the expected number.
async fn count_open_tasks(client: &BenchClient, expected: u64) -> Result<u64, BenchError> {
    let mut request = ListTasksRequest {
        states: [TaskState::Pending, TaskState::Queued, TaskState::Running]
            .map(i32::from)
            .to_vec(),
        page_size: 200,
        ..ListTasksRequest::default()
    };
    let mut count = 0;
    loop {
        let page = client.tasks().list(request.clone()).await?.into_inner();
        count += page.tasks.len() as u64;
        if page.next_page_token.is_empty() || count > 2 * expected {
            return Ok(count);
        }
        request.page_token = page.next_page_token;
    }
}
