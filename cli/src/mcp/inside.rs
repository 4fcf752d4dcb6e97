//! A server inside an attempt that a daemon runs: it speaks to that daemon with the attempt's own capability, and knows
//! neither a token nor the relay. The daemon answers for this one task; it has no rights of a client.

use std::io;
use std::time::Duration;

use baton_daemon::tools::{Place, ask};
use baton_proto::to_json;
use baton_proto::verbs::Call;
use baton_proto::worker::{Look, OwnTask, ToolRefused, tool_answer, tool_call};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::answer::{Answer, PRECONDITION, Refusal, UNAVAILABLE};
use super::fields::Args;
use super::requests;
use super::server::Asked;

/// Before each further try: a daemon that is replaced is back within seconds.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(200),
    Duration::from_millis(600),
    Duration::from_millis(1500),
    Duration::from_millis(3000),
    Duration::from_millis(5000),
];

pub(super) async fn serve(place: Place, mut calls: mpsc::Receiver<Asked>) {
    while let Some(asked) = calls.recv().await {
        let answer = answer(&place, asked.call, &asked.args).await;
        // Whoever asked may have gone.
        let _ = asked.reply.send(answer);
    }
}

async fn answer(place: &Place, call: Call, args: &Args) -> Answer {
    match call {
        Call::Start | Call::Claim | Call::PickUp | Call::Release => Err(not_inside(call)),
        Call::Get => {
            let task = own_task(place).await?;
            check_own(&task, args)?;
            Ok(json!({"task": shown(&task), "scope": SCOPE}))
        }
        Call::List => {
            let task = own_task(place).await?;
            Ok(json!({"tasks": [shown(&task)], "scope": SCOPE}))
        }
        Call::ListBlocked => {
            own_task(place).await?;
            Ok(json!({"tasks": [], "scope": SCOPE, "next": "go on with your own task"}))
        }
        Call::GetBlocked => {
            check_own(&own_task(place).await?, args)?;
            let next = "task_get shows it";
            Err(Refusal::new(
                PRECONDITION,
                "not_blocked",
                "this task is not blocked: you work on it",
                next,
            ))
        }
        Call::Progress => {
            tell(
                place,
                args,
                tool_call::Verb::Progress(requests::progress(args)),
            )
            .await
        }
        Call::Checkpoint => {
            tell(
                place,
                args,
                tool_call::Verb::Checkpoint(requests::checkpoint(args)),
            )
            .await
        }
        Call::Block => {
            let told = tell(place, args, tool_call::Verb::Block(requests::block(args))).await;
            told.map(|told| {
                with_next(
                    told,
                    "end your work: the daemon ends this process when the task is parked",
                )
            })
        }
        Call::Complete => {
            let told = tell(place, args, tool_call::Verb::Finish(requests::finish(args))).await;
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
const SCOPE: &str = "own_task";

async fn tell(place: &Place, args: &Args, verb: tool_call::Verb) -> Answer {
    if args.given_text("task_id").is_some() {
        check_own(&own_task(place).await?, args)?;
    }
    match exchange(place, verb).await? {
        tool_answer::Answer::Noted(noted) => Ok(json!({
            "noted": true,
            "delivered": noted.delivered,
        })),
        tool_answer::Answer::Task(_) => Err(misunderstood()),
        tool_answer::Answer::Refused(refused) => Err(refusal(refused)),
    }
}

async fn own_task(place: &Place) -> Result<OwnTask, Refusal> {
    match exchange(place, tool_call::Verb::Look(Look {})).await? {
        tool_answer::Answer::Task(task) => Ok(task),
        tool_answer::Answer::Noted(_) => Err(misunderstood()),
        tool_answer::Answer::Refused(refused) => Err(refusal(refused)),
    }
}

/// A daemon that is gone for a moment is asked again; nothing is said twice, because what broke off before its answer was
/// either not heard or is told under one number.
async fn exchange(place: &Place, verb: tool_call::Verb) -> Result<tool_answer::Answer, Refusal> {
    let mut pauses = PAUSES.into_iter();
    loop {
        let error = match ask(place, verb.clone()).await {
            Ok(answer) => return answer.answer.ok_or_else(misunderstood),
            Err(error) => error,
        };
        match pauses.next().filter(|_| is_absence(&error)) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return Err(silent(&error)),
        }
    }
}

/// Nobody was there to hear it.
fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
    )
}

fn silent(error: &io::Error) -> Refusal {
    let next = "call again in a moment; task_get shows what the daemon has";
    Refusal::new(
        UNAVAILABLE,
        "daemon_silent",
        "the daemon does not answer",
        next,
    )
    .because(error.to_string())
}

fn misunderstood() -> Refusal {
    let next = "the daemon is of another version; go on without tools";
    Refusal::new(
        "internal",
        "misunderstood",
        "the daemon's answer makes no sense",
        next,
    )
}

fn not_inside(call: Call) -> Refusal {
    let next = match call {
        Call::Release => "end your work, or call task_block when you cannot go on",
        _ => "work on your own task; task_get shows it",
    };
    let what =
        "inside an attempt the daemon holds the task, and no other can be taken or given back";
    Refusal::new(PRECONDITION, "inside_an_attempt", what, next)
}

/// Other tasks look alike, whether they exist or not.
fn check_own(task: &OwnTask, args: &Args) -> Result<(), Refusal> {
    let own = task.r#ref.as_ref().map(|attempt| attempt.task_id.as_str());
    match args.given_text("task_id") {
        Some(named) if Some(named.as_str()) != own => {
            let next = "leave task_id out: inside an attempt there is only its own task";
            Err(Refusal::new(
                "not_found",
                "unknown_task",
                "there is no such task here",
                next,
            ))
        }
        Some(_) | None => Ok(()),
    }
}

fn shown(task: &OwnTask) -> Value {
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

fn refusal(refused: ToolRefused) -> Refusal {
    let status = STATUSES.into_iter().find(|word| *word == refused.status);
    Refusal::from_detail(
        status.unwrap_or(PRECONDITION),
        refused.error.unwrap_or_default(),
    )
}

/// Classes that a daemon answers with.
const STATUSES: [&str; 4] = [
    "invalid_argument",
    "permission_denied",
    "unimplemented",
    "failed_precondition",
];
