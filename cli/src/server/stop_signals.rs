//! SIGINT and SIGTERM. In servers the first signal starts a clean stop, the second one ends the process. In
//! commands that follow a task, Ctrl-C ends the command.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;

/// A token that the first signal cancels.
pub(crate) fn cancel_on_signals() -> Result<CancellationToken, CliError> {
    let note = || CliConsole::default().note("stopping; press Ctrl-C again to stop immediately");
    Ok(cancel_on(StopSignals::listen()?, note))
}

/// Like [`cancel_on_signals`] for the child of another program: also stops on SIGHUP, and prints nothing.
pub(crate) fn cancel_on_signals_and_hangup() -> Result<CancellationToken, CliError> {
    let hangup = Some(listen_for(SignalKind::hangup())?);
    let signals = StopSignals {
        hangup,
        ..StopSignals::listen()?
    };
    Ok(cancel_on(signals, || {}))
}

fn cancel_on(
    mut signals: StopSignals,
    on_first: impl FnOnce() + Send + 'static,
) -> CancellationToken {
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        signals.next().await;
        on_first();
        token.cancel();
        signals.next().await;
        std::process::exit(i32::from(CommandExit::Interrupted.code()));
    });
    stop
}

struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl StopSignals {
    fn listen() -> Result<Self, CliError> {
        Ok(Self {
            interrupt: listen_for(SignalKind::interrupt())?,
            terminate: listen_for(SignalKind::terminate())?,
            hangup: None,
        })
    }

    async fn next(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hangup => {}
        }
    }
}

fn listen_for(kind: SignalKind) -> Result<Signal, CliError> {
    signal(kind).map_err(|error| CliError::local("cannot listen for signals", error))
}

/// Ctrl-C for a command that follows a task. A signal between two waits is not lost.
#[derive(Debug)]
pub(crate) struct InterruptSignal(Signal);

impl InterruptSignal {
    pub(crate) fn listen() -> Result<Self, CliError> {
        listen_for(SignalKind::interrupt()).map(Self)
    }

    pub(crate) async fn wait(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}
