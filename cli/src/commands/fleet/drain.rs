//! `baton drain`: no new work for one daemon, or new work again.

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
    /// Id of the daemon, as much of it as no other has, or its name if only one has it.
    #[arg(value_name = "DAEMON")]
    daemon: String,

    /// Why; `baton daemons` shows it with who said so. Only --undo goes without.
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
            "the relay answered without a daemon",
            "it may speak another version",
        )
    })?;
    if json {
        console.json(&to_json(&daemon))?;
        return Ok(CommandExit::Done);
    }
    // It says itself that it drains, until it has heard.
    if undo && daemon.state() == DaemonState::Draining {
        console.line("undrained")?;
        console.note("it has been told, and takes work again once it has heard");
    } else {
        console.line(daemon.state().short_name())?;
    }
    if !daemon.attempts.is_empty() {
        console.note(&format!(
            "it still holds {} attempts",
            daemon.attempts.len()
        ));
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
