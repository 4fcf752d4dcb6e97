//! `baton progress`: shows the progress of a task, or adds to it.

use baton_proto::to_json;
use baton_proto::v1::{
    AgentProgressRequest, FailedItem, GetTaskRequest, ProgressUpdate, Task, UpdateProgressRequest,
};
use clap::Args;

use crate::args::shared_args::{JsonOutputArg, LeaseHolderArg, TaskIdArg};
use crate::client::discovery::ConnectionArgs;
use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::commands::agent::lease;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::follow::task_follower::missing_task_error;
use crate::render::console::CliConsole;
use crate::render::progress_view;

#[derive(Args, Debug)]
pub(crate) struct ProgressArgs {
    #[command(flatten)]
    task: TaskIdArg,

    /// Replace the summary.
    #[arg(long, value_name = "TEXT")]
    summary: Option<String>,

    /// Replace the cursor: where to continue.
    #[arg(long, value_name = "TEXT")]
    cursor: Option<String>,

    /// Add a completed item. May be repeated.
    #[arg(long = "done", value_name = "ITEM")]
    done: Vec<String>,

    /// Add a failed item as ITEM=REASON. May be repeated.
    #[arg(long = "failed", value_name = "ITEM=REASON", value_parser = with_reason)]
    failed: Vec<(String, String)>,

    #[command(flatten)]
    holder: LeaseHolderArg,

    #[command(flatten)]
    json: JsonOutputArg,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: ProgressArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let task_id = args.task.resolve(&relay).await?;
    let json = args.json.json;
    let attempt = args.holder.attempt.clone();
    let task = match (progress_update(args), attempt) {
        (Some(update), Some(attempt)) => {
            let attempt = id_prefix::resolve_attempt_id(&relay, &task_id, &attempt).await?;
            let request = AgentProgressRequest {
                lease: Some(lease::lease_from_environment(task_id.clone(), attempt)?),
                update: Some(update),
                ..AgentProgressRequest::default()
            };
            relay.agents().progress(request).await?;
            get_task(&relay, task_id).await?
        }
        (Some(update), None) => {
            let request = UpdateProgressRequest {
                task_id,
                update: Some(update),
            };
            let updated = relay.tasks().update_progress(request).await;
            let updated =
                updated.map_err(|status| lease::with_holder_hint(status.into(), "progress"))?;
            updated.into_inner().task
        }
        (None, _) => get_task(&relay, task_id).await?,
    };
    let task = task.ok_or_else(missing_task_error)?;
    if json {
        console.json(&to_json(&task))?;
        return Ok(CommandExit::Done);
    }
    let Some(progress) = &task.progress else {
        console.note("the task has reported no progress");
        return Ok(CommandExit::Done);
    };
    for line in progress_view::progress_lines(progress) {
        console.line(&line)?;
    }
    Ok(CommandExit::Done)
}

async fn get_task(relay: &RelayClient, task_id: String) -> Result<Option<Task>, CliError> {
    let request = GetTaskRequest {
        task_id,
        include_spec: false,
    };
    Ok(relay.tasks().get(request).await?.into_inner().task)
}

/// The reason is required, because whatever continues the task needs it.
fn with_reason(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((item, reason)) if !item.trim().is_empty() && !reason.trim().is_empty() => {
            Ok((item.to_owned(), reason.to_owned()))
        }
        Some(_) | None => Err("write what failed and why: ITEM=REASON".to_owned()),
    }
}

/// `None` if no flag adds anything.
fn progress_update(args: ProgressArgs) -> Option<ProgressUpdate> {
    let failed = |(item, reason)| FailedItem { item, reason };
    let update = ProgressUpdate {
        summary: args.summary,
        completed_items: args.done,
        failed_items: args.failed.into_iter().map(failed).collect(),
        cursor: args.cursor,
        evidence: Vec::new(),
    };
    (update != ProgressUpdate::default()).then_some(update)
}
