//! `baton blocked`: lists parked tasks, newest first.

use baton_proto::v1::{AttentionCause, BlockedTask, ListBlockedRequest, ListBlockedResponse};
use baton_proto::{ShortName, to_json};
use clap::Args;

use crate::args::duration;
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::render::sanitizer::one_line;
use crate::render::table::TextTable;

#[derive(Args, Debug)]
pub(crate) struct BlockedArgs {
    /// Maximum number of tasks to list. The default is all.
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,

    /// Print one JSON object with the list in `tasks`.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: BlockedArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let mut tasks = list_blocked(&relay, args.limit).await?;
    tasks.truncate(args.limit.unwrap_or(usize::MAX));
    if args.json {
        let list = ListBlockedResponse {
            tasks,
            ..ListBlockedResponse::default()
        };
        console.json(&to_json(&list))?;
        return Ok(CommandExit::Done);
    }
    if tasks.is_empty() {
        console.note("no parked tasks");
        return Ok(CommandExit::Done);
    }
    let mut table = TextTable::new(["TASK", "SINCE", "CAUSE", "REASON", "GOAL"]);
    for task in &tasks {
        table.row(blocked_row(task));
    }
    for line in table.lines() {
        console.line(&line)?;
    }
    console.note("resume one with: baton resume TASK --reason TEXT");
    Ok(CommandExit::Done)
}

async fn list_blocked(
    relay: &RelayClient,
    limit: Option<usize>,
) -> Result<Vec<BlockedTask>, CliError> {
    let mut request = ListBlockedRequest {
        page_size: 200,
        ..ListBlockedRequest::default()
    };
    let mut tasks = Vec::new();
    loop {
        let page = relay.tasks().list_blocked(request.clone()).await?;
        let page = page.into_inner();
        tasks.extend(page.tasks);
        let enough = limit.is_some_and(|limit| tasks.len() >= limit);
        if enough || page.next_page_token.is_empty() {
            return Ok(tasks);
        }
        request.page_token = page.next_page_token;
    }
}

fn blocked_row(task: &BlockedTask) -> [String; 5] {
    let attention = task.attention.clone().unwrap_or_default();
    let cause = AttentionCause::try_from(attention.cause).unwrap_or_default();
    [
        task.task_id.clone(),
        duration::format_short(task.age_ms),
        cause.short_name().to_owned(),
        one_line(&attention.reason),
        one_line(&task.goal),
    ]
}
