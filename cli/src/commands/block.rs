//! `baton block`: parks a task for a person; what runs of it is stopped.

use baton_proto::to_json;
use baton_proto::v1::BlockTaskRequest;
use clap::Args;

use crate::args::{JsonArg, RequiredReason, TaskArg};
use crate::client::Relay;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;

#[derive(Args, Debug)]
pub(crate) struct BlockArgs {
    #[command(flatten)]
    task: TaskArg,

    #[command(flatten)]
    why: RequiredReason,

    /// What would help.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    hint: String,

    #[command(flatten)]
    json: JsonArg,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: BlockArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let task_id = args.task.find_because(&relay, &args.why).await?;
    let request = BlockTaskRequest {
        task_id: task_id.clone(),
        reason: args.why.reason,
        resume_hint: args.hint,
    };
    let task = relay.tasks().block(request).await?.into_inner().task;
    if args.json.json {
        console.json(&to_json(&task.ok_or_else(no_task)?))?;
    } else {
        console.note(&format!(
            "parked; send it on with: baton resume {task_id} --reason TEXT"
        ));
    }
    Ok(Exit::Done)
}
