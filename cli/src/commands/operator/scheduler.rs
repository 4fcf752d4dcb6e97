//! `baton scheduler`: how many tasks wait and run, and what is paused.

use baton_proto::to_json;
use baton_proto::v1::{PauseChange, SchedulerStatusRequest, SchedulerStatusResponse};
use clap::Args;

use crate::args::duration;
use crate::args::shared_args::JsonOutputArg;
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::clock;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::render::sanitizer::one_line;
use crate::render::task_view;

#[derive(Args, Debug)]
pub(crate) struct SchedulerArgs {
    #[command(flatten)]
    json: JsonOutputArg,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(
    args: SchedulerArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let request = SchedulerStatusRequest {};
    let status = relay
        .operator()
        .scheduler_status(request)
        .await?
        .into_inner();
    if args.json.json {
        console.json(&to_json(&status))?;
        return Ok(CommandExit::Done);
    }
    for line in status_lines(&status, clock::wall_ms()) {
        console.line(&line)?;
    }
    Ok(CommandExit::Done)
}

fn status_lines(status: &SchedulerStatusResponse, now_ms: u64) -> Vec<String> {
    let field =
        |name: &str, value: String| format!("{:<14}{}", format!("{name}:"), one_line(&value));
    let dispatching = match (status.paused, &*status.pause_reason) {
        (false, _) => "running".to_owned(),
        (true, reason) => format!("paused: {reason}"),
    };
    let oldest = match status.queued {
        0 => String::new(),
        _ => format!(
            ", oldest for {}",
            duration::format_short(status.oldest_queued_ms)
        ),
    };
    let mut lines = vec![
        field("dispatching", dispatching),
        field(
            "open",
            format!("{} of {}", status.open_tasks, status.open_tasks_limit),
        ),
        field("queued", format!("{}{oldest}", status.queued)),
        field("running", status.running.to_string()),
        field("pending", status.pending.to_string()),
        field("parked", status.needs_attention.to_string()),
        field("open inputs", status.pending_inputs.to_string()),
        field("paused tasks", status.paused_tasks.to_string()),
        field(
            "daemons",
            format!(
                "{} online, {} free slots",
                status.daemons_online, status.free_slots
            ),
        ),
    ];
    if !status.paused_tenants.is_empty() {
        lines.push(field("paused", status.paused_tenants.join(", ")));
    }
    if status.inherited > 0 {
        lines.push(field("inherited", status.inherited.to_string()));
    }
    let changes = status.pause_changes.iter();
    lines.extend(changes.map(|one| field("change", change_text(one, now_ms))));
    lines
}

fn change_text(change: &PauseChange, now_ms: u64) -> String {
    let what = match &*change.tenant {
        "*" => "all dispatching".to_owned(),
        tenant => format!("tenant {tenant}"),
    };
    let action = if change.paused { "paused" } else { "unpaused" };
    let why = match &*change.reason {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    let ago = task_view::age(change.at.as_ref(), now_ms);
    format!("{what} {action} by {} {ago} ago{why}", change.by)
}
