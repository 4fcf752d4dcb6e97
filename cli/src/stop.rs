//! SIGINT and SIGTERM for the commands that run until told otherwise: the first one stops gently and says so, a second
//! one stops at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::console::Console;
use crate::errors::CliError;
use crate::exit::Exit;

/// A token that the first signal cancels.
pub(crate) fn on_signals() -> Result<CancellationToken, CliError> {
    let listen = |kind| signal(kind).map_err(|error| CliError::local("listen for signals", error));
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
