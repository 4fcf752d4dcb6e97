//! `baton mcp`: the verbs of the table as tools of the Model Context Protocol, over stdin and stdout. `server` is what a
//! client sees; who answers depends on where it runs: `alone` asks the relay and holds a lease, `inside` asks the daemon
//! that runs the attempt. Stdout carries the protocol and nothing else.

mod alone;
mod answer;
mod fields;
mod inputs;
mod inside;
mod lease;
mod line;
mod server;

use std::path::PathBuf;

use baton_daemon::{Clock, tools};
use rmcp::ServiceExt;
use tokio::sync::mpsc;

use alone::Alone;
use server::{Asked, Server, Standing};

use crate::discovery::RelayArgs;
use crate::errors::CliError;

/// Serves until the client closes its end.
pub(crate) async fn serve(
    relay: RelayArgs,
    root: Option<PathBuf>,
    clock: &Clock,
) -> Result<(), CliError> {
    if let Some(place) = tools::find() {
        return run(Standing::Inside, |calls| inside::serve(place, calls)).await;
    }
    // Whether the relay is there shows when it is asked; a token that is missing will not come by itself.
    if let Err(error) = relay.token() {
        return run(Standing::Unconfigured(error.to_string()), nobody).await;
    }
    let alone = Alone::new(relay, root, clock.clone());
    run(Standing::Alone, |calls| alone.serve(calls)).await
}

async fn run<F: Future<Output = ()>>(
    standing: Standing,
    answering: impl FnOnce(mpsc::Receiver<Asked>) -> F,
) -> Result<(), CliError> {
    let (server, calls) = Server::new(standing);
    let talking = async move {
        let failed = |error: &dyn std::fmt::Display| {
            CliError::local("speak the Model Context Protocol", error)
        };
        let running = server.serve(rmcp::transport::stdio()).await;
        let running = running.map_err(|error| failed(&error))?;
        running.waiting().await.map_err(|error| failed(&error))?;
        Ok(())
    };
    // The server's end drops the calls, and with them whoever answers comes to its end.
    tokio::join!(talking, answering(calls)).0
}

async fn nobody(mut calls: mpsc::Receiver<Asked>) {
    while calls.recv().await.is_some() {}
}
