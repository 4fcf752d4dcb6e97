//! The time in which an agent can call: until its client closes the line, or a signal tells the server to stop. Afterwards there
//! is a little time, and no more, to see to what is held.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::cli_error::CliError;
use crate::server::stop_signals;

/// To answer what was asked and to see to what is held, in all. Clients wait two to four seconds before they kill.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(super) struct ServerShutdown {
    client_closed: CancellationToken,
    /// By a signal.
    signaled: CancellationToken,
}

impl ServerShutdown {
    /// Signals do to the process what they always do.
    pub(super) fn without_signals() -> Self {
        Self {
            client_closed: CancellationToken::new(),
            signaled: CancellationToken::new(),
        }
    }

    /// The first signal ends the session, the second one the process.
    pub(super) fn with_signals() -> Result<Self, CliError> {
        Ok(Self {
            client_closed: CancellationToken::new(),
            signaled: stop_signals::cancel_on_signals_and_hangup()?,
        })
    }

    pub(super) fn close(&self) {
        self.client_closed.cancel();
    }

    /// Nobody hears an answer any more.
    pub(super) fn is_stopping(&self) -> bool {
        self.client_closed.is_cancelled() || self.signaled.is_cancelled()
    }

    pub(super) async fn wait_until_stopping(&self) {
        tokio::select! { () = self.client_closed.cancelled() => {}, () = self.signaled.cancelled() => {} }
    }

    pub(super) async fn wait_for_signal(&self) {
        self.signaled.cancelled().await;
    }

    /// When there is no more time, whatever is left to do.
    pub(super) async fn wait_for_deadline(&self) {
        self.wait_until_stopping().await;
        tokio::time::sleep(SHUTDOWN_LIMIT).await;
    }

    /// For those who find its task.
    pub(super) fn end_reason(&self) -> &'static str {
        if self.signaled.is_cancelled() {
            "its tools were told to stop by a signal"
        } else {
            "it closed the line to its tools"
        }
    }
}
