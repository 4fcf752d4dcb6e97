//! The demo of `baton up`: one whole task, from submit to completion, as a user would run it.

use std::path::Path;

use baton_proto::ShortName;
use baton_proto::v1::{CommandSpec, SubmitRequest, TaskSpec};

use crate::client::Relay;
use crate::commands::watch::{self, Show};
use crate::console::Console;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;

const SCRIPT: &str = "\
for step in 1 2 3; do echo \"step $step of 3\"; sleep 0.2; done
echo \"the prompt was: $(cat)\"";

/// Prints the task's id, its output as it comes, and the state it ended in.
pub(crate) async fn run(relay: &Relay, console: &Console) -> Result<Exit, CliError> {
    let spec = TaskSpec {
        goal: "show one task from beginning to end".to_owned(),
        agent: "command".to_owned(),
        prompt: "hello from Baton".to_owned(),
        command: Some(CommandSpec {
            argv: ["sh", "-c", SCRIPT].map(str::to_owned).to_vec(),
        }),
        ..TaskSpec::default()
    };
    let request = SubmitRequest {
        spec: Some(spec),
        ..SubmitRequest::default()
    };
    let response = relay.tasks().submit(request).await?.into_inner();
    let task_id = response.task.ok_or_else(no_task)?.task_id;
    console.line(&format!("task {task_id}"))?;
    let task = watch::settle(relay, &task_id, Show::Output, console).await?;
    console.line(task.state().short_name())?;
    Ok(Exit::of_task(task.state()).unwrap_or(Exit::NotCompleted))
}

/// Commands to paste into a second shell.
pub(crate) fn where_to_look(data: Option<&Path>) -> String {
    let flag = data
        .map(|data| format!(" --data {}", data.display()))
        .unwrap_or_default();
    format!(
        "baton is up; press Ctrl-C to stop it. In another shell:\n  \
         baton tasks{flag}\n  \
         baton daemons{flag}\n  \
         baton submit{flag} --follow -- sh -c 'echo hello; sleep 1; echo done'"
    )
}
