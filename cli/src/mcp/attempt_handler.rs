//! A server inside an attempt that a daemon runs: it speaks to that daemon with the attempt's own capability, and knows
//! neither a token nor the relay. The daemon answers for this one task; it has no rights of a client.

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

/// Before each further try: a daemon that is replaced is back within seconds.
const RETRY_DELAYS: [Duration; 5] = [
    Duration::from_millis(200),
    Duration::from_millis(600),
    Duration::from_millis(1500),
    Duration::from_millis(3000),
    Duration::from_millis(5000),
];

pub(super) async fn serve(place: ToolEndpoint, mut calls: mpsc::Receiver<PendingToolCall>) {
    while let Some(asked) = calls.recv().await {
        let answer = answer_call(&place, asked.call, &asked.args).await;
        // Whoever asked may have gone.
        let _ = asked.reply.send(answer);
    }
}

async fn answer_call(place: &ToolEndpoint, call: ToolOperation, args: &McpArguments) -> ToolResult {
    match call {
        ToolOperation::Start
        | ToolOperation::Claim
        | ToolOperation::PickUp
        | ToolOperation::Release => Err(not_allowed_inside(call)),
        ToolOperation::Get => {
            let task = own_task(place).await?;
            check_own_task(&task, args)?;
            Ok(json!({"task": task_json(&task), "scope": OWN_TASK_SCOPE}))
        }
        ToolOperation::List => {
            let task = own_task(place).await?;
            Ok(json!({"tasks": [task_json(&task)], "scope": OWN_TASK_SCOPE}))
        }
        ToolOperation::ListBlocked => {
            own_task(place).await?;
            Ok(json!({"tasks": [], "scope": OWN_TASK_SCOPE, "next": "go on with your own task"}))
        }
        ToolOperation::GetBlocked => {
            check_own_task(&own_task(place).await?, args)?;
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
                place,
                args,
                tool_call::Verb::Progress(requests::progress(args)),
            )
            .await
        }
        ToolOperation::Checkpoint => {
            send_verb(
                place,
                args,
                tool_call::Verb::Checkpoint(requests::checkpoint(args)),
            )
            .await
        }
        ToolOperation::Block => {
            let told = send_verb(place, args, tool_call::Verb::Block(requests::block(args))).await;
            told.map(|told| {
                with_next(
                    told,
                    "end your work: the daemon ends this process when the task is parked",
                )
            })
        }
        ToolOperation::Complete => {
            let told =
                send_verb(place, args, tool_call::Verb::Finish(requests::finish(args))).await;
            told.map(|told| {
                with_next(
                    told,
                    "end your work: the outcome is fixed and is told when this process has ended",
                )
            })
        }
    }
}

/// What reads mean here.
const OWN_TASK_SCOPE: &str = "own_task";

async fn send_verb(place: &ToolEndpoint, args: &McpArguments, verb: tool_call::Verb) -> ToolResult {
    if args.given_text("task_id").is_some() {
        check_own_task(&own_task(place).await?, args)?;
    }
    match call_daemon(place, verb).await? {
        tool_answer::Answer::Noted(noted) => Ok(json!({
            "noted": true,
            "delivered": noted.delivered,
        })),
        tool_answer::Answer::Task(_) => Err(unexpected_answer()),
        tool_answer::Answer::Refused(refused) => Err(to_rejection(refused)),
    }
}

async fn own_task(place: &ToolEndpoint) -> Result<OwnTask, ToolRejection> {
    match call_daemon(place, tool_call::Verb::Look(Look {})).await? {
        tool_answer::Answer::Task(task) => Ok(task),
        tool_answer::Answer::Noted(_) => Err(unexpected_answer()),
        tool_answer::Answer::Refused(refused) => Err(to_rejection(refused)),
    }
}

/// A daemon that is gone for a moment is asked again; nothing is said twice, because what broke off before its answer was
/// either not heard or is told under one number.
async fn call_daemon(
    place: &ToolEndpoint,
    verb: tool_call::Verb,
) -> Result<tool_answer::Answer, ToolRejection> {
    let mut pauses = RETRY_DELAYS.into_iter();
    loop {
        let error = match call_tool(place, verb.clone()).await {
            Ok(answer) => return answer.answer.ok_or_else(unexpected_answer),
            Err(error) => error,
        };
        match pauses.next().filter(|_| is_daemon_absent(&error)) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return Err(daemon_unavailable(&error)),
        }
    }
}

/// Nobody was there to hear it.
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
    let next = "the daemon is of another version; go on without tools";
    ToolRejection::new(
        "internal",
        "misunderstood",
        "the daemon's answer makes no sense",
        next,
    )
}

fn not_allowed_inside(call: ToolOperation) -> ToolRejection {
    let next = match call {
        ToolOperation::Release => "end your work, or call task_block when you cannot go on",
        _ => "work on your own task; task_get shows it",
    };
    let what =
        "inside an attempt the daemon holds the task, and no other can be taken or given back";
    ToolRejection::new(FAILED_PRECONDITION, "inside_an_attempt", what, next)
}

/// Other tasks look alike, whether they exist or not.
fn check_own_task(task: &OwnTask, args: &McpArguments) -> Result<(), ToolRejection> {
    let own = task.r#ref.as_ref().map(|attempt| attempt.task_id.as_str());
    match args.given_text("task_id") {
        Some(named) if Some(named.as_str()) != own => {
            let next = "leave task_id out: inside an attempt there is only its own task";
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

fn with_next(mut told: Value, next: &str) -> Value {
    told["next"] = next.into();
    told
}

fn to_rejection(refused: ToolRefused) -> ToolRejection {
    let status = DAEMON_STATUSES
        .into_iter()
        .find(|word| *word == refused.status);
    ToolRejection::from_detail(
        status.unwrap_or(FAILED_PRECONDITION),
        refused.error.unwrap_or_default(),
    )
}

/// Classes that a daemon answers with.
const DAEMON_STATUSES: [&str; 4] = [
    "invalid_argument",
    "permission_denied",
    "unimplemented",
    "failed_precondition",
];
