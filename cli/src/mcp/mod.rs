//! `baton mcp`: the verbs of the table as tools of the Model Context Protocol, over stdin and stdout. `server` is what a
//! client sees; who answers depends on where it runs: `alone` asks the relay and holds a lease, `inside` asks the daemon
//! that runs the attempt. Stdout carries the protocol and nothing else.

mod alone;
mod answer;
#[cfg(test)]
mod bounds_agree;
mod fields;
mod inputs;
mod inside;
mod lease;
mod leaving;
mod line;
mod lines;
mod requests;
mod server;
mod session;

use std::path::PathBuf;

use baton_daemon::{Clock, tools};
use rmcp::ServiceExt;
use tokio::sync::mpsc;

use alone::Alone;
use lines::Lines;
use server::{Asked, Server, Standing};
use session::Session;

use crate::discovery::RelayArgs;
use crate::errors::CliError;

/// Serves until the client closes its end, or a signal says so. Only who holds something has to hear signals.
pub(crate) async fn serve(
    relay: RelayArgs,
    root: Option<PathBuf>,
    clock: &Clock,
) -> Result<(), CliError> {
    if let Some(place) = tools::find() {
        let session = Session::without_signals();
        return run(Standing::Inside, session, |calls| {
            inside::serve(place, calls)
        })
        .await;
    }
    // Whether the relay is there shows when it is asked; a token that is missing will not come by itself.
    if let Err(error) = relay.token() {
        let session = Session::without_signals();
        return run(Standing::Unconfigured(error.to_string()), session, nobody).await;
    }
    let session = Session::until_signals()?;
    let alone = Alone::new(relay, root, clock.clone(), session.clone());
    run(Standing::Alone, session, |calls| alone.serve(calls)).await
}

async fn run<F: Future<Output = ()>>(
    standing: Standing,
    session: Session,
    answering: impl FnOnce(mpsc::Receiver<Asked>) -> F,
) -> Result<(), CliError> {
    let (server, calls) = Server::new(standing);
    let talking = async move {
        let talked = tokio::select! {
            talked = talk(server) => talked,
            () = session.told_to_stop() => Ok(()),
        };
        session.end();
        talked
    };
    // The server's end drops the calls, and with them whoever answers comes to its end.
    tokio::join!(talking, answering(calls)).0
}

async fn talk(server: Server) -> Result<(), CliError> {
    let failed =
        |error: &dyn std::fmt::Display| CliError::local("speak the Model Context Protocol", error);
    let (stdin, stdout) = rmcp::transport::stdio();
    let running = server.serve(Lines::new(stdin, stdout)).await;
    let running = running.map_err(|error| failed(&error))?;
    running.waiting().await.map_err(|error| failed(&error))?;
    Ok(())
}

async fn nobody(mut calls: mpsc::Receiver<Asked>) {
    while calls.recv().await.is_some() {}
}
