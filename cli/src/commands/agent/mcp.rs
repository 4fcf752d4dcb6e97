//! `baton mcp`: the flags of the MCP server for agents.

use std::path::PathBuf;

use clap::Args;

use crate::client::discovery::ConnectionArgs;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::mcp;
use crate::server::start::ServerClocks;

#[derive(Args, Debug)]
pub(crate) struct McpArgs {
    /// Directory of the files that a task requires; files outside of it are never read. Not used inside an attempt.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    #[command(flatten)]
    relay: ConnectionArgs,
}

pub(crate) async fn run(args: McpArgs, clocks: &ServerClocks) -> Result<CommandExit, CliError> {
    mcp::serve(args.relay, args.root, &clocks.daemon).await?;
    Ok(CommandExit::Done)
}
