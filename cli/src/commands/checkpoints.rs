//! `baton checkpoints`: the milestones of a task, newest first.

use baton_proto::to_json;
use baton_proto::v1::ListCheckpointsRequest;
use clap::Args;

use crate::client::Relay;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::goal_view;

#[derive(Args, Debug)]
pub(crate) struct CheckpointsArgs {
    /// Id of the task.
    #[arg(value_name = "TASK")]
    task_id: String,

    /// Print one JSON object per checkpoint and line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: CheckpointsArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let request = ListCheckpointsRequest {
        task_id: args.task_id,
        ..ListCheckpointsRequest::default()
    };
    // As many as are kept fit into one page.
    let listed = relay.tasks().list_checkpoints(request).await?.into_inner();
    if args.json {
        for checkpoint in &listed.checkpoints {
            console.json(&to_json(checkpoint))?;
        }
        return Ok(Exit::Done);
    }
    if listed.checkpoints.is_empty() {
        console.note("it has no checkpoint yet");
    }
    for checkpoint in &listed.checkpoints {
        for line in goal_view::checkpoint(checkpoint) {
            console.line(&line)?;
        }
    }
    let dropped = listed.total.saturating_sub(listed.checkpoints.len() as u64);
    if dropped > 0 {
        console.note(&format!("{dropped} older ones are no longer kept"));
    }
    Ok(Exit::Done)
}
