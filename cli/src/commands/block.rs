//! `baton block`: parks a task for a person; what runs of it is stopped.

use baton_proto::to_json;
use baton_proto::v1::{AgentBlockRequest, BlockDraft, BlockTaskRequest, Task};
use clap::Args;

use crate::client::Relay;
use crate::commands::lease;
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;

#[derive(Args, Debug)]
pub(crate) struct BlockArgs {
    /// Id of the task.
    #[arg(value_name = "TASK")]
    task_id: String,

    /// Why it cannot go on.
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// What would help.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    hint: String,

    /// The attempt whose lease you hold, as `baton claim` and `baton pick-up` print it; the lease token is taken from
    /// BATON_LEASE_TOKEN. For tokens of role agent.
    #[arg(long, value_name = "ATTEMPT")]
    attempt: Option<String>,

    /// Print the task as one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: BlockArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let (task_id, as_json) = (args.task_id.clone(), args.json);
    let task = block(&relay, args).await?.ok_or_else(no_task)?;
    if as_json {
        console.json(&to_json(&task))?;
    } else {
        console.note(&format!(
            "parked; send it on with: baton resume {task_id} --reason TEXT"
        ));
    }
    Ok(Exit::Done)
}

/// From outside, or by the one who holds it.
async fn block(relay: &Relay, args: BlockArgs) -> Result<Option<Task>, CliError> {
    let Some(attempt) = args.attempt else {
        let request = BlockTaskRequest {
            task_id: args.task_id,
            reason: args.reason,
            resume_hint: args.hint,
        };
        let blocked = relay.tasks().block(request).await;
        let blocked = blocked.map_err(|status| lease::holders_way(status.into(), "block"));
        return Ok(blocked?.into_inner().task);
    };
    let request = AgentBlockRequest {
        lease: Some(lease::held(args.task_id, attempt)?),
        block: Some(BlockDraft {
            reason: args.reason,
            resume_hint: args.hint,
            checkpoint: None,
        }),
        ..AgentBlockRequest::default()
    };
    Ok(relay.agents().block(request).await?.into_inner().task)
}
