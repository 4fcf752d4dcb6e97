//! `baton cancel`: requests the cancellation of a task.

use baton_proto::v1::CancelTaskRequest;
use baton_proto::{ShortName, to_json};
use clap::Args;

use crate::args::shared_args::{JsonOutputArg, OptionalReasonArg, TaskIdArg};
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::follow::task_follower::missing_task_error;
use crate::render::console::CliConsole;

#[derive(Args, Debug)]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    task: TaskIdArg,

    #[command(flatten)]
    why: OptionalReasonArg,

    #[command(flatten)]
    json: JsonOutputArg,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: CancelArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let task_id = args.task.resolve(&relay).await?;
    let request = CancelTaskRequest {
        task_id,
        reason: args.why.reason,
    };
    let response = relay.tasks().cancel(request).await?.into_inner();
    let task = response.task.ok_or_else(missing_task_error)?;
    if args.json.json {
        console.json(&to_json(&task))?;
        return Ok(CommandExit::Done);
    }
    console.line(task.state().short_name())?;
    if response.already_finished {
        console.note("the task had already ended; nothing was changed");
    } else if CommandExit::for_task_state(task.state()).is_none() {
        console.note(&format!(
            "the cancellation is stored; wait for the end with: baton watch {}",
            task.task_id
        ));
    }
    Ok(CommandExit::Done)
}
