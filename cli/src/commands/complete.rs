//! `baton complete`: completes a task by hand, when a person has seen that its work is done.

use baton_proto::v1::CompleteTaskRequest;
use clap::Args;

use crate::args::{JsonArg, RequiredReason, TaskArg};
use crate::client::Relay;
use crate::commands::force;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;

#[derive(Args, Debug)]
pub(crate) struct CompleteArgs {
    #[command(flatten)]
    task: TaskArg,

    #[command(flatten)]
    why: RequiredReason,

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

    #[command(flatten)]
    json: JsonArg,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: CompleteArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let task_id = args.task.find_because(&relay, &args.why).await?;
    let request = CompleteTaskRequest {
        task_id,
        reason: args.why.reason,
        r#override: args.r#override,
        result: args.result.into(),
    };
    let answer = relay.operator().complete_task(request).await?.into_inner();
    force::show(&answer.task.ok_or_else(no_task)?, args.json.json, console)?;
    Ok(Exit::Done)
}
