//! `baton disconnect`: closes a daemon's stream. The daemon reconnects, and its attempts continue.

use baton_proto::to_json;
use baton_proto::v1::DisconnectDaemonRequest;
use clap::Args;

use crate::args::shared_args::JsonOutputArg;
use crate::client::discovery::ConnectionArgs;
use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;

#[derive(Args, Debug)]
pub(crate) struct DisconnectArgs {
    /// Id of the daemon, a unique prefix of it, or its name if it is unique.
    #[arg(value_name = "DAEMON")]
    daemon: String,

    /// Reason; `baton daemons --changes` shows it.
    #[arg(long, value_name = "TEXT")]
    reason: String,

    #[command(flatten)]
    json: JsonOutputArg,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(
    args: DisconnectArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let request = DisconnectDaemonRequest {
        daemon: id_prefix::resolve_daemon_with_reason(&relay, &args.daemon, &args.reason).await?,
        reason: args.reason,
    };
    let answer = relay.fleet().disconnect_daemon(request).await?.into_inner();
    if args.json.json {
        console.json(&to_json(&answer.daemon.unwrap_or_default()))?;
    } else if answer.was_connected {
        console.line("disconnected")?;
        console
            .note("the daemon reconnects by itself; to give it no more work, use: baton drain DAEMON --reason TEXT");
    } else {
        console.line("was not connected")?;
    }
    Ok(CommandExit::Done)
}
