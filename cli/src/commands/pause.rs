//! `baton pause` and `baton unpause`: tasks, a tenant, or all dispatching. What runs goes on.

use std::time::Duration;

use baton_proto::v1::{
    PauseRequest, SchedulerStatusRequest, UnpauseRequest, pause_request, unpause_request,
};
use clap::Args;
use serde_json::{Value, json};

use crate::client::Relay;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::ids;
use crate::sanitize::one_line;
use crate::{clock, duration};

/// Between two looks at what still runs.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Exactly one kind of them.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct Targets {
    /// Ids of tasks, or as much of each as no other task has.
    #[arg(value_name = "TASK")]
    task_ids: Vec<String>,

    /// All work of this tenant.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// All dispatching. For admins of all tenants.
    #[arg(long)]
    scheduler: bool,
}

#[derive(Clone, Debug)]
enum Target {
    Task(String),
    Tenant(String),
    Scheduler,
}

impl Targets {
    /// For a verb that needs a reason: a blank one is refused before anything is looked for.
    async fn all_because(self, relay: &Relay, reason: &str) -> Result<Vec<Target>, CliError> {
        let task_ids = ids::tasks_because(relay, &self.task_ids, reason).await?;
        Ok(self.among(task_ids))
    }

    async fn all(self, relay: &Relay) -> Result<Vec<Target>, CliError> {
        let mut task_ids = Vec::new();
        for given in &self.task_ids {
            task_ids.push(ids::task(relay, given).await?);
        }
        Ok(self.among(task_ids))
    }

    fn among(self, task_ids: Vec<String>) -> Vec<Target> {
        if self.scheduler {
            return vec![Target::Scheduler];
        }
        match self.tenant {
            Some(tenant) => vec![Target::Tenant(tenant)],
            None => task_ids.into_iter().map(Target::Task).collect(),
        }
    }
}

impl Target {
    fn name(&self) -> String {
        match self {
            Target::Task(id) => one_line(id),
            Target::Tenant(name) => format!("tenant {}", one_line(name)),
            Target::Scheduler => "all dispatching".to_owned(),
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    targets: Targets,

    /// Why, for those who wonder why it waits.
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// With --scheduler: wait until nothing runs any more, for at most this long, for example 60s. Then the relay is drained.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "scheduler")]
    drain: Option<Duration>,

    /// Print one JSON object with a row for each.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: RelayArgs,
}

#[derive(Args, Debug)]
pub(crate) struct UnpauseArgs {
    #[command(flatten)]
    targets: Targets,

    /// Why, for those who look at it later.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reason: String,

    /// Print one JSON object with a row for each.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn pause(args: PauseArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let mut rows = Vec::new();
    for target in args.targets.all_because(&relay, &args.reason).await? {
        let name = target.name();
        let request = PauseRequest {
            target: Some(match target {
                Target::Task(id) => pause_request::Target::TaskId(id),
                Target::Tenant(tenant) => pause_request::Target::Tenant(tenant),
                Target::Scheduler => pause_request::Target::Scheduler(true),
            }),
            reason: args.reason.clone(),
        };
        let answer = relay.operator().pause(request).await;
        let already = answer.map(|answer| answer.into_inner().already_paused);
        let word = |already| if already { "paused before" } else { "paused" };
        rows.push((name, already.map(word).map_err(CliError::from)));
    }
    let exit = tell(rows, args.json, console)?;
    match args.drain {
        Some(most) if exit == Exit::Done => drained(&relay, most, console).await,
        Some(_) | None => Ok(exit),
    }
}

pub(crate) async fn unpause(args: UnpauseArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let mut rows = Vec::new();
    for target in args.targets.all(&relay).await? {
        let name = target.name();
        let request = UnpauseRequest {
            target: Some(match target {
                Target::Task(id) => unpause_request::Target::TaskId(id),
                Target::Tenant(tenant) => unpause_request::Target::Tenant(tenant),
                Target::Scheduler => unpause_request::Target::Scheduler(true),
            }),
            reason: args.reason.clone(),
        };
        let answer = relay.operator().unpause(request).await;
        let was = answer.map(|answer| answer.into_inner().was_paused);
        let word = |was| if was { "unpaused" } else { "was not paused" };
        rows.push((name, was.map(word).map_err(CliError::from)));
    }
    tell(rows, args.json, console)
}

type Row = (String, Result<&'static str, CliError>);

/// One that was refused is that refusal; of several, each has its row.
fn tell(mut rows: Vec<Row>, json: bool, console: &Console) -> Result<Exit, CliError> {
    if let [(_, Err(_))] = &rows[..]
        && let Some((_, Err(error))) = rows.pop()
    {
        return Err(error);
    }
    if json {
        let row = |(name, outcome): &Row| match outcome {
            Ok(word) => json!({ "target": name, "result": word }),
            Err(error) => json!({ "target": name, "error": error.to_string() }),
        };
        let rows: Vec<Value> = rows.iter().map(row).collect();
        console.json(&json!({ "results": rows }))?;
    } else {
        for (name, outcome) in &rows {
            match outcome {
                Ok(word) => console.line(&format!("{name}: {word}"))?,
                Err(error) => console.note(&format!("{name}: {error}")),
            }
        }
    }
    let worst = rows
        .iter()
        .filter_map(|(_, outcome)| outcome.as_ref().err());
    Ok(worst.map(CliError::exit).next().unwrap_or(Exit::Done))
}

async fn drained(relay: &Relay, most: Duration, console: &Console) -> Result<Exit, CliError> {
    let end = clock::instant() + most;
    loop {
        let request = SchedulerStatusRequest {};
        let status = relay
            .operator()
            .scheduler_status(request)
            .await?
            .into_inner();
        if status.running == 0 {
            console.note("nothing runs any more");
            return Ok(Exit::Done);
        }
        if clock::instant() >= end {
            console.note(&format!(
                "{} tasks still run; dispatching stays paused",
                status.running
            ));
            return Ok(Exit::NotCompleted);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
