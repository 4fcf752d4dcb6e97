//! `baton retry`: starts one more attempt of a task that failed, timed out or was lost.

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

    /// Retry although the previous attempt may have had effects.
    #[arg(long)]
    allow_unsafe: bool,

    /// Wait until the task has ended or needs attention, and exit with its code.
    #[arg(long)]
    wait: bool,

    /// Print the task as one JSON object: immediately, or with --wait when it has ended. For several tasks, one object with
    /// a row for each.
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
        // Only events after the retry matter.
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
            "--wait works with a single task only",
            "omit --wait, and follow each task with `baton watch TASK`",
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
