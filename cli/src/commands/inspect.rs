//! `baton inspect`: how one task stands and what to do about it.

use baton_proto::to_json;
use baton_proto::v1::InspectRequest;
use clap::Args;

use crate::args::{JsonArg, TaskArg};
use crate::client::Relay;
use crate::clock;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;
use crate::{input_view, inspect, task_view};

#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    task: TaskArg,

    /// How many of the newest events to show, at most 50.
    #[arg(long, value_name = "N", default_value_t = 10)]
    events: usize,

    #[command(flatten)]
    json: JsonArg,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: InspectArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let task_id = args.task.find(&relay).await?;
    let request = InspectRequest { task_id };
    let found = relay.operator().inspect(request).await?.into_inner();
    if args.json.json {
        console.json(&to_json(&found))?;
        return Ok(Exit::Done);
    }
    let (now_ms, style) = (clock::wall_ms(), console.data_style());
    let task = found.task.as_ref().ok_or_else(no_task)?;
    for line in inspect::standing(task, &found, now_ms, style) {
        console.line(&line)?;
    }
    if !found.inputs.is_empty() {
        console.line("waits for an answer to:")?;
    }
    for input in &found.inputs {
        for line in input_view::lines(input, now_ms, style) {
            console.line(&format!("  {line}"))?;
        }
    }
    let skipped = found.recent_events.len().saturating_sub(args.events);
    if args.events > 0 {
        console.line("events:")?;
    }
    for event in found.recent_events.iter().skip(skipped) {
        console.line(&format!("  {}", task_view::event_line(event, style)))?;
    }
    for line in inspect::advice(&found) {
        console.line(&line)?;
    }
    Ok(Exit::Done)
}
