//! `baton complete`: completes a task by hand, when a person has seen that its work is done.

use baton_proto::v1::{AgentCompleteRequest, CompleteTaskRequest, Task};
use clap::Args;

use crate::args::{HolderArg, JsonArg, RequiredReason, TaskArg};
use crate::client::Relay;
use crate::commands::{force, lease};
use crate::console::Console;
use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::follow::no_task;
use crate::ids;

#[derive(Args, Debug)]
pub(crate) struct CompleteArgs {
    #[command(flatten)]
    task: TaskArg,

    #[command(flatten)]
    why: RequiredReason,

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

    #[command(flatten)]
    holder: HolderArg,

    #[command(flatten)]
    json: JsonArg,

    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: CompleteArgs, console: &Console) -> Result<Exit, CliError> {
    let relay = Relay::discover(&args.relay).await?;
    let task_id = args.task.find_because(&relay, &args.why).await?;
    let as_json = args.json.json;
    let task = complete(&relay, task_id, args).await?;
    force::show(&task.ok_or_else(no_task)?, as_json, console)?;
    Ok(Exit::Done)
}

/// By hand, or by the one who holds it: what shows that its work is done is the summary of its progress then.
async fn complete(
    relay: &Relay,
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
        let completed = completed.map_err(|status| lease::holders_way(status.into(), "complete"));
        return Ok(completed?.into_inner().task);
    };
    let attempt = ids::attempt_because(relay, &task_id, &attempt, &args.why.reason).await?;
    let request = AgentCompleteRequest {
        lease: Some(lease::held(task_id, attempt)?),
        result: args.result.into(),
        summary: args.why.reason,
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
