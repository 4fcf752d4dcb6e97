//! `baton force-release` and `baton force-fail`: an operator ends attempts; and what one verb did to many tasks, row by row.

use baton_proto::v1::bulk_force_result::Result as RowResult;
use baton_proto::v1::{
    BulkForceRequest, BulkForceResponse, ForceFailRequest, ForceReleaseRequest, ForceVerb, Task,
};
use baton_proto::{ShortName, to_json};
use clap::Args;

use crate::client::Relay;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;
use crate::hints;
use crate::sanitize::one_line;
use crate::table::Table;

#[derive(Args, Debug)]
pub(crate) struct ForceArgs {
    /// Ids of tasks: one, or up to 50.
    #[arg(value_name = "TASK", required = true)]
    task_ids: Vec<String>,

    /// Why, for those who look at the task later; it stands in the task's events.
    #[arg(long, value_name = "TEXT")]
    reason: String,

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
    let Some(task_id) = only(&args)? else {
        return many(&relay, ForceVerb::Release, args, console).await;
    };
    let request = ForceReleaseRequest {
        task_id,
        attempt_id: args.attempt,
        reason: args.reason,
    };
    let answer = relay.operator().force_release(request).await?.into_inner();
    let task = answer.task.ok_or_else(no_task)?;
    show(&task, args.json, console)?;
    console.note("its daemon is told to stop; the next attempt waits until the processes are gone or the lease is over");
    Ok(Exit::Done)
}

pub(crate) async fn fail(args: ForceArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let Some(task_id) = only(&args)? else {
        return many(&relay, ForceVerb::Fail, args, console).await;
    };
    let request = ForceFailRequest {
        task_id,
        attempt_id: args.attempt,
        reason: args.reason,
    };
    let answer = relay.operator().force_fail(request).await?.into_inner();
    show(&answer.task.ok_or_else(no_task)?, args.json, console)?;
    Ok(Exit::Done)
}

fn only(args: &ForceArgs) -> Result<Option<String>, CliError> {
    match &args.task_ids[..] {
        [one] => Ok(Some(one.clone())),
        _several if !args.attempt.is_empty() => Err(CliError::usage(
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
    console: &Console,
) -> Result<Exit, CliError> {
    let request = BulkForceRequest {
        verb: verb.into(),
        task_ids: args.task_ids,
        reason: args.reason,
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
