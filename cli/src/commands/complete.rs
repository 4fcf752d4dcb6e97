//! `baton complete`: completes a task by hand, when a person has seen that its work is done.

use baton_proto::v1::CompleteTaskRequest;
use clap::Args;

use crate::client::Relay;
use crate::commands::force;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;

#[derive(Args, Debug)]
pub(crate) struct CompleteArgs {
    /// Id of the task.
    #[arg(value_name = "TASK")]
    task_id: String,

    /// How you know that its work is done; it stands in the task's events.
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Complete it although files that it promised were not seen. This is on record, too.
    #[arg(long)]
    r#override: bool,

    /// The result, for those who read the task later.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    result: String,

    /// Print the task as one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: CompleteArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let request = CompleteTaskRequest {
        task_id: args.task_id,
        reason: args.reason,
        r#override: args.r#override,
        result: args.result.into(),
    };
    let answer = relay.operator().complete_task(request).await?.into_inner();
    force::show(&answer.task.ok_or_else(no_task)?, args.json, console)?;
    Ok(Exit::Done)
}
