//! `baton show`: one task in full.

use baton_proto::to_json;
use baton_proto::v1::{GetTaskRequest, InspectRequest, Task};
use clap::Args;

use crate::args::TaskArg;
use crate::client::Relay;
use crate::clock;
use crate::commands::inbox;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;
use crate::goal_view;
use crate::input_view;
use crate::inspect::{self, Insight};

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    task: TaskArg,

    /// Print the task as one JSON object, with its whole specification.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: ShowArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let task_id = args.task.find(&relay).await?;
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
        .ok_or_else(no_task)?;
    if args.json {
        console.json(&to_json(&task))?;
        return Ok(Exit::Done);
    }
    let insight = insight(&relay, &mut task).await;
    let (now_ms, style) = (clock::wall_ms(), console.data_style());
    for line in inspect::lines(&task, &insight, now_ms, style) {
        console.line(&line)?;
    }
    if let Some(progress) = &task.progress {
        console.line("progress:")?;
        for line in goal_view::short(progress) {
            console.line(&format!("  {line}"))?;
        }
    }
    if task.pending_inputs > 0 {
        console.line("waits for an answer to:")?;
        for input in inbox::list(&relay, &task.task_id, false).await? {
            for line in input_view::lines(&input, now_ms, style) {
                console.line(&format!("  {line}"))?;
            }
        }
    }
    Ok(Exit::Done)
}

/// Timers and advice are for operators; everybody else sees the task without them.
async fn insight(relay: &Relay, task: &mut Task) -> Insight {
    let task_id = task.task_id.clone();
    let Ok(response) = relay.operator().inspect(InspectRequest { task_id }).await else {
        return Insight::default();
    };
    let response = response.into_inner();
    // Who looks inside knows better what it waits for: the record does not tell of other turns.
    if let Some(seen) = &response.task {
        task.waits_for = seen.waits_for;
        task.waits_until = seen.waits_until;
    }
    Insight {
        timers: response.timers,
        diagnostics: response
            .diagnostics
            .into_iter()
            .map(|one| one.message)
            .collect(),
        next_action: response.next_action_text,
    }
}
