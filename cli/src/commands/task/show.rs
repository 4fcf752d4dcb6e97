//! `baton show`: prints one task in full.

use baton_proto::to_json;
use baton_proto::v1::{GetTaskRequest, InspectRequest, Task};
use clap::Args;

use crate::args::shared_args::TaskIdArg;
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::clock;
use crate::commands::task::inbox;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::follow::task_follower::missing_task_error;
use crate::render::console::CliConsole;
use crate::render::input_view;
use crate::render::progress_view;
use crate::render::task_details;
use crate::render::task_details::OperatorDetails;

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    task: TaskIdArg,

    /// Print the task as one JSON object, with its whole specification.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: ShowArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let task_id = args.task.resolve(&relay).await?;
    let request = GetTaskRequest {
        task_id: task_id.clone(),
        include_spec: true,
    };
    let mut task = relay
        .tasks()
        .get(request)
        .await?
        .into_inner()
        .task
        .ok_or_else(missing_task_error)?;
    if args.json {
        console.json(&to_json(&task))?;
        return Ok(CommandExit::Done);
    }
    let details = operator_details(&relay, &mut task).await;
    let (now_ms, style) = (clock::wall_ms(), console.data_style());
    for line in task_details::task_lines(&task, &details, now_ms, style) {
        console.line(&line)?;
    }
    if let Some(progress) = &task.progress {
        console.line("progress:")?;
        for line in progress_view::progress_summary_lines(progress) {
            console.line(&format!("  {line}"))?;
        }
    }
    if task.pending_inputs > 0 {
        console.line("waiting for an answer to:")?;
        for input in inbox::list_inputs(&relay, &task.task_id, false).await? {
            for line in input_view::input_lines(&input, now_ms, style) {
                console.line(&format!("  {line}"))?;
            }
        }
    }
    Ok(CommandExit::Done)
}

/// Only operators may inspect a task. Other users see it without timers and advice.
async fn operator_details(relay: &RelayClient, task: &mut Task) -> OperatorDetails {
    let task_id = task.task_id.clone();
    let Ok(response) = relay.operator().inspect(InspectRequest { task_id }).await else {
        return OperatorDetails::default();
    };
    let response = response.into_inner();
    // The inspection knows better what the task waits for: its record alone does not show that
    // another turn of its conversation has to end first.
    if let Some(inspected) = &response.task {
        task.waits_for = inspected.waits_for;
        task.waits_until = inspected.waits_until;
    }
    OperatorDetails {
        timers: response.timers,
        diagnostics: response
            .diagnostics
            .into_iter()
            .map(|one| one.message)
            .collect(),
        next_action: response.next_action_text,
    }
}
