//! `baton mcp`: the flags of the server that agents speak to.

use std::path::PathBuf;

use clap::Args;

use crate::client::discovery::ConnectionArgs;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::mcp;
use crate::server::start::ServerClocks;

#[derive(Args, Debug)]
pub(crate) struct McpArgs {
    /// Where the files are that a task asks for; nothing outside of it is looked at. Standing alone only.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: McpArgs, clocks: &ServerClocks) -> Result<CommandExit, CliError> {
    mcp::serve(args.relay, args.root, &clocks.daemon).await?;
    Ok(CommandExit::Done)
}
