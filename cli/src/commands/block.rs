//! `baton block`: parks a task for a person; what runs of it is stopped.

use baton_proto::to_json;
use baton_proto::v1::{AgentBlockRequest, BlockDraft, BlockTaskRequest, Task};
use clap::Args;

use crate::args::{HolderArg, JsonArg, RequiredReason, TaskArg};
use crate::client::Relay;
use crate::commands::lease;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;
use crate::ids;

#[derive(Args, Debug)]
pub(crate) struct BlockArgs {
    #[command(flatten)]
    task: TaskArg,

    #[command(flatten)]
    why: RequiredReason,

    /// What would help.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    hint: String,

    #[command(flatten)]
    holder: HolderArg,

    #[command(flatten)]
    json: JsonArg,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: BlockArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let task_id = args.task.find_because(&relay, &args.why).await?;
    let as_json = args.json.json;
    let task = block(&relay, task_id.clone(), args).await?;
    if as_json {
        console.json(&to_json(&task.ok_or_else(no_task)?))?;
    } else {
        console.note(&format!(
            "parked; send it on with: baton resume {task_id} --reason TEXT"
        ));
    }
    Ok(Exit::Done)
}

/// From outside, or by the one who holds it.
async fn block(relay: &Relay, task_id: String, args: BlockArgs) -> Result<Option<Task>, CliError> {
    let Some(attempt) = args.holder.attempt else {
        let request = BlockTaskRequest {
            task_id,
            reason: args.why.reason,
            resume_hint: args.hint,
        };
        let blocked = relay.tasks().block(request).await;
        let blocked = blocked.map_err(|status| lease::holders_way(status.into(), "block"));
        return Ok(blocked?.into_inner().task);
    };
    let attempt = ids::attempt_because(relay, &task_id, &attempt, &args.why.reason).await?;
    let request = AgentBlockRequest {
        lease: Some(lease::held(task_id, attempt)?),
        block: Some(BlockDraft {
            reason: args.why.reason,
            resume_hint: args.hint,
            checkpoint: None,
        }),
        ..AgentBlockRequest::default()
    };
    Ok(relay.agents().block(request).await?.into_inner().task)
}
