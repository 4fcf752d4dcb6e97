//! `baton tasks`: lists tasks, newest first.

use std::time::Duration;

use baton_proto::v1::{ListTasksRequest, ListTasksResponse, Task, TaskState, WaitsFor};
use baton_proto::{ShortName, to_json};
use clap::Args;
use prost_types::Timestamp;

use crate::args::task_spec;
use crate::args::{duration, pairs};
use crate::client::discovery::ConnectionArgs;
use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::client::wait_reason;
use crate::clock;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::render::sanitizer::one_line;
use crate::render::table::TextTable;
use crate::render::{task_details, task_view};

const PAGE_SIZE: u32 = 200;
/// The list explains why a task waits for at most this many tasks, because each costs a call.
const MAX_WAIT_REASONS: u32 = 20;

#[derive(Args, Debug)]
pub(crate) struct TasksArgs {
    /// Only tasks in this state, for example running or needs_attention. May be repeated.
    #[arg(long = "state", value_name = "STATE", value_parser = TaskState::from_short_name)]
    states: Vec<TaskState>,

    /// Only tasks of this agent.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    agent: String,

    /// Only tasks with this note. May be repeated; all must match.
    #[arg(long = "note", value_name = "KEY=VALUE", value_parser = pairs::pair)]
    labels: Vec<(String, String)>,

    /// Only tasks of this conversation.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    conversation: String,

    /// Only tasks that run on this daemon now, by id or name.
    #[arg(
        long,
        value_name = "DAEMON",
        default_value = "",
        hide_default_value = true
    )]
    daemon: String,

    /// Only tasks created within this time, for example 1h.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    since: Option<Duration>,

    /// Maximum number of tasks to list.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,

    /// Print one JSON object with the list in `tasks`.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(
    mut args: TasksArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    args.daemon = id_prefix::resolve_daemon(&relay, &args.daemon).await?;
    let now = clock::wall_ms();
    let (json, limit) = (args.json, args.limit);
    let request = list_request(args, now);
    let filtered = request != ListTasksRequest::default();
    let response = list_tasks(&relay, request, limit).await?;
    if json {
        console.json(&to_json(&response))?;
        return Ok(CommandExit::Done);
    }
    let mut table = TextTable::new(["TASK", "STATE", "AGENT", "ATTEMPTS", "AGE", "ABOUT"]);
    let mut explanations_left = MAX_WAIT_REASONS;
    for task in &response.tasks {
        let mut row = task_row(task, now);
        if task.waits_for() == WaitsFor::Daemon && explanations_left > 0 {
            explanations_left -= 1;
            let why = wait_reason::long_wait_reason(&relay, &task.task_id).await;
            row[5] = match why {
                Some(why) => format!("{why}; {}", row[5]),
                None => std::mem::take(&mut row[5]),
            };
        }
        table.row(row);
    }
    if table.is_empty() {
        console.note(if filtered {
            "no matching tasks; run `baton tasks` without filters to list all"
        } else {
            "no tasks; submit one with: baton submit -- echo hello"
        });
        return Ok(CommandExit::Done);
    }
    for line in table.lines() {
        console.line(&console.truncate_to_terminal(line))?;
    }
    if response.skipped > 0 {
        console.note(&format!(
            "{} records could not be read and are not listed",
            response.skipped
        ));
    }
    if !response.next_page_token.is_empty() {
        console.note(&format!(
            "only the newest {limit} are listed; raise --limit to see more"
        ));
    }
    Ok(CommandExit::Done)
}

fn list_request(args: TasksArgs, now_ms: u64) -> ListTasksRequest {
    let since = args
        .since
        .map(|since| timestamp(now_ms.saturating_sub(duration::millis(since))));
    ListTasksRequest {
        states: args.states.into_iter().map(i32::from).collect(),
        agent: args.agent,
        conversation_id: args.conversation,
        labels: task_spec::pairs_to_map(args.labels),
        since,
        daemon: args.daemon,
        ..ListTasksRequest::default()
    }
}

fn timestamp(ms: u64) -> Timestamp {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    let nanos = i32::try_from(ms % 1000).unwrap_or(0) * 1_000_000;
    Timestamp { seconds, nanos }
}

/// Joins as many pages as `limit` needs.
async fn list_tasks(
    relay: &RelayClient,
    mut request: ListTasksRequest,
    limit: u32,
) -> Result<ListTasksResponse, CliError> {
    let mut all = ListTasksResponse::default();
    let mut left = limit;
    loop {
        request.page_size = left.min(PAGE_SIZE);
        let page = relay.tasks().list(request.clone()).await?.into_inner();
        left = left.saturating_sub(u32::try_from(page.tasks.len()).unwrap_or(u32::MAX));
        all.tasks.extend(page.tasks);
        all.skipped += page.skipped;
        all.next_page_token.clone_from(&page.next_page_token);
        if left == 0 || page.next_page_token.is_empty() {
            return Ok(all);
        }
        request.page_token = page.next_page_token;
    }
}

fn task_row(task: &Task, now_ms: u64) -> [String; 6] {
    // A task inherited by an import can wait for a day, so the list shows that.
    let waiting =
        task_view::wait_text(task, now_ms).filter(|_| task.waits_for() == WaitsFor::Inheritance);
    let waiting = waiting.or_else(|| task_view::pending_action_text(task));
    let description = || match task_view::task_description(task) {
        empty if empty.is_empty() => one_line(&task_details::format_pairs(&task.labels)),
        description => description,
    };
    let why = waiting.or_else(|| task_view::reason_text(task));
    let about = match why {
        Some(why) => format!("{why}; {}", description()),
        None => description(),
    };
    [
        one_line(&task.task_id),
        task.state().short_name().to_owned(),
        one_line(&task.agent),
        task.attempt_count.to_string(),
        task_view::age(task.created_at.as_ref(), now_ms),
        about,
    ]
}
