//! `baton forget`: removes the record of a daemon that will not return.

use baton_proto::to_json;
use baton_proto::v1::ForgetDaemonRequest;
use clap::Args;

use crate::args::shared_args::JsonOutputArg;
use crate::client::discovery::ConnectionArgs;
use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::render::sanitizer::one_line;

#[derive(Args, Debug)]
pub(crate) struct ForgetArgs {
    /// Id of the daemon, a unique prefix of it, or its name if it is unique.
    #[arg(value_name = "DAEMON")]
    daemon: String,

    /// Reason; `baton daemons --forgotten` shows it.
    #[arg(long, value_name = "TEXT")]
    reason: String,

    #[command(flatten)]
    json: JsonOutputArg,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: ForgetArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let request = ForgetDaemonRequest {
        daemon: id_prefix::resolve_daemon_with_reason(&relay, &args.daemon, &args.reason).await?,
        reason: args.reason,
    };
    let response = relay.fleet().forget_daemon(request).await?.into_inner();
    let daemon = response.daemon.unwrap_or_default();
    if args.json.json {
        console.json(&to_json(&daemon))?;
    } else {
        console.line(&format!("forgot {}", one_line(&daemon.daemon_id)))?;
        console.note("if it connects again, it gets a new id");
    }
    Ok(CommandExit::Done)
}
