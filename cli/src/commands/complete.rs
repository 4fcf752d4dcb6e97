//! `baton complete`: completes a task by hand, when a person has seen that its work is done.

use baton_proto::v1::{AgentCompleteRequest, CompleteTaskRequest, Task};
use clap::Args;

use crate::client::Relay;
use crate::commands::{force, lease};
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;

#[derive(Args, Debug)]
pub(crate) struct CompleteArgs {
    /// Id of the task.
    #[arg(value_name = "TASK")]
    task_id: String,

    /// How you know that its work is done; it stands in the task's events.
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Complete it although files that it promised were not seen. This is on record, too.
    #[arg(long, conflicts_with = "attempt")]
    r#override: bool,

    /// The result, for those who read the task later.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    result: String,

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

pub(crate) async fn run(args: CompleteArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let as_json = args.json;
    let task = complete(&relay, args).await?;
    force::show(&task.ok_or_else(no_task)?, as_json, console)?;
    Ok(Exit::Done)
}

/// By hand, or by the one who holds it: what shows that its work is done is the summary of its progress then.
async fn complete(relay: &Relay, args: CompleteArgs) -> Result<Option<Task>, CliError> {
    let Some(attempt) = args.attempt else {
        let request = CompleteTaskRequest {
            task_id: args.task_id,
            reason: args.reason,
            r#override: args.r#override,
            result: args.result.into(),
        };
        let completed = relay.operator().complete_task(request).await;
        let completed = completed.map_err(|status| lease::holders_way(status.into(), "complete"));
        return Ok(completed?.into_inner().task);
    };
    let request = AgentCompleteRequest {
        lease: Some(lease::held(args.task_id, attempt)?),
        result: args.result.into(),
        summary: args.reason,
        ..AgentCompleteRequest::default()
    };
    let completed = relay.agents().complete(request).await;
    Ok(completed.map_err(files_elsewhere)?.into_inner().task)
}

/// An operator may say that files do not matter; the one who promised them may not.
fn files_elsewhere(status: tonic::Status) -> CliError {
    match CliError::from(status) {
        CliError::Refused(mut refusal) if refusal.machine_code == "contract_unmet" => {
            refusal.story.hint = "this command looks at no files: complete it with the tools of `baton mcp --root DIR`, which do"
                .to_owned();
            CliError::Refused(refusal)
        }
        other => other,
    }
}
