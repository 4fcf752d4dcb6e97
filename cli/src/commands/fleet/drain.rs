//! `baton drain`: stops offering new work to one daemon, or resumes it.

use baton_proto::v1::{Daemon, DaemonState, DrainDaemonRequest, UndrainDaemonRequest};
use baton_proto::{ShortName, to_json};
use clap::Args;

use crate::args::shared_args::JsonOutputArg;
use crate::client::discovery::ConnectionArgs;
use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;

#[derive(Args, Debug)]
pub(crate) struct DrainArgs {
    /// Id of the daemon, a unique prefix of it, or its name if it is unique.
    #[arg(value_name = "DAEMON")]
    daemon: String,

    /// Reason; `baton daemons` shows it. Required unless --undo is given.
    #[arg(long, value_name = "TEXT", required_unless_present = "undo")]
    reason: Option<String>,

    /// Offer work to the daemon again.
    #[arg(long)]
    undo: bool,

    #[command(flatten)]
    json: JsonOutputArg,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: DrainArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let (json, undo) = (args.json.json, args.undo);
    let daemon = if args.undo {
        undrain(&relay, args).await?
    } else {
        drain(&relay, args).await?
    };
    let daemon = daemon.ok_or_else(|| {
        CliError::local(
            "the relay's response has no daemon",
            "it may be of another version",
        )
    })?;
    if json {
        console.json(&to_json(&daemon))?;
        return Ok(CommandExit::Done);
    }
    // The daemon reports that it is draining until it has received the change.
    if undo && daemon.state() == DaemonState::Draining {
        console.line("undrained")?;
        console.note("the daemon accepts work again as soon as it has received this");
    } else {
        console.line(daemon.state().short_name())?;
    }
    if !daemon.attempts.is_empty() {
        console.note(&match daemon.attempts.len() {
            1 => "it still has 1 attempt".to_owned(),
            count => format!("it still has {count} attempts"),
        });
    }
    Ok(CommandExit::Done)
}

async fn drain(relay: &RelayClient, args: DrainArgs) -> Result<Option<Daemon>, CliError> {
    let reason = args.reason.unwrap_or_default();
    let request = DrainDaemonRequest {
        daemon: id_prefix::resolve_daemon_with_reason(relay, &args.daemon, &reason).await?,
        reason,
        deadline_ms: None,
    };
    Ok(relay
        .fleet()
        .drain_daemon(request)
        .await?
        .into_inner()
        .daemon)
}

async fn undrain(relay: &RelayClient, args: DrainArgs) -> Result<Option<Daemon>, CliError> {
    let request = UndrainDaemonRequest {
        daemon: id_prefix::resolve_daemon(relay, &args.daemon).await?,
        reason: args.reason.unwrap_or_default(),
    };
    Ok(relay
        .fleet()
        .undrain_daemon(request)
        .await?
        .into_inner()
        .daemon)
}
