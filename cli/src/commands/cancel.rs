//! `baton cancel`: asks for the end of a task.

use baton_proto::v1::CancelTaskRequest;
use baton_proto::{ShortName, to_json};
use clap::Args;

use crate::client::Relay;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;

#[derive(Args, Debug)]
pub(crate) struct CancelArgs {
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

    /// Print the task as one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: CancelArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let request = CancelTaskRequest {
        task_id: args.task_id,
        reason: args.reason,
    };
    let response = relay.tasks().cancel(request).await?.into_inner();
    let task = response.task.ok_or_else(no_task)?;
    if args.json {
        console.json(&to_json(&task))?;
        return Ok(Exit::Done);
    }
    console.line(task.state().short_name())?;
    if response.already_finished {
        console.note("the task had ended before; nothing was changed");
    } else if Exit::of_task(task.state()).is_none() {
        console.note(&format!(
            "the cancel is stored; see it through with: baton watch {}",
            task.task_id
        ));
    }
    Ok(Exit::Done)
}
