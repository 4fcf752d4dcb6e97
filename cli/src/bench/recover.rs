//! What stored work costs: submits against an empty store and against a full one, disk per finished task, and the time from a kill to
//! serving again with live tasks in the store.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::v1::{GetTaskRequest, ListTasksRequest, TaskState};
use tokio::time::timeout;

use super::load::{Load, Shape, Stretch, request};
use super::report::{Figure, Phase, Report};
use super::simulated_daemon::Work;
use super::site::{FleetPlan, Place, Site};
use super::tasks::disk;
use super::witness::Witness;
use super::{SETTLE_LIMIT, shown};
use crate::client::Relay;
use crate::clock;
use crate::console::Console;
use crate::errors::CliError;

const DAEMONS: usize = 4;
const SLOTS: u32 = 256;
const CONNECTIONS: usize = 8;
/// Rows of one SubmitMany while the store is filled.
const ROWS: usize = 100;
const UNARY: Shape = Shape {
    in_flight: 64,
    batch: None,
};
const FILLING: Shape = Shape {
    in_flight: 1,
    batch: Some(ROWS),
};

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub finished: u64,
    pub live: u64,
    /// Submits a second while latencies are taken.
    pub rate: u32,
    pub window: Duration,
    /// What the relay may keep on its disk; less than the finished tasks take shows what retention does.
    pub retain: String,
}

impl Plan {
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
            ["--retain-bytes", &self.retain],
        ];
        words
            .iter()
            .flatten()
            .map(|word| (*word).to_owned())
            .collect()
    }
}

pub(crate) async fn run(place: &Place, plan: &Plan, console: &Console) -> Result<Report, CliError> {
    let mut site = Site::open(place, &plan.arguments()).await?;
    let mut report = Report::new("recover", site.machine.clone(), plan.settings());
    let witness = Arc::new(Witness::new());
    let fleet = site
        .fleet(FleetPlan {
            daemons: DAEMONS,
            slots: SLOTS,
            work: Work::Complete,
            witness: witness.clone(),
        })
        .await?;
    let clients = site.clients(CONNECTIONS).await?;
    let unary = Load::new(clients.clone(), UNARY, witness.clone());
    let filling = Load::new(clients.clone(), FILLING, witness.clone());
    let tasks = || format!("{} of {} tasks finished", witness.count(), plan.finished);

    // The first of them warms everything up.
    measure(&unary, "warm-up", plan).await;
    settled(&witness, unary.acknowledged()).await?;
    let _ = site.relay.usage();
    let empty = measure(&unary, "empty", plan).await;
    settled(&witness, unary.acknowledged()).await?;
    let before = p99(&empty);
    report.phase(empty.phase(site.relay.usage()));

    let already = unary.acknowledged();
    let fill = filling.fill(plan.finished.saturating_sub(already));
    shown(console, fill, tasks).await;
    settled(&witness, already + filling.acknowledged()).await?;
    let _ = site.relay.usage();
    let full = measure(&unary, "full", plan).await;
    settled(&witness, unary.acknowledged() + filling.acknowledged()).await?;
    let after = p99(&full);
    report.phase(full.phase(site.relay.usage()));
    report.phase(disk(site.relay.disk_bytes(), witness.count()));
    drop(fleet);

    let newest = live(&clients, plan, console).await?;
    let site = restart(site, plan, &newest, after / before.max(0.001), &mut report).await?;
    site.close().await?;
    Ok(report)
}

async fn measure(load: &Load, name: &'static str, plan: &Plan) -> Stretch {
    load.steady(name, plan.rate, plan.window).await
}

/// All that was asked for has completed.
async fn settled(witness: &Witness, asked: u64) -> Result<(), CliError> {
    let completed = timeout(SETTLE_LIMIT, witness.until_completed(asked)).await;
    completed.map_err(|_| {
        let (completed, lost) = (witness.count(), witness.lost());
        CliError::local(
            "the relay lost work",
            format!("{completed} of {asked} tasks completed, {lost} attempts were taken away or done again"),
        )
    })
}

fn p99(stretch: &Stretch) -> f64 {
    stretch.submit.clone().summary().p99
}

/// Tasks that nobody takes, so that they are live when the relay dies. Gives the id of the last.
async fn live(clients: &[Relay], plan: &Plan, console: &Console) -> Result<String, CliError> {
    let witness = Arc::new(Witness::new());
    let waiting = Load::new(clients.to_vec(), FILLING, witness);
    let line = || {
        format!(
            "{} of {} live tasks submitted",
            waiting.acknowledged(),
            plan.live
        )
    };
    shown(console, waiting.fill(plan.live), line).await;
    let last = clients[0].tasks().submit(request(String::new())).await?;
    Ok(last.into_inner().task.unwrap_or_default().task_id)
}

/// Kills the relay and times it back: listening, answering for a live task, and giving one to a daemon.
async fn restart(
    site: Site,
    plan: &Plan,
    newest: &str,
    slowdown: f64,
    report: &mut Report,
) -> Result<Site, CliError> {
    let killed = clock::instant();
    let since = || clock::instant().duration_since(killed).as_secs_f64();
    let mut site = site.crash_and_start().await?;
    let listening = since();
    let get = GetTaskRequest {
        task_id: newest.to_owned(),
        include_spec: false,
    };
    let client = site.clients(1).await?.remove(0);
    client.tasks().get(get).await?;
    let answering = since();
    let witness = Arc::new(Witness::new());
    let fleet = site
        .fleet(FleetPlan {
            daemons: 1,
            slots: SLOTS,
            work: Work::Hold,
            witness: witness.clone(),
        })
        .await?;
    let offered = timeout(SETTLE_LIMIT, witness.until_offered(1)).await;
    offered.map_err(|_| CliError::local("no live task was offered again", "the relay is up"))?;
    let serving = since();
    let known = count_live(&client, plan.live).await?;
    drop(fleet);
    report.phase(
        Phase::new("restart")
            .with("liveTasks", "LIVE TASKS", Figure::Count(known))
            .with("listeningSeconds", "LISTENING", Figure::Seconds(listening))
            .with("answeringSeconds", "ANSWERING", Figure::Seconds(answering))
            .with("servingSeconds", "SERVING", Figure::Seconds(serving))
            .with(
                "submitP99Ratio",
                "SUBMIT P99 FULL/EMPTY",
                Figure::Ratio(slowdown),
            )
            .used(site.relay.usage()),
    );
    report.check(
        known >= plan.live,
        format!(
            "every live task is there after the kill: {known} of {}",
            plan.live
        ),
    );
    Ok(site)
}

/// Open tasks by the relay's own list.
async fn count_live(client: &Relay, enough: u64) -> Result<u64, CliError> {
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
