//! `baton retry`: one more attempt at a task that failed, timed out or was lost.

use baton_proto::to_json;
use baton_proto::v1::{BulkForceRequest, ForceVerb, RetryTaskRequest};
use clap::Args;

use crate::args::shared_args::{RequiredReasonArg, TaskIdsArg};
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::commands::operator::force;
use crate::commands::task::watch;
use crate::commands::task::watch::WaitDisplay;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::follow::task_follower::missing_task_error;
use crate::render::console::CliConsole;

#[derive(Args, Debug)]
pub(crate) struct RetryArgs {
    #[command(flatten)]
    tasks: TaskIdsArg,

    #[command(flatten)]
    why: RequiredReasonArg,

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
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: RetryArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let task_ids = args.tasks.resolve_with_reason(&relay, &args.why).await?;
    let [task_id] = &task_ids[..] else {
        return retry_many(&relay, args, task_ids, console).await;
    };
    let request = RetryTaskRequest {
        task_id: task_id.clone(),
        reason: args.why.reason,
        allow_unsafe: args.allow_unsafe,
    };
    let response = relay.operator().retry_task(request).await?.into_inner();
    if args.wait {
        let task = response.task.ok_or_else(missing_task_error)?;
        // What was before the retry is an old story.
        let from = task.revision;
        let end =
            watch::wait_until_settled_from(&relay, task_id, from, WaitDisplay::Progress, console)
                .await?;
        if let (true, Some(task)) = (args.json, &end.task) {
            console.json(&to_json(task))?;
        }
        return Ok(end.exit);
    }
    if args.json {
        console.json(&to_json(&response.task.ok_or_else(missing_task_error)?))?;
    } else {
        console.line(&response.attempt_id)?;
        console.note(&format!("follow it with: baton watch {task_id}"));
    }
    Ok(CommandExit::Done)
}

async fn retry_many(
    relay: &RelayClient,
    args: RetryArgs,
    task_ids: Vec<String>,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
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
    force::run_bulk_force(relay, request, args.json, console).await
}
