//! `baton inspect`: diagnoses one task and shows the next step.

use baton_proto::to_json;
use baton_proto::v1::InspectRequest;
use clap::Args;

use crate::args::shared_args::{JsonOutputArg, TaskIdArg};
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::clock;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::follow::task_follower::missing_task_error;
use crate::render::console::CliConsole;
use crate::render::{input_view, task_details, task_view};

#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    task: TaskIdArg,

    /// Number of newest events to show, at most 50.
    #[arg(long, value_name = "N", default_value_t = 10)]
    events: usize,

    #[command(flatten)]
    json: JsonOutputArg,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: InspectArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let task_id = args.task.resolve(&relay).await?;
    let request = InspectRequest { task_id };
    let response = relay.operator().inspect(request).await?.into_inner();
    if args.json.json {
        console.json(&to_json(&response))?;
        return Ok(CommandExit::Done);
    }
    let (now_ms, style) = (clock::wall_ms(), console.data_style());
    let task = response.task.as_ref().ok_or_else(missing_task_error)?;
    for line in task_details::status_lines(task, &response, now_ms, style) {
        console.line(&line)?;
    }
    if !response.inputs.is_empty() {
        console.line("waiting for an answer to:")?;
    }
    for input in &response.inputs {
        for line in input_view::input_lines(input, now_ms, style) {
            console.line(&format!("  {line}"))?;
        }
    }
    let skipped = response.recent_events.len().saturating_sub(args.events);
    if args.events > 0 {
        console.line(match skipped {
            0 => "events:",
            _older => "newest events:",
        })?;
    }
    for event in response.recent_events.iter().skip(skipped) {
        console.line(&format!("  {}", task_view::event_line(event, style)))?;
    }
    for line in task_details::advice_lines(&response) {
        console.line(&line)?;
    }
    Ok(CommandExit::Done)
}
