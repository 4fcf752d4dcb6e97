//! `baton mcp`: the flags of the server that agents speak to.

use std::path::PathBuf;

use clap::Args;

use crate::discovery::ConnectionArgs;
use crate::errors::CliError;
use crate::exit::CommandExit;
use crate::mcp;
use crate::servers::ServerClocks;

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
