//! `baton checkpoints`: lists the checkpoints of a task, newest first.

use baton_proto::to_json;
use baton_proto::v1::{Checkpoint, ListCheckpointsRequest, ListCheckpointsResponse};
use clap::Args;

use crate::args::shared_args::TaskIdArg;
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::render::progress_view;

#[derive(Args, Debug)]
pub(crate) struct CheckpointsArgs {
    #[command(flatten)]
    task: TaskIdArg,

    /// Print one JSON object with the list in `checkpoints` and the number ever made in `total`.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(
    args: CheckpointsArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let task_id = args.task.resolve(&relay).await?;
    let (checkpoints, total) = list_checkpoints(&relay, task_id).await?;
    if args.json {
        let list = ListCheckpointsResponse {
            checkpoints,
            total,
            ..ListCheckpointsResponse::default()
        };
        console.json(&to_json(&list))?;
        return Ok(CommandExit::Done);
    }
    if checkpoints.is_empty() {
        console.note("the task has no checkpoints");
    }
    for checkpoint in &checkpoints {
        for line in progress_view::checkpoint_lines(checkpoint) {
            console.line(&line)?;
        }
    }
    let dropped = total.saturating_sub(checkpoints.len() as u64);
    if dropped > 0 {
        console.note(&format!("{dropped} older checkpoints are no longer stored"));
    }
    Ok(CommandExit::Done)
}

/// All stored checkpoints from all pages, and the number of checkpoints ever made.
async fn list_checkpoints(
    relay: &RelayClient,
    task_id: String,
) -> Result<(Vec<Checkpoint>, u64), CliError> {
    let mut request = ListCheckpointsRequest {
        task_id,
        ..ListCheckpointsRequest::default()
    };
    let mut checkpoints = Vec::new();
    loop {
        let page = relay.tasks().list_checkpoints(request.clone()).await?;
        let page = page.into_inner();
        checkpoints.extend(page.checkpoints);
        if page.next_page_token.is_empty() {
            return Ok((checkpoints, page.total));
        }
        request.page_token = page.next_page_token;
    }
}
