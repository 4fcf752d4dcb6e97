//! `baton mcp`: the verbs of the table as tools of the Model Context Protocol, over stdin and stdout. `server` is what a
//! client sees; who answers depends on where it runs: `alone` asks the relay and holds a lease, `inside` asks the daemon
//! that runs the attempt. Stdout carries the protocol and nothing else.

mod agent_lease;
#[cfg(test)]
mod argument_bounds_test;
mod argument_schema;
#[cfg(test)]
mod argument_schema_test;
mod attempt_handler;
mod json_line_transport;
mod relay_connection;
mod requests;
mod server;
mod server_shutdown;
mod standalone_handler;
mod task_at_exit;
mod tool_arguments;
mod tool_result;

use std::path::PathBuf;

use baton_daemon::{Clock, tools};
use rmcp::ServiceExt;
use tokio::sync::mpsc;

use json_line_transport::JsonLineTransport;
use server::{McpServer, PendingToolCall, ServerMode};
use server_shutdown::ServerShutdown;
use standalone_handler::StandaloneHandler;

use crate::client::discovery::ConnectionArgs;
use crate::error::cli_error::CliError;

/// Serves until the client closes its end, or a signal says so. Only who holds something has to hear signals.
pub(crate) async fn serve(
    relay: ConnectionArgs,
    root: Option<PathBuf>,
    clock: &Clock,
) -> Result<(), CliError> {
    if let Some(place) = tools::find_endpoint() {
        let session = ServerShutdown::without_signals();
        return run_server(ServerMode::InsideAttempt, session, |calls| {
            attempt_handler::serve(place, calls)
        })
        .await;
    }
    // Whether the relay is there shows when it is asked; a token that is missing will not come by itself.
    if let Err(error) = relay.token() {
        let session = ServerShutdown::without_signals();
        return run_server(
            ServerMode::Unconfigured(error.to_string()),
            session,
            discard_calls,
        )
        .await;
    }
    let session = ServerShutdown::with_signals()?;
    let alone = StandaloneHandler::new(relay, root, clock.clone(), session.clone());
    run_server(ServerMode::Standalone, session, |calls| alone.serve(calls)).await
}

async fn run_server<F: Future<Output = ()>>(
    standing: ServerMode,
    session: ServerShutdown,
    answering: impl FnOnce(mpsc::Receiver<PendingToolCall>) -> F,
) -> Result<(), CliError> {
    let (server, calls) = McpServer::new(standing);
    let talking = async move {
        let talked = tokio::select! {
            talked = serve_stdio(server) => talked,
            () = session.wait_for_signal() => Ok(()),
        };
        session.close();
        talked
    };
    // The server's end drops the calls, and with them whoever answers comes to its end.
    tokio::join!(talking, answering(calls)).0
}

async fn serve_stdio(server: McpServer) -> Result<(), CliError> {
    let failed =
        |error: &dyn std::fmt::Display| CliError::local("speak the Model Context Protocol", error);
    let (stdin, stdout) = rmcp::transport::stdio();
    let running = server.serve(JsonLineTransport::new(stdin, stdout)).await;
    let running = running.map_err(|error| failed(&error))?;
    running.waiting().await.map_err(|error| failed(&error))?;
    Ok(())
}

async fn discard_calls(mut calls: mpsc::Receiver<PendingToolCall>) {
    while calls.recv().await.is_some() {}
}
