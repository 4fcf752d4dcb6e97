//! The time in which an agent can call: until its client closes the line, or a signal tells the server to stop. Afterwards there
//! is a little time, and no more, to see to what is held.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::errors::CliError;
use crate::stop;

/// To answer what was asked and to see to what is held, in all. Clients wait two to four seconds before they kill.
const LEAVING: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(super) struct Session {
    over: CancellationToken,
    /// By a signal.
    stop: CancellationToken,
}

impl Session {
    /// Signals do to the process what they always do.
    pub(super) fn without_signals() -> Self {
        Self {
            over: CancellationToken::new(),
            stop: CancellationToken::new(),
        }
    }

    /// The first signal ends the session, the second one the process.
    pub(super) fn until_signals() -> Result<Self, CliError> {
        Ok(Self {
            over: CancellationToken::new(),
            stop: stop::on_signals_and_hangup()?,
        })
    }

    pub(super) fn end(&self) {
        self.over.cancel();
    }

    /// Nobody hears an answer any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled() || self.stop.is_cancelled()
    }

    pub(super) async fn over(&self) {
        tokio::select! { () = self.over.cancelled() => {}, () = self.stop.cancelled() => {} }
    }

    pub(super) async fn told_to_stop(&self) {
        self.stop.cancelled().await;
    }

    /// When there is no more time, whatever is left to do.
    pub(super) async fn time_to_leave(&self) {
        self.over().await;
        tokio::time::sleep(LEAVING).await;
    }

    /// For those who find its task.
    pub(super) fn how_it_ended(&self) -> &'static str {
        if self.stop.is_cancelled() {
            "its tools were told to stop by a signal"
        } else {
            "it closed the line to its tools"
        }
    }
}
