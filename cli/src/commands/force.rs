//! `baton force-release` and `baton force-fail`: an operator ends attempts; and what one verb did to many tasks, row by row.

use baton_proto::v1::bulk_force_result::Result as RowResult;
use baton_proto::v1::{
    BulkForceRequest, BulkForceResponse, ForceFailRequest, ForceReleaseRequest, ForceVerb, Task,
};
use baton_proto::{ShortName, to_json};
use clap::Args;

use crate::args::{RequiredReason, TasksArg};
use crate::client::Relay;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;
use crate::hints;
use crate::ids;
use crate::sanitize::one_line;
use crate::table::Table;

#[derive(Args, Debug)]
pub(crate) struct ForceArgs {
    #[command(flatten)]
    tasks: TasksArg,

    #[command(flatten)]
    why: RequiredReason,

    /// Only if this is still the task's open attempt. For one task.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    attempt: String,

    /// Print the task as one JSON object; of several tasks, one object with a row for each.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn release(args: ForceArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let task_ids = args.tasks.find_because(&relay, &args.why).await?;
    let Some(task_id) = only(&task_ids, &args.attempt)? else {
        return many(&relay, ForceVerb::Release, args, task_ids, console).await;
    };
    let request = ForceReleaseRequest {
        attempt_id: ids::attempt_because(&relay, &task_id, &args.attempt, &args.why.reason).await?,
        task_id,
        reason: args.why.reason,
    };
    let answer = relay.operator().force_release(request).await?.into_inner();
    let task = answer.task.ok_or_else(no_task)?;
    show(&task, args.json, console)?;
    console.note("its daemon is told to stop; the next attempt waits until the processes are gone or the lease is over");
    Ok(Exit::Done)
}

pub(crate) async fn fail(args: ForceArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let task_ids = args.tasks.find_because(&relay, &args.why).await?;
    let Some(task_id) = only(&task_ids, &args.attempt)? else {
        return many(&relay, ForceVerb::Fail, args, task_ids, console).await;
    };
    let request = ForceFailRequest {
        attempt_id: ids::attempt_because(&relay, &task_id, &args.attempt, &args.why.reason).await?,
        task_id,
        reason: args.why.reason,
    };
    let answer = relay.operator().force_fail(request).await?.into_inner();
    show(&answer.task.ok_or_else(no_task)?, args.json, console)?;
    Ok(Exit::Done)
}

fn only(task_ids: &[String], attempt: &str) -> Result<Option<String>, CliError> {
    match task_ids {
        [one] => Ok(Some(one.clone())),
        _several if !attempt.is_empty() => Err(CliError::usage(
            "--attempt names an attempt of one task, and several tasks were given",
            "leave it out, or name one task",
        )),
        _several => Ok(None),
    }
}

async fn many(
    relay: &Relay,
    verb: ForceVerb,
    args: ForceArgs,
    task_ids: Vec<String>,
    console: &Console,
) -> Result<Exit, CliError> {
    let request = BulkForceRequest {
        verb: verb.into(),
        task_ids,
        reason: args.why.reason,
        allow_unsafe: false,
    };
    rows(relay, request, args.json, console).await
}

/// The state of a task after a verb.
pub(crate) fn show(task: &Task, json: bool, console: &Console) -> Result<(), CliError> {
    if json {
        console.json(&to_json(task))
    } else {
        console.line(task.state().short_name())
    }
}

/// One verb on many tasks: a row each. Exit 1 if any of them was refused.
pub(crate) async fn rows(
    relay: &Relay,
    request: BulkForceRequest,
    json: bool,
    console: &Console,
) -> Result<Exit, CliError> {
    let answer = relay.operator().bulk_force(request).await?.into_inner();
    if json {
        console.json(&to_json(&answer))?;
    } else {
        for line in table(&answer).lines() {
            console.line(&line)?;
        }
    }
    let refused = |row: &&_| {
        matches!(
            row,
            &&baton_proto::v1::BulkForceResult {
                result: Some(RowResult::Error(_)),
                ..
            }
        )
    };
    match answer.results.iter().filter(refused).count() {
        0 => Ok(Exit::Done),
        count => {
            console.note(&format!("{count} of {} were refused", answer.results.len()));
            Ok(Exit::NotCompleted)
        }
    }
}

fn table(answer: &BulkForceResponse) -> Table {
    let mut table = Table::new(["TASK", "RESULT", "WHY"]);
    for row in &answer.results {
        let (result, why) = match &row.result {
            Some(RowResult::Task(task)) => (task.state().short_name().to_owned(), String::new()),
            Some(RowResult::Error(error)) => {
                let hint = hints::in_flags(&error.code, &error.field, error.hint.clone());
                let why = format!("{}; {hint}", error.message);
                (error.code.clone(), why)
            }
            None => ("unknown".to_owned(), String::new()),
        };
        table.row([one_line(&row.task_id), one_line(&result), one_line(&why)]);
    }
    table
}
