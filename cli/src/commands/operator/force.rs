//! `baton force-release` and `baton force-fail`: an operator ends attempts. Also runs an operation on
//! several tasks and prints one row for each.

use baton_proto::v1::bulk_force_result::Result as RowResult;
use baton_proto::v1::{
    BulkForceRequest, BulkForceResponse, ForceFailRequest, ForceReleaseRequest, ForceVerb, Task,
};
use baton_proto::{ShortName, to_json};
use clap::Args;

use crate::args::shared_args::{RequiredReasonArg, TaskIdsArg};
use crate::client::discovery::ConnectionArgs;
use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::error::flag_hints;
use crate::follow::task_follower::missing_task_error;
use crate::render::console::CliConsole;
use crate::render::sanitizer::one_line;
use crate::render::table::TextTable;

#[derive(Args, Debug)]
pub(crate) struct ForceArgs {
    #[command(flatten)]
    tasks: TaskIdsArg,

    #[command(flatten)]
    why: RequiredReasonArg,

    /// Act only if this is still the task's open attempt. For a single task.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    attempt: String,

    /// Print the task as one JSON object; for several tasks, one object with a row for each.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn release(
    args: ForceArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let task_ids = args.tasks.resolve_with_reason(&relay, &args.why).await?;
    let Some(task_id) = single_task_id(&task_ids, &args.attempt)? else {
        return force_many(&relay, ForceVerb::Release, args, task_ids, console).await;
    };
    let request = ForceReleaseRequest {
        attempt_id: id_prefix::resolve_attempt_id_with_reason(
            &relay,
            &task_id,
            &args.attempt,
            &args.why.reason,
        )
        .await?,
        task_id,
        reason: args.why.reason,
    };
    let answer = relay.operator().force_release(request).await?.into_inner();
    let task = answer.task.ok_or_else(missing_task_error)?;
    print_task(&task, args.json, console)?;
    console.note("its daemon was asked to stop; the next attempt waits until the processes are dead or the lease has ended");
    Ok(CommandExit::Done)
}

pub(crate) async fn fail(args: ForceArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let task_ids = args.tasks.resolve_with_reason(&relay, &args.why).await?;
    let Some(task_id) = single_task_id(&task_ids, &args.attempt)? else {
        return force_many(&relay, ForceVerb::Fail, args, task_ids, console).await;
    };
    let request = ForceFailRequest {
        attempt_id: id_prefix::resolve_attempt_id_with_reason(
            &relay,
            &task_id,
            &args.attempt,
            &args.why.reason,
        )
        .await?,
        task_id,
        reason: args.why.reason,
    };
    let answer = relay.operator().force_fail(request).await?.into_inner();
    print_task(
        &answer.task.ok_or_else(missing_task_error)?,
        args.json,
        console,
    )?;
    Ok(CommandExit::Done)
}

fn single_task_id(task_ids: &[String], attempt: &str) -> Result<Option<String>, CliError> {
    match task_ids {
        [one] => Ok(Some(one.clone())),
        _several if !attempt.is_empty() => Err(CliError::usage(
            "--attempt works with a single task only",
            "omit --attempt, or pass one task",
        )),
        _several => Ok(None),
    }
}

async fn force_many(
    relay: &RelayClient,
    verb: ForceVerb,
    args: ForceArgs,
    task_ids: Vec<String>,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let request = BulkForceRequest {
        verb: verb.into(),
        task_ids,
        reason: args.why.reason,
        allow_unsafe: false,
    };
    run_bulk_force(relay, request, args.json, console).await
}

/// Prints the state of a task after an operation.
pub(crate) fn print_task(task: &Task, json: bool, console: &CliConsole) -> Result<(), CliError> {
    if json {
        console.json(&to_json(task))
    } else {
        console.line(task.state().short_name())
    }
}

/// Runs an operation on several tasks and prints a row for each. The exit code is 1 if any was refused.
pub(crate) async fn run_bulk_force(
    relay: &RelayClient,
    request: BulkForceRequest,
    json: bool,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let answer = relay.operator().bulk_force(request).await?.into_inner();
    if json {
        console.json(&to_json(&answer))?;
    } else {
        for line in result_table(&answer).lines() {
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
        0 => Ok(CommandExit::Done),
        count => {
            console.note(&format!("{count} of {} were refused", answer.results.len()));
            Ok(CommandExit::NotCompleted)
        }
    }
}

fn result_table(answer: &BulkForceResponse) -> TextTable {
    let mut table = TextTable::new(["TASK", "RESULT", "WHY"]);
    for row in &answer.results {
        let (result, why) = match &row.result {
            Some(RowResult::Task(task)) => (task.state().short_name().to_owned(), String::new()),
            Some(RowResult::Error(error)) => {
                let hint =
                    flag_hints::hint_with_flags(&error.code, &error.field, error.hint.clone());
                let why = format!("{}; {hint}", error.message);
                (error.code.clone(), why)
            }
            None => ("unknown".to_owned(), String::new()),
        };
        table.row([one_line(&row.task_id), one_line(&result), one_line(&why)]);
    }
    table
}
