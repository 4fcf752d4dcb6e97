//! `baton attempts`: lists attempts of all tasks or of one task.

use baton_proto::v1::{AttemptState, ListAttemptsRequest, ListAttemptsResponse, ListedAttempt};
use baton_proto::{ShortName, to_json};
use clap::Args;

use crate::client::discovery::ConnectionArgs;
use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::render::sanitizer::one_line;
use crate::render::table::TextTable;

const PAGE_SIZE: u32 = 200;

#[derive(Args, Debug)]
pub(crate) struct AttemptsArgs {
    /// Only attempts of this task.
    #[arg(value_name = "TASK", default_value = "", hide_default_value = true)]
    task_id: String,

    /// Only attempts in this state, for example lost. May be repeated.
    #[arg(long = "state", value_name = "STATE", value_parser = AttemptState::from_short_name)]
    states: Vec<AttemptState>,

    /// Only attempts that this daemon holds or held, by id or name.
    #[arg(
        long,
        value_name = "DAEMON",
        default_value = "",
        hide_default_value = true
    )]
    daemon: String,

    /// Maximum number of attempts to list.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,

    /// Print one JSON object with the list in `attempts`.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: AttemptsArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let (json, limit) = (args.json, args.limit);
    let response = list_attempts(&relay, args).await?;
    if json {
        console.json(&to_json(&response))?;
        return Ok(CommandExit::Done);
    }
    let mut table = TextTable::new(["TASK", "NO", "STATE", "DAEMON", "ATTEMPT", "FAILURE"]);
    for row in &response.attempts {
        table.row(attempt_row(row));
    }
    if table.is_empty() {
        console.note("no matching attempts");
        return Ok(CommandExit::Done);
    }
    for line in table.lines() {
        console.line(&line)?;
    }
    if !response.next_page_token.is_empty() {
        console.note(&format!(
            "only the newest {limit} are listed; raise --limit to see more"
        ));
    }
    Ok(CommandExit::Done)
}

/// Joins as many pages as the limit needs.
async fn list_attempts(
    relay: &RelayClient,
    args: AttemptsArgs,
) -> Result<ListAttemptsResponse, CliError> {
    let mut request = ListAttemptsRequest {
        task_id: id_prefix::resolve_task_id(relay, &args.task_id).await?,
        states: args.states.into_iter().map(i32::from).collect(),
        daemon: id_prefix::resolve_daemon(relay, &args.daemon).await?,
        ..ListAttemptsRequest::default()
    };
    let mut all = ListAttemptsResponse::default();
    let mut left = args.limit;
    loop {
        request.page_size = left.min(PAGE_SIZE);
        let page = relay.operator().list_attempts(request.clone()).await?;
        let page = page.into_inner();
        left = left.saturating_sub(u32::try_from(page.attempts.len()).unwrap_or(u32::MAX));
        all.attempts.extend(page.attempts);
        all.next_page_token.clone_from(&page.next_page_token);
        if left == 0 || page.next_page_token.is_empty() {
            return Ok(all);
        }
        request.page_token = page.next_page_token;
    }
}

fn attempt_row(row: &ListedAttempt) -> [String; 6] {
    let attempt = row.attempt.clone().unwrap_or_default();
    [
        one_line(&row.task_id),
        attempt.attempt_number.to_string(),
        attempt.state().short_name().to_owned(),
        one_line(&attempt.daemon_name),
        one_line(&attempt.attempt_id),
        one_line(&attempt.failure_code),
    ]
}
