//! `baton pause` and `baton unpause`: stop and resume the dispatch of tasks, of a tenant, or of everything.
//! Running attempts continue.

use std::time::Duration;

use baton_proto::v1::{
    PauseRequest, SchedulerStatusRequest, UnpauseRequest, pause_request, unpause_request,
};
use clap::Args;
use serde_json::{Value, json};

use crate::args::duration;
use crate::client::discovery::ConnectionArgs;
use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::clock;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::render::sanitizer::one_line;

/// Time between two checks for running tasks.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Exactly one kind of target.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct PauseTargetArgs {
    /// Ids of tasks, or unique prefixes of them.
    #[arg(value_name = "TASK")]
    task_ids: Vec<String>,

    /// All tasks of this tenant.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// All dispatching. For administrators of all tenants.
    #[arg(long)]
    scheduler: bool,
}

#[derive(Clone, Debug)]
enum PauseTarget {
    Task(String),
    Tenant(String),
    Scheduler,
}

impl PauseTargetArgs {
    /// For a command that needs a reason: with a blank one nothing is searched.
    async fn resolve_with_reason(
        self,
        relay: &RelayClient,
        reason: &str,
    ) -> Result<Vec<PauseTarget>, CliError> {
        let task_ids =
            id_prefix::resolve_task_ids_with_reason(relay, &self.task_ids, reason).await?;
        Ok(self.into_targets(task_ids))
    }

    async fn resolve(self, relay: &RelayClient) -> Result<Vec<PauseTarget>, CliError> {
        let mut task_ids = Vec::new();
        for given in &self.task_ids {
            task_ids.push(id_prefix::resolve_task_id(relay, given).await?);
        }
        Ok(self.into_targets(task_ids))
    }

    fn into_targets(self, task_ids: Vec<String>) -> Vec<PauseTarget> {
        if self.scheduler {
            return vec![PauseTarget::Scheduler];
        }
        match self.tenant {
            Some(tenant) => vec![PauseTarget::Tenant(tenant)],
            None => task_ids.into_iter().map(PauseTarget::Task).collect(),
        }
    }
}

impl PauseTarget {
    fn name(&self) -> String {
        match self {
            PauseTarget::Task(id) => one_line(id),
            PauseTarget::Tenant(name) => format!("tenant {}", one_line(name)),
            PauseTarget::Scheduler => "all dispatching".to_owned(),
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    targets: PauseTargetArgs,

    /// Reason, for people who see the task waiting.
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// With --scheduler: wait until no task runs any more, for at most this long, for example 60s.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "scheduler")]
    drain: Option<Duration>,

    /// Print one JSON object with a row for each target.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

#[derive(Args, Debug)]
pub(crate) struct UnpauseArgs {
    #[command(flatten)]
    targets: PauseTargetArgs,

    /// Reason, for people who read it later.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reason: String,

    /// Print one JSON object with a row for each target.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn pause(args: PauseArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let mut rows = Vec::new();
    for target in args
        .targets
        .resolve_with_reason(&relay, &args.reason)
        .await?
    {
        let name = target.name();
        let request = PauseRequest {
            target: Some(match target {
                PauseTarget::Task(id) => pause_request::Target::TaskId(id),
                PauseTarget::Tenant(tenant) => pause_request::Target::Tenant(tenant),
                PauseTarget::Scheduler => pause_request::Target::Scheduler(true),
            }),
            reason: args.reason.clone(),
        };
        let answer = relay.operator().pause(request).await;
        let already = answer.map(|answer| answer.into_inner().already_paused);
        let result = |already| {
            if already { "paused before" } else { "paused" }
        };
        rows.push((name, already.map(result).map_err(CliError::from)));
    }
    let exit = print_outcomes(rows, args.json, console)?;
    match args.drain {
        Some(most) if exit == CommandExit::Done => wait_until_drained(&relay, most, console).await,
        Some(_) | None => Ok(exit),
    }
}

pub(crate) async fn unpause(
    args: UnpauseArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let mut rows = Vec::new();
    for target in args.targets.resolve(&relay).await? {
        let name = target.name();
        let request = UnpauseRequest {
            target: Some(match target {
                PauseTarget::Task(id) => unpause_request::Target::TaskId(id),
                PauseTarget::Tenant(tenant) => unpause_request::Target::Tenant(tenant),
                PauseTarget::Scheduler => unpause_request::Target::Scheduler(true),
            }),
            reason: args.reason.clone(),
        };
        let answer = relay.operator().unpause(request).await;
        let was = answer.map(|answer| answer.into_inner().was_paused);
        let result = |was| if was { "unpaused" } else { "was not paused" };
        rows.push((name, was.map(result).map_err(CliError::from)));
    }
    print_outcomes(rows, args.json, console)
}

type PauseOutcome = (String, Result<&'static str, CliError>);

/// A single rejected target is the error of the command; several targets get a row each.
fn print_outcomes(
    mut rows: Vec<PauseOutcome>,
    json: bool,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    if let [(_, Err(_))] = &rows[..]
        && let Some((_, Err(error))) = rows.pop()
    {
        return Err(error);
    }
    if json {
        let row = |(name, outcome): &PauseOutcome| match outcome {
            Ok(result) => json!({ "target": name, "result": result }),
            Err(error) => json!({ "target": name, "error": error.to_string() }),
        };
        let rows: Vec<Value> = rows.iter().map(row).collect();
        console.json(&json!({ "results": rows }))?;
    } else {
        for (name, outcome) in &rows {
            match outcome {
                Ok(result) => console.line(&format!("{name}: {result}"))?,
                Err(error) => console.note(&format!("{name}: {error}")),
            }
        }
    }
    let errors = rows
        .iter()
        .filter_map(|(_, outcome)| outcome.as_ref().err());
    Ok(errors
        .map(CliError::exit)
        .next()
        .unwrap_or(CommandExit::Done))
}

async fn wait_until_drained(
    relay: &RelayClient,
    most: Duration,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let end = clock::instant() + most;
    loop {
        let request = SchedulerStatusRequest {};
        let status = relay
            .operator()
            .scheduler_status(request)
            .await?
            .into_inner();
        if status.running == 0 {
            console.note("no task runs any more");
            return Ok(CommandExit::Done);
        }
        if clock::instant() >= end {
            let still_running = match status.running {
                1 => "1 task is still running".to_owned(),
                count => format!("{count} tasks are still running"),
            };
            console.note(&format!("{still_running}; dispatching stays paused"));
            return Ok(CommandExit::NotCompleted);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
