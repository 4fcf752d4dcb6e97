//! SIGINT and SIGTERM. Servers: the first one stops gently and says so, a second one stops at once. Commands that look at a
//! task: Ctrl-C ends the looking.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::console::Console;
use crate::errors::CliError;
use crate::exit::Exit;

/// A token that the first signal cancels.
pub(crate) fn on_signals() -> Result<CancellationToken, CliError> {
    let (mut interrupt, mut terminate) = (
        listen(SignalKind::interrupt())?,
        listen(SignalKind::terminate())?,
    );
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        Console::default().note("stopping; a second Ctrl-C stops at once");
        token.cancel();
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        std::process::exit(i32::from(Exit::Interrupted.code()));
    });
    Ok(stop)
}

fn listen(kind: SignalKind) -> Result<Signal, CliError> {
    signal(kind).map_err(|error| CliError::local("listen for signals", error))
}

/// Ctrl-C for a command that only looks. Remembers one that came while nobody waited.
#[derive(Debug)]
pub(crate) struct Interrupt(Signal);

impl Interrupt {
    pub(crate) fn listen() -> Result<Self, CliError> {
        listen(SignalKind::interrupt()).map(Self)
    }

    pub(crate) async fn pressed(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}
