//! `baton mcp`: the verb table as tools of the Model Context Protocol, over stdin and stdout.
//! `server` is the interface to the client. Calls are handled by `standalone_handler`, which
//! calls the relay and holds a lease, or by `attempt_handler`, which calls the daemon that runs
//! the attempt. Stdout carries only the protocol.

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

/// Serves until the client closes stdin or a signal arrives. Only a standalone server handles
/// signals, because only it holds a lease.
pub(crate) async fn serve(
    relay: ConnectionArgs,
    root: Option<PathBuf>,
    clock: &Clock,
) -> Result<(), CliError> {
    if let Some(endpoint) = tools::find_endpoint() {
        let session = ServerShutdown::without_signals();
        return run_server(ServerMode::InsideAttempt, session, |calls| {
            attempt_handler::serve(endpoint, calls)
        })
        .await;
    }
    // An unreachable relay is reported when a tool is called. A missing token is reported now,
    // because it does not appear by itself.
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
    let handler = StandaloneHandler::new(relay, root, clock.clone(), session.clone());
    run_server(ServerMode::Standalone, session, |calls| {
        handler.serve(calls)
    })
    .await
}

async fn run_server<F: Future<Output = ()>>(
    mode: ServerMode,
    session: ServerShutdown,
    handle_calls: impl FnOnce(mpsc::Receiver<PendingToolCall>) -> F,
) -> Result<(), CliError> {
    let (server, calls) = McpServer::new(mode);
    let serving = async move {
        let result = tokio::select! {
            result = serve_stdio(server) => result,
            () = session.wait_for_signal() => Ok(()),
        };
        session.close();
        result
    };
    // When the server ends, it closes the channel of calls, which ends the handler.
    tokio::join!(serving, handle_calls(calls)).0
}

async fn serve_stdio(server: McpServer) -> Result<(), CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::local("the MCP session failed", error);
    let (stdin, stdout) = rmcp::transport::stdio();
    let running = server.serve(JsonLineTransport::new(stdin, stdout)).await;
    let running = running.map_err(|error| failed(&error))?;
    running.waiting().await.map_err(|error| failed(&error))?;
    Ok(())
}

async fn discard_calls(mut calls: mpsc::Receiver<PendingToolCall>) {
    while calls.recv().await.is_some() {}
}
