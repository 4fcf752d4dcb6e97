//! `baton progress`: shows what a task has come to, or adds to it from outside.

use baton_proto::to_json;
use baton_proto::v1::{
    AgentProgressRequest, FailedItem, GetTaskRequest, ProgressUpdate, Task, UpdateProgressRequest,
};
use clap::Args;

use crate::args::{HolderArg, JsonArg, TaskArg};
use crate::client::Relay;
use crate::commands::lease;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;
use crate::goal_view;
use crate::ids;

#[derive(Args, Debug)]
pub(crate) struct ProgressArgs {
    #[command(flatten)]
    task: TaskArg,

    /// Replace the summary.
    #[arg(long, value_name = "TEXT")]
    summary: Option<String>,

    /// Replace the cursor: where to go on.
    #[arg(long, value_name = "TEXT")]
    cursor: Option<String>,

    /// An item that is done; may be repeated.
    #[arg(long = "done", value_name = "ITEM")]
    done: Vec<String>,

    /// An item that did not work out, as ITEM=REASON; may be repeated.
    #[arg(long = "failed", value_name = "ITEM=REASON", value_parser = with_reason)]
    failed: Vec<(String, String)>,

    #[command(flatten)]
    holder: HolderArg,

    #[command(flatten)]
    json: JsonArg,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: ProgressArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let task_id = args.task.find(&relay).await?;
    let json = args.json.json;
    let attempt = args.holder.attempt.clone();
    let task = match (update(args), attempt) {
        (Some(update), Some(attempt)) => {
            let attempt = ids::attempt(&relay, &task_id, &attempt).await?;
            let request = AgentProgressRequest {
                lease: Some(lease::held(task_id.clone(), attempt)?),
                update: Some(update),
                ..AgentProgressRequest::default()
            };
            relay.agents().progress(request).await?;
            get(&relay, task_id).await?
        }
        (Some(update), None) => {
            let request = UpdateProgressRequest {
                task_id,
                update: Some(update),
            };
            let updated = relay.tasks().update_progress(request).await;
            let updated =
                updated.map_err(|status| lease::holders_way(status.into(), "progress"))?;
            updated.into_inner().task
        }
        (None, _) => get(&relay, task_id).await?,
    };
    let task = task.ok_or_else(no_task)?;
    if json {
        console.json(&to_json(&task))?;
        return Ok(Exit::Done);
    }
    let Some(progress) = &task.progress else {
        console.note("nothing was told of its progress yet");
        return Ok(Exit::Done);
    };
    for line in goal_view::progress(progress) {
        console.line(&line)?;
    }
    Ok(Exit::Done)
}

async fn get(relay: &Relay, task_id: String) -> Result<Option<Task>, CliError> {
    let request = GetTaskRequest {
        task_id,
        include_spec: false,
    };
    Ok(relay.tasks().get(request).await?.into_inner().task)
}

/// Why it failed is what the next one wants to know.
fn with_reason(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((item, reason)) if !item.trim().is_empty() && !reason.trim().is_empty() => {
            Ok((item.to_owned(), reason.to_owned()))
        }
        Some(_) | None => Err("say what failed and why: ITEM=REASON".to_owned()),
    }
}

/// None where there is nothing to add.
fn update(args: ProgressArgs) -> Option<ProgressUpdate> {
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
