//! `baton block`: parks a task for a person and stops its running attempt.

use baton_proto::to_json;
use baton_proto::v1::{AgentBlockRequest, BlockDraft, BlockTaskRequest, Task};
use clap::Args;

use crate::args::shared_args::{JsonOutputArg, LeaseHolderArg, RequiredReasonArg, TaskIdArg};
use crate::client::discovery::ConnectionArgs;
use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::commands::agent::lease;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::follow::task_follower::missing_task_error;
use crate::render::console::CliConsole;

#[derive(Args, Debug)]
pub(crate) struct BlockArgs {
    #[command(flatten)]
    task: TaskIdArg,

    #[command(flatten)]
    why: RequiredReasonArg,

    /// What would help to continue the task.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    hint: String,

    #[command(flatten)]
    holder: LeaseHolderArg,

    #[command(flatten)]
    json: JsonOutputArg,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: BlockArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let task_id = args.task.resolve_with_reason(&relay, &args.why).await?;
    let as_json = args.json.json;
    let task = block(&relay, task_id.clone(), args).await?;
    if as_json {
        console.json(&to_json(&task.ok_or_else(missing_task_error)?))?;
    } else {
        console.note(&format!(
            "parked; resume it with: baton resume {task_id} --reason TEXT"
        ));
    }
    Ok(CommandExit::Done)
}

/// Blocks the task from outside or, with --attempt, as the holder of its lease.
async fn block(
    relay: &RelayClient,
    task_id: String,
    args: BlockArgs,
) -> Result<Option<Task>, CliError> {
    let Some(attempt) = args.holder.attempt else {
        let request = BlockTaskRequest {
            task_id,
            reason: args.why.reason,
            resume_hint: args.hint,
        };
        let blocked = relay.tasks().block(request).await;
        let blocked = blocked.map_err(|status| lease::with_holder_hint(status.into(), "block"));
        return Ok(blocked?.into_inner().task);
    };
    let attempt =
        id_prefix::resolve_attempt_id_with_reason(relay, &task_id, &attempt, &args.why.reason)
            .await?;
    let request = AgentBlockRequest {
        lease: Some(lease::lease_from_environment(task_id, attempt)?),
        block: Some(BlockDraft {
            reason: args.why.reason,
            resume_hint: args.hint,
            checkpoint: None,
        }),
        ..AgentBlockRequest::default()
    };
    Ok(relay.agents().block(request).await?.into_inner().task)
}
