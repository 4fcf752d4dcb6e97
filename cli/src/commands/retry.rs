//! `baton retry`: one more attempt at a task that failed, timed out or was lost.

use baton_proto::to_json;
use baton_proto::v1::RetryTaskRequest;
use clap::Args;

use crate::client::Relay;
use crate::commands::watch::{self, Show};
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;

#[derive(Args, Debug)]
pub(crate) struct RetryArgs {
    /// Id of the task.
    #[arg(value_name = "TASK")]
    task_id: String,

    /// Why, for those who read the task later.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reason: String,

    /// Retry although the earlier attempt may already have had effects.
    #[arg(long)]
    allow_unsafe: bool,

    /// Wait until the task has ended or needs attention, and end with its exit code.
    #[arg(long)]
    wait: bool,

    /// Print the task as one JSON object: at once, or as it ended with --wait.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: RetryArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let request = RetryTaskRequest {
        task_id: args.task_id.clone(),
        reason: args.reason,
        allow_unsafe: args.allow_unsafe,
    };
    let response = relay.operator().retry_task(request).await?.into_inner();
    if args.wait {
        let end = watch::until_settled(&relay, &args.task_id, Show::Progress, console).await?;
        if let (true, Some(task)) = (args.json, &end.task) {
            console.json(&to_json(task))?;
        }
        return Ok(end.exit);
    }
    if args.json {
        console.json(&to_json(&response.task.ok_or_else(no_task)?))?;
    } else {
        console.line(&response.attempt_id)?;
        console.note(&format!("follow it with: baton watch {}", args.task_id));
    }
    Ok(Exit::Done)
}
