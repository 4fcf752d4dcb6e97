//! The demo of `baton up`: one task from submit to completion, and one whose agent asks for permission, each
//! as a user would run it.

use std::path::Path;

use baton_proto::ShortName;
use baton_proto::v1::{CommandSpec, Input, SubmitRequest, TaskSpec, WatchInputsRequest};

use crate::client::relay_client::RelayClient;
use crate::clock;
use crate::commands::task::watch;
use crate::commands::task::watch::WaitDisplay;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::follow::answer;
use crate::follow::answer::AnswerContent;
use crate::follow::task_follower::{missing_task_error, stream_closed_error};
use crate::render::console::CliConsole;
use crate::render::input_view;

/// The name of the demo's agent in the daemon's configuration.
pub(crate) const DEMO_AGENT: &str = "demo";

const DEMO_SCRIPT: &str = "\
for step in 1 2 3; do echo \"step $step of 3\"; sleep 0.2; done
echo \"the prompt was: $(cat)\"";

pub(crate) async fn run(
    relay: &RelayClient,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let first = run_command_demo(relay, console).await?;
    if first != CommandExit::Done {
        return Ok(first);
    }
    run_permission_demo(relay, console).await
}

/// Prints the task's id, its output as it arrives, and its final state.
async fn run_command_demo(
    relay: &RelayClient,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let spec = TaskSpec {
        goal: "show one task from start to end".to_owned(),
        agent: "command".to_owned(),
        prompt: "hello from Baton".to_owned(),
        command: Some(CommandSpec {
            argv: ["sh", "-c", DEMO_SCRIPT].map(str::to_owned).to_vec(),
        }),
        ..TaskSpec::default()
    };
    let task_id = submit_demo_task(relay, spec, console).await?;
    wait_for_end(relay, &task_id, console).await
}

/// Like [`run_command_demo`], with an agent that asks for permission. The demo shows how to answer and
/// answers itself.
async fn run_permission_demo(
    relay: &RelayClient,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let spec = TaskSpec {
        goal: "show a permission request".to_owned(),
        agent: DEMO_AGENT.to_owned(),
        prompt: "write a greeting".to_owned(),
        ..TaskSpec::default()
    };
    let task_id = submit_demo_task(relay, spec, console).await?;
    let (ended, answered) = tokio::join!(
        wait_for_end(relay, &task_id, console),
        answer_demo_input(relay, &task_id, console)
    );
    answered?;
    ended
}

async fn submit_demo_task(
    relay: &RelayClient,
    spec: TaskSpec,
    console: &CliConsole,
) -> Result<String, CliError> {
    let request = SubmitRequest {
        spec: Some(spec),
        ..SubmitRequest::default()
    };
    let response = relay.tasks().submit(request).await?.into_inner();
    let task_id = response.task.ok_or_else(missing_task_error)?.task_id;
    console.line(&format!("task {task_id}"))?;
    Ok(task_id)
}

async fn wait_for_end(
    relay: &RelayClient,
    task_id: &str,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let task =
        watch::follow_until_settled(relay, task_id, WaitDisplay::Unattended, console).await?;
    console.line(task.state().short_name())?;
    Ok(CommandExit::for_task_state(task.state()).unwrap_or(CommandExit::NotCompleted))
}

async fn answer_demo_input(
    relay: &RelayClient,
    task_id: &str,
    console: &CliConsole,
) -> Result<(), CliError> {
    let input = wait_for_input(relay, task_id).await?;
    for line in input_view::input_lines(&input, clock::wall_ms(), console.data_style()) {
        console.line(&line)?;
    }
    console.note("the demo answers for you: --allow");
    let yes = AnswerContent {
        allow: Some(true),
        message: "from the demo".to_owned(),
        ..AnswerContent::default()
    };
    let request = answer::build_answer_request(&input, yes)?;
    let response = relay.inputs().answer(request).await?.into_inner();
    console.line(&input_view::outcome_text(&response.input.unwrap_or(input)))
}

/// Waits for the first input of the task.
async fn wait_for_input(relay: &RelayClient, task_id: &str) -> Result<Input, CliError> {
    let request = WatchInputsRequest {
        task_id: task_id.to_owned(),
    };
    let mut inputs = relay.inputs().watch_inputs(request).await?.into_inner();
    while let Some(message) = inputs.message().await? {
        if let Some(input) = message.input {
            return Ok(input);
        }
    }
    Err(stream_closed_error())
}

/// Commands to paste into a second shell.
pub(crate) fn next_steps_text(data: Option<&Path>, demo: bool) -> String {
    let flag = data
        .map(|data| format!(" --data {}", data.display()))
        .unwrap_or_default();
    let demo_command = if demo {
        format!("baton submit{flag} --follow --agent {DEMO_AGENT} --prompt 'write a greeting'\n  ")
    } else {
        String::new()
    };
    format!(
        "baton is up; press Ctrl-C to stop it. In another shell:\n  \
         baton tasks{flag}\n  \
         baton daemons{flag}\n  \
         {demo_command}baton submit{flag} --follow -- sh -c 'echo hello; sleep 1; echo done'"
    )
}
