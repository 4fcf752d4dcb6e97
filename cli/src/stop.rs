//! SIGINT and SIGTERM. Servers: the first one stops gently, a second one stops at once. Commands that look at a
//! task: Ctrl-C ends the looking.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::console::Console;
use crate::errors::CliError;
use crate::exit::Exit;

/// A token that the first signal cancels.
pub(crate) fn on_signals() -> Result<CancellationToken, CliError> {
    let told = || Console::default().note("stopping; a second Ctrl-C stops at once");
    Ok(on(Signals::listen()?, told))
}

/// The same for who is a program's child: it goes with its terminal too, and says nothing, because nobody may read that.
pub(crate) fn on_signals_and_hangup() -> Result<CancellationToken, CliError> {
    let hangup = Some(listen(SignalKind::hangup())?);
    let signals = Signals {
        hangup,
        ..Signals::listen()?
    };
    Ok(on(signals, || {}))
}

fn on(mut signals: Signals, say: impl FnOnce() + Send + 'static) -> CancellationToken {
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        signals.next().await;
        say();
        token.cancel();
        signals.next().await;
        std::process::exit(i32::from(Exit::Interrupted.code()));
    });
    stop
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    fn listen() -> Result<Self, CliError> {
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
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
