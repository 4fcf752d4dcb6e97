//! The demo of `baton up`: one whole task from submit to completion, and one whose agent asks leave first, each as a user
//! would run it.

use std::path::Path;

use baton_proto::ShortName;
use baton_proto::v1::{CommandSpec, Input, SubmitRequest, TaskSpec, WatchInputsRequest};

use crate::answers::{self, Words};
use crate::client::Relay;
use crate::clock;
use crate::commands::watch::{self, Show};
use crate::console::Console;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::{ended_early, no_task};
use crate::input_view;

/// The name under which the daemon of the demo knows its agent.
pub(crate) const AGENT: &str = "demo";

const SCRIPT: &str = "\
for step in 1 2 3; do echo \"step $step of 3\"; sleep 0.2; done
echo \"the prompt was: $(cat)\"";

pub(crate) async fn run(relay: &Relay, console: &Console) -> Result<Exit, CliError> {
    let first = work(relay, console).await?;
    if first != Exit::Done {
        return Ok(first);
    }
    ask(relay, console).await
}

/// Prints the task's id, its output as it comes, and the state it ended in.
async fn work(relay: &Relay, console: &Console) -> Result<Exit, CliError> {
    let spec = TaskSpec {
        goal: "show one task from beginning to end".to_owned(),
        agent: "command".to_owned(),
        prompt: "hello from Baton".to_owned(),
        command: Some(CommandSpec {
            argv: ["sh", "-c", SCRIPT].map(str::to_owned).to_vec(),
        }),
        ..TaskSpec::default()
    };
    let task_id = submit(relay, spec, console).await?;
    end(relay, &task_id, console).await
}

/// The same for an agent that asks. Nobody has to be there: the demo shows how to answer, and does.
async fn ask(relay: &Relay, console: &Console) -> Result<Exit, CliError> {
    let spec = TaskSpec {
        goal: "show a permission being asked".to_owned(),
        agent: AGENT.to_owned(),
        prompt: "write a greeting".to_owned(),
        ..TaskSpec::default()
    };
    let task_id = submit(relay, spec, console).await?;
    let (ended, answered) = tokio::join!(
        end(relay, &task_id, console),
        answer(relay, &task_id, console)
    );
    answered?;
    ended
}

async fn submit(relay: &Relay, spec: TaskSpec, console: &Console) -> Result<String, CliError> {
    let request = SubmitRequest {
        spec: Some(spec),
        ..SubmitRequest::default()
    };
    let response = relay.tasks().submit(request).await?.into_inner();
    let task_id = response.task.ok_or_else(no_task)?.task_id;
    console.line(&format!("task {task_id}"))?;
    Ok(task_id)
}

async fn end(relay: &Relay, task_id: &str, console: &Console) -> Result<Exit, CliError> {
    let task = watch::settle(relay, task_id, Show::Unattended, console).await?;
    console.line(task.state().short_name())?;
    Ok(Exit::of_task(task.state()).unwrap_or(Exit::NotCompleted))
}

async fn answer(relay: &Relay, task_id: &str, console: &Console) -> Result<(), CliError> {
    let input = asked(relay, task_id).await?;
    for line in input_view::lines(&input, clock::wall_ms(), console.data_style()) {
        console.line(&line)?;
    }
    console.note("the demo answers for you: --allow");
    let yes = Words {
        allow: Some(true),
        message: "from the demo".to_owned(),
        ..Words::default()
    };
    let request = answers::request(&input, yes)?;
    let response = relay.inputs().answer(request).await?.into_inner();
    console.line(&input_view::became(&response.input.unwrap_or(input)))
}

/// Waits for the task to ask.
async fn asked(relay: &Relay, task_id: &str) -> Result<Input, CliError> {
    let request = WatchInputsRequest {
        task_id: task_id.to_owned(),
    };
    let mut inputs = relay.inputs().watch_inputs(request).await?.into_inner();
    while let Some(message) = inputs.message().await? {
        if let Some(input) = message.input {
            return Ok(input);
        }
    }
    Err(ended_early())
}

/// Commands to paste into a second shell.
pub(crate) fn where_to_look(data: Option<&Path>, demo: bool) -> String {
    let flag = data
        .map(|data| format!(" --data {}", data.display()))
        .unwrap_or_default();
    let asking = if demo {
        format!("baton submit{flag} --follow --agent {AGENT} --prompt 'write a greeting'\n  ")
    } else {
        String::new()
    };
    format!(
        "baton is up; press Ctrl-C to stop it. In another shell:\n  \
         baton tasks{flag}\n  \
         baton daemons{flag}\n  \
         {asking}baton submit{flag} --follow -- sh -c 'echo hello; sleep 1; echo done'"
    )
}
