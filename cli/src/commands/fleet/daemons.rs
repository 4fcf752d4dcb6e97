//! `baton daemons`: lists daemons and their attempts.

use baton_proto::v1::{
    AgentInfo, AttemptState, Daemon, DaemonLoad, DaemonOperation, DaemonStanding, HeldAttempt,
    LifecyclePhase, ListDaemonsRequest, ListDaemonsResponse,
};
use baton_proto::{ShortName, short_name_of, to_json};
use clap::Args;

use crate::args::duration;
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::clock;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::render::sanitizer::one_line;
use crate::render::table::TextTable;
use crate::render::{task_details, task_view};

#[derive(Args, Debug)]
pub(crate) struct DaemonsArgs {
    /// List daemons that an operator has removed with `baton forget` instead, with who and why.
    #[arg(long)]
    forgotten: bool,

    /// List operations on daemons instead (drain, disconnect), with who, why, and the state before and after.
    #[arg(long, conflicts_with = "forgotten")]
    changes: bool,

    /// Print one JSON object with the list in `daemons`.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: DaemonsArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let listed = list_daemons(&relay, &args).await?;
    if args.json {
        console.json(&to_json(&listed))?;
        return Ok(CommandExit::Done);
    }
    if args.forgotten {
        return print_forgotten(&listed, console);
    }
    if args.changes {
        return print_changes(&listed, console);
    }
    let daemons = listed.daemons;
    let now = clock::wall_ms();
    let mut table = TextTable::new([
        "NAME", "STATE", "FREE", "LOAD", "AGENTS", "LABELS", "SEEN", "ID",
    ]);
    for daemon in &daemons {
        table.row(daemon_row(daemon, now));
    }
    if table.is_empty() {
        console.note("no daemons; start one with: baton daemon --token-file FILE, or try everything with: baton up");
        return Ok(CommandExit::Done);
    }
    for line in table.lines() {
        console.line(&line)?;
    }
    print_drains(&daemons, now, console)?;
    print_attempts(&daemons, console)
}

/// Prints who drained which daemon, and why.
fn print_drains(daemons: &[Daemon], now: u64, console: &CliConsole) -> Result<(), CliError> {
    let mut table = TextTable::new(["DRAINED", "SINCE", "BY", "REASON"]);
    for daemon in daemons.iter().filter(|one| one.drained_at.is_some()) {
        table.row([
            one_line(&daemon.name),
            task_view::age(daemon.drained_at.as_ref(), now),
            one_line(&daemon.drained_by),
            one_line(&daemon.drain_reason),
        ]);
    }
    if !table.is_empty() {
        console.line("")?;
        for line in table.lines() {
            console.line(&line)?;
        }
    }
    Ok(())
}

/// Prints what each attempt is doing.
fn print_attempts(daemons: &[Daemon], console: &CliConsole) -> Result<CommandExit, CliError> {
    let mut table = TextTable::new(["DAEMON", "DOING", "AGENT", "AGE", "TASK", "ATTEMPT"]);
    for daemon in daemons {
        for attempt in &daemon.attempts {
            table.row([
                one_line(&daemon.name),
                one_line(&activity_text(attempt)),
                one_line(&attempt.agent),
                duration::format_short(attempt.age_ms),
                one_line(&attempt.task_id),
                attempt.attempt_number.to_string(),
            ]);
        }
    }
    if !table.is_empty() {
        console.line("")?;
        for line in table.lines() {
            console.line(&line)?;
        }
    }
    Ok(CommandExit::Done)
}

/// The state with its most specific detail: the open tool, else the phase.
fn activity_text(attempt: &HeldAttempt) -> String {
    let state = short_name_of::<AttemptState>(attempt.state);
    match (attempt.tool_name.as_str(), attempt.phase()) {
        ("", LifecyclePhase::Unspecified) => state,
        ("", phase) => format!("{state} ({})", phase.short_name()),
        (tool, _) => format!("{state} ({tool})"),
    }
}

fn print_forgotten(
    listed: &ListDaemonsResponse,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let now = clock::wall_ms();
    let mut table = TextTable::new(["NAME", "FORGOTTEN", "SEEN", "BY", "ID", "REASON"]);
    for one in &listed.forgotten {
        table.row([
            one_line(&one.name),
            task_view::age(one.forgotten_at.as_ref(), now),
            task_view::age(one.last_seen_at.as_ref(), now),
            one_line(&one.by),
            one_line(&one.daemon_id),
            one_line(&one.reason),
        ]);
    }
    if table.is_empty() {
        console.note("no operator has removed a daemon");
        return Ok(CommandExit::Done);
    }
    for line in table.lines() {
        console.line(&line)?;
    }
    Ok(CommandExit::Done)
}

fn print_changes(
    listed: &ListDaemonsResponse,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let now = clock::wall_ms();
    let mut table = TextTable::new(["NAME", "DONE", "WHEN", "CHANGE", "BY", "ID", "REASON"]);
    for one in &listed.changes {
        table.row([
            one_line(&one.name),
            short_name_of::<DaemonOperation>(one.operation),
            task_view::age(one.changed_at.as_ref(), now),
            format!(
                "{} -> {}",
                connection_text(one.before),
                connection_text(one.after)
            ),
            one_line(&one.by),
            one_line(&one.daemon_id),
            one_line(&one.reason),
        ]);
    }
    if table.is_empty() {
        console.note("no operator has drained or disconnected a daemon");
        return Ok(CommandExit::Done);
    }
    for line in table.lines() {
        console.line(&line)?;
    }
    Ok(CommandExit::Done)
}

fn connection_text(standing: Option<DaemonStanding>) -> String {
    let DaemonStanding { drained, connected } = standing.unwrap_or_default();
    let connected = if connected {
        "connected"
    } else {
        "disconnected"
    };
    let drained = if drained { ", drained" } else { "" };
    format!("{connected}{drained}")
}

/// Joins all pages.
async fn list_daemons(
    relay: &RelayClient,
    args: &DaemonsArgs,
) -> Result<ListDaemonsResponse, CliError> {
    let mut request = ListDaemonsRequest {
        page_size: 200,
        include_forgotten: args.forgotten,
        include_changes: args.changes,
        ..ListDaemonsRequest::default()
    };
    let mut all = ListDaemonsResponse::default();
    loop {
        let page = relay
            .fleet()
            .list_daemons(request.clone())
            .await?
            .into_inner();
        all.daemons.extend(page.daemons);
        all.forgotten = page.forgotten;
        all.changes = page.changes;
        if page.next_page_token.is_empty() {
            return Ok(all);
        }
        request.page_token = page.next_page_token;
    }
}

fn daemon_row(daemon: &Daemon, now_ms: u64) -> [String; 8] {
    let agents: Vec<String> = daemon.agents.iter().map(agent_text).collect();
    let mut labels = task_details::format_pairs(&daemon.labels);
    for capability in &daemon.capabilities {
        labels.push_str(" +");
        labels.push_str(capability);
    }
    for workspace in &daemon.workspaces {
        labels.push_str(" /");
        labels.push_str(workspace);
    }
    [
        one_line(&daemon.name),
        daemon.state().short_name().to_owned(),
        format!("{}/{}", daemon.free_slots, daemon.slots),
        daemon.load.as_ref().map(load_text).unwrap_or_default(),
        one_line(&agents.join(",")),
        one_line(labels.trim()),
        task_view::age(daemon.last_heartbeat_at.as_ref(), now_ms),
        one_line(&daemon.daemon_id),
    ]
}

/// `claude 2.1.325`, or why the agent cannot run.
fn agent_text(agent: &AgentInfo) -> String {
    match (agent.problem.as_str(), agent.version.as_str()) {
        ("", "") => agent.name.clone(),
        ("", version) => format!("{} {version}", agent.name),
        (problem, _) => format!("{} ({problem})", agent.name),
    }
}

/// Load average, free memory and free disk space.
fn load_text(load: &DaemonLoad) -> String {
    let parts = [
        load.load_1m.map(|load| format!("{load:.1}")),
        load.memory_available_percent
            .map(|percent| format!("mem {percent}% free")),
        load.disk_free_percent
            .map(|percent| format!("disk {percent}% free")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
