//! What stored work costs: submits against an empty store and against a full one, disk per finished task, and the time from a kill to
//! serving again with live tasks in the store.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::v1::{GetTaskRequest, ListTasksRequest, TaskState};
use tokio::time::timeout;

use super::load::{LoadGenerator, LoadMeasurement, LoadShape, submit_request};
use super::report::{BenchFigure, BenchPhase, BenchReport};
use super::simulated_daemon::SimulatedWork;
use super::site::{BenchEnvironment, BenchTarget, SimulatedFleetPlan};
use super::tasks::disk_phase;
use super::witness::CompletionRecorder;
use super::{SETTLE_LIMIT, with_progress};
use crate::client::relay_client::RelayClient;
use crate::clock;
use crate::error::cli_error::CliError;
use crate::render::console::CliConsole;

const DAEMONS: usize = 4;
const SLOTS: u32 = 256;
const CONNECTIONS: usize = 8;
/// Rows of one SubmitMany while the store is filled.
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
pub(crate) struct RecoverBenchPlan {
    pub finished: u64,
    pub live: u64,
    /// Submits a second while latencies are taken.
    pub rate: u32,
    pub window: Duration,
    /// What the relay may keep on its disk; less than the finished tasks take shows what retention does.
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
        let most = (self.live + 4096).max(8192).to_string();
        let words = [
            ["--max-open", &most],
            ["--max-open-per-tenant", &most],
            ["--retain-bytes", &self.retain_bytes],
        ];
        words
            .iter()
            .flatten()
            .map(|word| (*word).to_owned())
            .collect()
    }
}

pub(crate) async fn run(
    place: &BenchTarget,
    plan: &RecoverBenchPlan,
    console: &CliConsole,
) -> Result<BenchReport, CliError> {
    let mut site = BenchEnvironment::open(place, &plan.arguments()).await?;
    let mut report = BenchReport::new("recover", site.machine.clone(), plan.settings());
    let witness = Arc::new(CompletionRecorder::new());
    let fleet = site
        .start_fleet(SimulatedFleetPlan {
            daemons: DAEMONS,
            slots: SLOTS,
            work: SimulatedWork::Complete,
            witness: witness.clone(),
        })
        .await?;
    let clients = site.connect_clients(CONNECTIONS).await?;
    let unary = LoadGenerator::new(clients.clone(), UNARY_SHAPE, witness.clone());
    let filling = LoadGenerator::new(clients.clone(), FILL_SHAPE, witness.clone());
    let tasks = || {
        format!(
            "{} of {} tasks finished",
            witness.completed_count(),
            plan.finished
        )
    };

    // The first of them warms everything up.
    measure_submits(&unary, "warm-up", plan).await;
    wait_until_completed(&witness, unary.acknowledged()).await?;
    let _ = site.relay.usage();
    let empty = measure_submits(&unary, "empty", plan).await;
    wait_until_completed(&witness, unary.acknowledged()).await?;
    let before = submit_p99(&empty);
    report.add_phase(empty.into_phase(site.relay.usage()));

    let already = unary.acknowledged();
    let fill = filling.submit_until(plan.finished.saturating_sub(already));
    with_progress(console, fill, tasks).await;
    wait_until_completed(&witness, already + filling.acknowledged()).await?;
    let _ = site.relay.usage();
    let full = measure_submits(&unary, "full", plan).await;
    wait_until_completed(&witness, unary.acknowledged() + filling.acknowledged()).await?;
    let after = submit_p99(&full);
    report.add_phase(full.into_phase(site.relay.usage()));
    report.add_phase(disk_phase(
        site.relay.disk_bytes(),
        witness.completed_count(),
    ));
    drop(fleet);

    let newest = submit_live_tasks(&clients, plan, console).await?;
    let site = measure_restart(site, plan, &newest, after / before.max(0.001), &mut report).await?;
    site.close().await?;
    Ok(report)
}

async fn measure_submits(
    load: &LoadGenerator,
    name: &'static str,
    plan: &RecoverBenchPlan,
) -> LoadMeasurement {
    load.run_at_rate(name, plan.rate, plan.window).await
}

/// All that was asked for has completed.
async fn wait_until_completed(witness: &CompletionRecorder, asked: u64) -> Result<(), CliError> {
    let completed = timeout(SETTLE_LIMIT, witness.wait_until_completed(asked)).await;
    completed.map_err(|_| {
        let (completed, lost) = (witness.completed_count(), witness.lost_count());
        CliError::local(
            "the relay lost work",
            format!("{completed} of {asked} tasks completed, {lost} attempts were taken away or done again"),
        )
    })
}

fn submit_p99(stretch: &LoadMeasurement) -> f64 {
    stretch.submit.clone().summary().p99
}

/// Tasks that nobody takes, so that they are live when the relay dies. Gives the id of the last.
async fn submit_live_tasks(
    clients: &[RelayClient],
    plan: &RecoverBenchPlan,
    console: &CliConsole,
) -> Result<String, CliError> {
    let witness = Arc::new(CompletionRecorder::new());
    let waiting = LoadGenerator::new(clients.to_vec(), FILL_SHAPE, witness);
    let line = || {
        format!(
            "{} of {} live tasks submitted",
            waiting.acknowledged(),
            plan.live
        )
    };
    with_progress(console, waiting.submit_until(plan.live), line).await;
    let last = clients[0]
        .tasks()
        .submit(submit_request(String::new()))
        .await?;
    Ok(last.into_inner().task.unwrap_or_default().task_id)
}

/// Kills the relay and times it back: listening, answering for a live task, and giving one to a daemon.
async fn measure_restart(
    site: BenchEnvironment,
    plan: &RecoverBenchPlan,
    newest: &str,
    slowdown: f64,
    report: &mut BenchReport,
) -> Result<BenchEnvironment, CliError> {
    let killed = clock::instant();
    let since = || clock::instant().duration_since(killed).as_secs_f64();
    let mut site = site.kill_and_restart().await?;
    let listening = since();
    let get = GetTaskRequest {
        task_id: newest.to_owned(),
        include_spec: false,
    };
    let client = site.connect_clients(1).await?.remove(0);
    client.tasks().get(get).await?;
    let answering = since();
    let witness = Arc::new(CompletionRecorder::new());
    let fleet = site
        .start_fleet(SimulatedFleetPlan {
            daemons: 1,
            slots: SLOTS,
            work: SimulatedWork::Hold,
            witness: witness.clone(),
        })
        .await?;
    let offered = timeout(SETTLE_LIMIT, witness.wait_until_offered(1)).await;
    offered.map_err(|_| CliError::local("no live task was offered again", "the relay is up"))?;
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
            .with_usage(site.relay.usage()),
    );
    report.add_check(
        known >= plan.live,
        format!(
            "every live task is there after the kill: {known} of {}",
            plan.live
        ),
    );
    Ok(site)
}

/// Open tasks by the relay's own list.
async fn count_open_tasks(client: &RelayClient, enough: u64) -> Result<u64, CliError> {
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
        if page.next_page_token.is_empty() || count > 2 * enough {
            return Ok(count);
        }
        request.page_token = page.next_page_token;
    }
}
