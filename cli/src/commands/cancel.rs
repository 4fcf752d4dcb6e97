//! `baton cancel`: asks for the end of a task.

use baton_proto::v1::CancelTaskRequest;
use baton_proto::{ShortName, to_json};
use clap::Args;

use crate::args::{JsonArg, Reason, TaskArg};
use crate::client::Relay;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;

#[derive(Args, Debug)]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    task: TaskArg,

    #[command(flatten)]
    why: Reason,

    #[command(flatten)]
    json: JsonArg,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: CancelArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let task_id = args.task.find(&relay).await?;
    let request = CancelTaskRequest {
        task_id,
        reason: args.why.reason,
    };
    let response = relay.tasks().cancel(request).await?.into_inner();
    let task = response.task.ok_or_else(no_task)?;
    if args.json.json {
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
