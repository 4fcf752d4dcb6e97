//! `baton retry`: one more attempt at a task that failed, timed out or was lost.

use baton_proto::to_json;
use baton_proto::v1::{BulkForceRequest, ForceVerb, RetryTaskRequest};
use clap::Args;

use crate::args::{RequiredReason, TasksArg};
use crate::client::Relay;
use crate::commands::force;
use crate::commands::watch::{self, Show};
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;

#[derive(Args, Debug)]
pub(crate) struct RetryArgs {
    #[command(flatten)]
    tasks: TasksArg,

    #[command(flatten)]
    why: RequiredReason,

    /// Retry although the earlier attempt may already have had effects.
    #[arg(long)]
    allow_unsafe: bool,

    /// Wait until the task has ended or needs attention, and end with its exit code.
    #[arg(long)]
    wait: bool,

    /// Print the task as one JSON object: at once, or as it ended with --wait. Of several tasks, one object with a row for
    /// each.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: RetryArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let task_ids = args.tasks.find_because(&relay, &args.why).await?;
    let [task_id] = &task_ids[..] else {
        return many(&relay, args, task_ids, console).await;
    };
    let request = RetryTaskRequest {
        task_id: task_id.clone(),
        reason: args.why.reason,
        allow_unsafe: args.allow_unsafe,
    };
    let response = relay.operator().retry_task(request).await?.into_inner();
    if args.wait {
        let task = response.task.ok_or_else(no_task)?;
        // What was before the retry is an old story.
        let from = task.revision;
        let end = watch::until_settled_from(&relay, task_id, from, Show::Progress, console).await?;
        if let (true, Some(task)) = (args.json, &end.task) {
            console.json(&to_json(task))?;
        }
        return Ok(end.exit);
    }
    if args.json {
        console.json(&to_json(&response.task.ok_or_else(no_task)?))?;
    } else {
        console.line(&response.attempt_id)?;
        console.note(&format!("follow it with: baton watch {task_id}"));
    }
    Ok(Exit::Done)
}

async fn many(
    relay: &Relay,
    args: RetryArgs,
    task_ids: Vec<String>,
    console: &Console,
) -> Result<Exit, CliError> {
    if args.wait {
        return Err(CliError::usage(
            "--wait waits for one task, and several were given",
            "leave it out, and follow each with `baton watch TASK`",
        ));
    }
    let request = BulkForceRequest {
        verb: ForceVerb::Retry.into(),
        task_ids,
        reason: args.why.reason,
        allow_unsafe: args.allow_unsafe,
    };
    force::rows(relay, request, args.json, console).await
}
