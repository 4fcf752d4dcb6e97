//! `baton release-inherited`: an operator confirms that the previous fleet is down.

use baton_proto::to_json;
use baton_proto::v1::ReleaseInheritedRequest;
use clap::Args;

use crate::args::shared_args::JsonOutputArg;
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;

#[derive(Args, Debug)]
pub(crate) struct ReleaseInheritedArgs {
    /// How you know that no daemon of the previous fleet still runs a task. It is recorded.
    #[arg(long, value_name = "TEXT")]
    reason: String,

    #[command(flatten)]
    json: JsonOutputArg,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(
    args: ReleaseInheritedArgs,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let relay = RelayClient::discover(&args.relay).await?;
    let request = ReleaseInheritedRequest {
        reason: args.reason,
    };
    let response = relay.operator().release_inherited(request).await?;
    let response = response.into_inner();
    if args.json.json {
        console.json(&to_json(&response))?;
        return Ok(CommandExit::Done);
    }
    console.line(&format!("released {}", response.released))?;
    if response.released == 0 {
        console.note(
            "no task was waiting; tasks wait for this only after an import or an accepted loss",
        );
    }
    Ok(CommandExit::Done)
}
