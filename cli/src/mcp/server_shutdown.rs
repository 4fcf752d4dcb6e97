//! The end of an MCP session: the client closes stdin, or a signal arrives. Afterwards there is
//! limited time to answer pending calls and to hand back the task.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::cli_error::CliError;
use crate::server::stop_signals;

/// Total time to answer pending calls and to hand back the task. Clients wait two to four seconds
/// before they kill the server.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(super) struct ServerShutdown {
    client_closed: CancellationToken,
    /// A signal has arrived.
    signaled: CancellationToken,
}

impl ServerShutdown {
    /// Signals keep their default effect.
    pub(super) fn without_signals() -> Self {
        Self {
            client_closed: CancellationToken::new(),
            signaled: CancellationToken::new(),
        }
    }

    /// The first signal ends the session, the second one ends the process.
    pub(super) fn with_signals() -> Result<Self, CliError> {
        Ok(Self {
            client_closed: CancellationToken::new(),
            signaled: stop_signals::cancel_on_signals_and_hangup()?,
        })
    }

    pub(super) fn close(&self) {
        self.client_closed.cancel();
    }

    /// Whether the session is ending, so that an answer may not reach the agent.
    pub(super) fn is_stopping(&self) -> bool {
        self.client_closed.is_cancelled() || self.signaled.is_cancelled()
    }

    pub(super) async fn wait_until_stopping(&self) {
        tokio::select! { () = self.client_closed.cancelled() => {}, () = self.signaled.cancelled() => {} }
    }

    pub(super) async fn wait_for_signal(&self) {
        self.signaled.cancelled().await;
    }

    /// Resolves when the time for the shutdown is over.
    pub(super) async fn wait_for_deadline(&self) {
        self.wait_until_stopping().await;
        tokio::time::sleep(SHUTDOWN_LIMIT).await;
    }

    /// How the session ended, for the block reason of its task.
    pub(super) fn end_reason(&self) -> &'static str {
        if self.signaled.is_cancelled() {
            "the tool server received a stop signal"
        } else {
            "the agent closed the connection to its tools"
        }
    }
}
