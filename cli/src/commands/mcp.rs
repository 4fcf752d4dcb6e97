//! `baton mcp`: the flags of the server that agents speak to.

use clap::Args;

use crate::discovery::RelayArgs;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::mcp;
use crate::servers::Clocks;

#[derive(Args, Debug)]
pub(crate) struct McpArgs {
    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: McpArgs, clocks: &Clocks) -> Result<Exit, CliError> {
    mcp::serve(args.relay, &clocks.daemon).await?;
    Ok(Exit::Done)
}
