//! `baton submit`: submits one task, and waits for it or follows it on request.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use baton_proto::to_json;
use baton_proto::v1::{SubmitRequest, Task, WaitsFor};
use clap::Args;

use crate::args::task_flags::SubmissionArgs;
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::client::wait_reason;
use crate::commands::task::watch;
use crate::commands::task::watch::WaitDisplay;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::follow::task_follower::missing_task_error;
use crate::render::console::CliConsole;

#[derive(Args, Debug)]
pub(crate) struct SubmitArgs {
    /// Prompt for the agent. For a command this is its standard input.
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_file")]
    prompt: Option<String>,

    /// File with the prompt; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,

    /// File with standing instructions for the agent.
    #[arg(long, value_name = "FILE", help_heading = "Agent options")]
    instructions_file: Option<PathBuf>,

    /// Key that makes a repeated submit return the first task instead of creating a second one.
    #[arg(
        long,
        value_name = "KEY",
        default_value = "",
        hide_default_value = true
    )]
    idempotency_key: String,

    /// W3C trace context that the task's trace continues.
    #[arg(
        long,
        env = "TRACEPARENT",
        value_name = "TRACEPARENT",
        default_value = "",
        hide_default_value = true
    )]
    traceparent: String,

    /// Wait until the task has ended or needs attention, and exit with its code.
    #[arg(long)]
    wait: bool,

    /// Like --wait, and print the output of each attempt as it arrives.
    #[arg(long)]
    follow: bool,

    /// Print the task as JSON: immediately, or with --wait when it has ended. With --follow, print each event as JSON
    /// and no output.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    submission: SubmissionArgs,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: SubmitArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let prompt = read_prompt(args.prompt, args.prompt_file.as_deref())?;
    let instructions = args
        .instructions_file
        .as_deref()
        .map(read_text)
        .transpose()?;
    let request = SubmitRequest {
        spec: Some(
            args.submission
                .into_spec(prompt, instructions.unwrap_or_default())?,
        ),
        idempotency_key: args.idempotency_key,
        traceparent: args.traceparent,
    };
    let relay = RelayClient::discover(&args.relay).await?;
    let response = relay
        .tasks()
        .submit(request)
        .await
        .map_err(with_uncertain_hint)?
        .into_inner();
    let task = response.task.ok_or_else(missing_task_error)?;
    if response.existed {
        console.note("this idempotency key was used before; this is the existing task");
    }
    if !(args.wait || args.follow) {
        print_accepted(&task, args.json, console)?;
        note_if_waiting(&relay, &task, console).await;
        return Ok(CommandExit::Done);
    }
    console.note(&format!("task {}", task.task_id));
    note_if_waiting(&relay, &task, console).await;
    let show = match (args.json, args.follow) {
        (true, true) => WaitDisplay::Events,
        (false, true) => WaitDisplay::Output,
        (true | false, false) => WaitDisplay::Progress,
    };
    let end = watch::wait_until_settled(&relay, &task.task_id, show, console).await?;
    if let Some(task) = &end.task
        && args.json
        && !args.follow
    {
        console.json(&to_json(task))?;
    }
    Ok(end.exit)
}

/// Shows at once why the task waits. Otherwise a mistyped name would wait silently for a day.
async fn note_if_waiting(relay: &RelayClient, task: &Task, console: &CliConsole) {
    if matches!(task.waits_for(), WaitsFor::Daemon | WaitsFor::Pause)
        && let Some(why) = wait_reason::wait_reason(relay, &task.task_id).await
    {
        console.note(&format!("waiting: {why}"));
    }
}

fn print_accepted(task: &Task, json: bool, console: &CliConsole) -> Result<(), CliError> {
    if json {
        console.json(&to_json(task))?;
    } else {
        console.line(&task.task_id)?;
        console.note(&format!("follow it with: baton watch {}", task.task_id));
    }
    Ok(())
}

/// A submit whose response was lost may have been stored.
fn with_uncertain_hint(status: tonic::Status) -> CliError {
    let error = CliError::from(status);
    match error {
        CliError::Unreachable(mut text) => {
            text.hint = "the task may have been stored: check with `baton tasks`; a submit with --idempotency-key can \
                          be repeated safely"
                .to_owned();
            CliError::Unreachable(text)
        }
        CliError::Usage(_)
        | CliError::Rejected(_)
        | CliError::Local(_)
        | CliError::Damaged(_)
        | CliError::OutputClosed => error,
    }
}

fn read_prompt(text: Option<String>, file: Option<&Path>) -> Result<String, CliError> {
    match (text, file) {
        (Some(text), _) => Ok(text),
        (None, Some(path)) if path == Path::new("-") => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(|error| {
                    CliError::usage(
                        format!("cannot read the prompt from standard input: {error}"),
                        "send UTF-8 text",
                    )
                })?;
            Ok(text)
        }
        (None, Some(path)) => read_text(path),
        (None, None) => Ok(String::new()),
    }
}

fn read_text(path: &Path) -> Result<String, CliError> {
    fs::read_to_string(path).map_err(|error| {
        CliError::usage(
            format!("cannot read {}: {error}", path.display()),
            "pass a readable UTF-8 file",
        )
    })
}

#[cfg(test)]
mod tests {
    use baton_proto::v1::{Attempt, AttemptState, EndedBy, LifecyclePhase, TaskEvent, TaskState};
    use serde_json::json;

    use super::*;

    #[test]
    fn the_final_json_object_has_every_field_that_scripts_use() {
        let ended = Attempt {
            attempt_id: "a2".to_owned(),
            attempt_number: 2,
            state: AttemptState::TimedOut.into(),
            failure_code: "stream_idle_timeout".to_owned(),
            ended_by: EndedBy::Relay.into(),
            ..Attempt::default()
        };
        let task = Task {
            task_id: "t".to_owned(),
            state: TaskState::TimedOut.into(),
            attempts: vec![Attempt::default(), ended],
            ..Task::default()
        };
        let value = to_json(&task);
        assert_eq!(
            (&value["taskId"], &value["state"]),
            (&json!("t"), &json!("timed_out"))
        );
        for attempt in value["attempts"].as_array().expect("a list") {
            for field in [
                "attemptId",
                "attemptNumber",
                "state",
                "failureCode",
                "retryable",
                "retrySafe",
                "message",
                "userMessage",
                "endedBy",
            ] {
                assert!(attempt.get(field).is_some(), "{field} in {attempt}");
            }
        }
        let last = &value["attempts"][1];
        assert_eq!(
            (&last["state"], &last["endedBy"]),
            (&json!("timed_out"), &json!("relay"))
        );
        assert_eq!(
            (&last["attemptNumber"], &last["retryable"]),
            (&json!(2), &json!(false))
        );
        assert_eq!(to_json(&Task::default())["attempts"], json!([]));
    }

    #[test]
    fn an_attempt_scoped_event_has_its_five_fields() {
        let value = to_json(&TaskEvent {
            attempt_id: "a1".to_owned(),
            phase: LifecyclePhase::PromptWritten.into(),
            state: AttemptState::Prompted.into(),
            ..TaskEvent::default()
        });
        assert_eq!(
            (&value["phase"], &value["state"]),
            (&json!("prompt_written"), &json!("prompted"))
        );
        for field in ["attemptId", "observedAt", "deadlineAt"] {
            assert!(value.get(field).is_some(), "{field} in {value}");
        }
    }
}
