//! `baton block`: parks a task for a person; what runs of it is stopped.

use baton_proto::to_json;
use baton_proto::v1::BlockTaskRequest;
use clap::Args;

use crate::client::Relay;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;

#[derive(Args, Debug)]
pub(crate) struct BlockArgs {
    /// Id of the task.
    #[arg(value_name = "TASK")]
    task_id: String,

    /// Why it cannot go on.
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// What would help.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    hint: String,

    /// Print the task as one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: BlockArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let request = BlockTaskRequest {
        task_id: args.task_id.clone(),
        reason: args.reason,
        resume_hint: args.hint,
    };
    let task = relay.tasks().block(request).await?.into_inner().task;
    if args.json {
        console.json(&to_json(&task.ok_or_else(no_task)?))?;
    } else {
        console.note(&format!(
            "parked; send it on with: baton resume {} --reason TEXT",
            args.task_id
        ));
    }
    Ok(Exit::Done)
}
