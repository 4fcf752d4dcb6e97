//! `baton complete`: completes a task by hand after a person has checked that its work is done.

use baton_proto::v1::{AgentCompleteRequest, CompleteTaskRequest, Task};
use clap::Args;

use crate::args::shared_args::{JsonOutputArg, LeaseHolderArg, RequiredReasonArg, TaskIdArg};
use crate::client::discovery::ConnectionArgs;
use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::commands::agent::lease;
use crate::commands::operator::force;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::follow::task_follower::missing_task_error;
use crate::render::console::CliConsole;

#[derive(Args, Debug)]
pub(crate) struct CompleteArgs {
    #[command(flatten)]
    task: TaskIdArg,

    #[command(flatten)]
    why: RequiredReasonArg,

    /// Complete the task although required files are missing. This is recorded.
    #[arg(long, conflicts_with = "attempt")]
    r#override: bool,

    /// The result, for people who read the task later.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    result: String,

    #[command(flatten)]
    holder: LeaseHolderArg,

    #[command(flatten)]
    json: JsonOutputArg,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: CompleteArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let task_id = args.task.resolve_with_reason(&relay, &args.why).await?;
    let as_json = args.json.json;
    let task = complete(&relay, task_id, args).await?;
    force::print_task(&task.ok_or_else(missing_task_error)?, as_json, console)?;
    Ok(CommandExit::Done)
}

/// Completes the task as an operator or, with --attempt, as the holder of its lease. The holder's reason
/// becomes the summary of the result.
async fn complete(
    relay: &RelayClient,
    task_id: String,
    args: CompleteArgs,
) -> Result<Option<Task>, CliError> {
    let Some(attempt) = args.holder.attempt else {
        let request = CompleteTaskRequest {
            task_id,
            reason: args.why.reason,
            r#override: args.r#override,
            result: args.result.into(),
        };
        let completed = relay.operator().complete_task(request).await;
        let completed =
            completed.map_err(|status| lease::with_holder_hint(status.into(), "complete"));
        return Ok(completed?.into_inner().task);
    };
    let attempt =
        id_prefix::resolve_attempt_id_with_reason(relay, &task_id, &attempt, &args.why.reason)
            .await?;
    let request = AgentCompleteRequest {
        lease: Some(lease::lease_from_environment(task_id, attempt)?),
        result: args.result.into(),
        summary: args.why.reason,
        ..AgentCompleteRequest::default()
    };
    let completed = relay.agents().complete(request).await;
    Ok(completed.map_err(with_file_check_hint)?.into_inner().task)
}

/// Only an operator may override missing files; the holder of the lease may not.
fn with_file_check_hint(status: tonic::Status) -> CliError {
    match CliError::from(status) {
        CliError::Rejected(mut rejection) if rejection.machine_code == "contract_unmet" => {
            rejection.text.hint = "this command does not check files: complete the task with the tools of `baton mcp --root DIR`"
                .to_owned();
            CliError::Rejected(rejection)
        }
        other => other,
    }
}
