//! Handles tool calls inside an attempt that a daemon runs. It calls that daemon with the
//! attempt's own capability and has neither a token nor a connection to the relay. The daemon
//! answers for this one task only.

use std::io;
use std::time::Duration;

use baton_daemon::tools::{ToolEndpoint, call_tool};
use baton_proto::to_json;
use baton_proto::verbs::ToolOperation;
use baton_proto::worker::{Look, OwnTask, ToolRefused, tool_answer, tool_call};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::argument_schema::McpArguments;
use super::requests;
use super::server::PendingToolCall;
use super::tool_result::{FAILED_PRECONDITION, ToolRejection, ToolResult, UNAVAILABLE};

/// Pauses before each further try: a restarted daemon is back within seconds.
const RETRY_DELAYS: [Duration; 5] = [
    Duration::from_millis(200),
    Duration::from_millis(600),
    Duration::from_millis(1500),
    Duration::from_millis(3000),
    Duration::from_millis(5000),
];

pub(super) async fn serve(endpoint: ToolEndpoint, mut calls: mpsc::Receiver<PendingToolCall>) {
    while let Some(pending) = calls.recv().await {
        let answer = answer_call(&endpoint, pending.call, &pending.args).await;
        // The caller may have gone.
        let _ = pending.reply.send(answer);
    }
}

async fn answer_call(
    endpoint: &ToolEndpoint,
    call: ToolOperation,
    args: &McpArguments,
) -> ToolResult {
    match call {
        ToolOperation::Start
        | ToolOperation::Claim
        | ToolOperation::PickUp
        | ToolOperation::Release => Err(not_allowed_inside(call)),
        ToolOperation::Get => {
            let task = own_task(endpoint).await?;
            check_own_task(&task, args)?;
            Ok(json!({"task": task_json(&task), "scope": OWN_TASK_SCOPE}))
        }
        ToolOperation::List => {
            let task = own_task(endpoint).await?;
            Ok(json!({"tasks": [task_json(&task)], "scope": OWN_TASK_SCOPE}))
        }
        ToolOperation::ListBlocked => {
            own_task(endpoint).await?;
            Ok(json!({"tasks": [], "scope": OWN_TASK_SCOPE, "next": "continue your own task"}))
        }
        ToolOperation::GetBlocked => {
            check_own_task(&own_task(endpoint).await?, args)?;
            let next = "task_get shows it";
            Err(ToolRejection::new(
                FAILED_PRECONDITION,
                "not_blocked",
                "this task is not blocked: you work on it",
                next,
            ))
        }
        ToolOperation::Progress => {
            send_verb(
                endpoint,
                args,
                tool_call::Verb::Progress(requests::progress(args)),
            )
            .await
        }
        ToolOperation::Checkpoint => {
            send_verb(
                endpoint,
                args,
                tool_call::Verb::Checkpoint(requests::checkpoint(args)),
            )
            .await
        }
        ToolOperation::Block => {
            let verb = tool_call::Verb::Block(requests::block(args));
            let answer = send_verb(endpoint, args, verb).await;
            let next = "stop working: the daemon ends this process when the task is parked";
            answer.map(|answer| with_next(answer, next))
        }
        ToolOperation::Complete => {
            let verb = tool_call::Verb::Finish(requests::finish(args));
            let answer = send_verb(endpoint, args, verb).await;
            let next =
                "stop working: the outcome is final and is reported when this process has ended";
            answer.map(|answer| with_next(answer, next))
        }
    }
}

/// Value of `scope` in read results: only the attempt's own task is visible.
const OWN_TASK_SCOPE: &str = "own_task";

async fn send_verb(
    endpoint: &ToolEndpoint,
    args: &McpArguments,
    verb: tool_call::Verb,
) -> ToolResult {
    if args.given_text("task_id").is_some() {
        check_own_task(&own_task(endpoint).await?, args)?;
    }
    match call_daemon(endpoint, verb).await? {
        tool_answer::Answer::Noted(noted) => Ok(json!({
            "noted": true,
            "delivered": noted.delivered,
        })),
        tool_answer::Answer::Task(_) => Err(unexpected_answer()),
        tool_answer::Answer::Refused(refused) => Err(to_rejection(refused)),
    }
}

async fn own_task(endpoint: &ToolEndpoint) -> Result<OwnTask, ToolRejection> {
    match call_daemon(endpoint, tool_call::Verb::Look(Look {})).await? {
        tool_answer::Answer::Task(task) => Ok(task),
        tool_answer::Answer::Noted(_) => Err(unexpected_answer()),
        tool_answer::Answer::Refused(refused) => Err(to_rejection(refused)),
    }
}

/// Retries while the daemon is absent. A call is never executed twice: only connections that the
/// daemon did not accept are retried.
async fn call_daemon(
    endpoint: &ToolEndpoint,
    verb: tool_call::Verb,
) -> Result<tool_answer::Answer, ToolRejection> {
    let mut pauses = RETRY_DELAYS.into_iter();
    loop {
        let error = match call_tool(endpoint, verb.clone()).await {
            Ok(answer) => return answer.answer.ok_or_else(unexpected_answer),
            Err(error) => error,
        };
        match pauses.next().filter(|_| is_daemon_absent(&error)) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return Err(daemon_unavailable(&error)),
        }
    }
}

/// The call did not reach a daemon.
fn is_daemon_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
    )
}

fn daemon_unavailable(error: &io::Error) -> ToolRejection {
    let next = "call again in a moment; task_get shows what the daemon has";
    ToolRejection::new(
        UNAVAILABLE,
        "daemon_silent",
        "the daemon does not answer",
        next,
    )
    .with_reason(error.to_string())
}

fn unexpected_answer() -> ToolRejection {
    let next = "the daemon is of another version; continue without these tools";
    ToolRejection::new(
        "internal",
        "misunderstood",
        "the daemon's answer has an unexpected type",
        next,
    )
}

fn not_allowed_inside(call: ToolOperation) -> ToolRejection {
    let next = match call {
        ToolOperation::Release => "stop working, or call task_block if you cannot continue",
        _ => "work on your own task; task_get shows it",
    };
    let what = "inside an attempt the daemon holds the lease; tasks cannot be claimed, picked up or released";
    ToolRejection::new(FAILED_PRECONDITION, "inside_an_attempt", what, next)
}

/// Any other task is reported as unknown, whether it exists or not.
fn check_own_task(task: &OwnTask, args: &McpArguments) -> Result<(), ToolRejection> {
    let own = task.r#ref.as_ref().map(|attempt| attempt.task_id.as_str());
    match args.given_text("task_id") {
        Some(named) if Some(named.as_str()) != own => {
            let next = "omit task_id: inside an attempt only its own task is available";
            Err(ToolRejection::new(
                "not_found",
                "unknown_task",
                "there is no such task here",
                next,
            ))
        }
        Some(_) | None => Ok(()),
    }
}

fn task_json(task: &OwnTask) -> Value {
    let attempt = task.r#ref.clone().unwrap_or_default();
    let mut shown = json!({
        "taskId": attempt.task_id,
        "attemptId": attempt.attempt_id,
        "attemptNumber": attempt.attempt_number,
        "state": "running",
        "goal": task.goal,
        "successCriteria": task.success_criteria,
        "cancelRequested": task.cancel_requested,
        "outcomeFixed": task.finish.is_some(),
    });
    if let Some(resume) = &task.resume {
        shown["resume"] = to_json(resume);
    }
    shown
}

fn with_next(mut answer: Value, next: &str) -> Value {
    answer["next"] = next.into();
    answer
}

fn to_rejection(refused: ToolRefused) -> ToolRejection {
    let status = DAEMON_STATUSES
        .into_iter()
        .find(|status| *status == refused.status);
    ToolRejection::from_detail(
        status.unwrap_or(FAILED_PRECONDITION),
        refused.error.unwrap_or_default(),
    )
}

/// Status names that a daemon uses.
const DAEMON_STATUSES: [&str; 4] = [
    "invalid_argument",
    "permission_denied",
    "unimplemented",
    "failed_precondition",
];
