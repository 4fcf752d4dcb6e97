//! The connection to the relay for a server that runs for long: dialed when it is needed, asked again with growing pauses
//! when it breaks, and with the token read anew, once, when that is refused.

use std::time::Duration;

use tonic::{Response, Status};

use super::answer::{Refusal, UNAUTHENTICATED, UNAVAILABLE};
use crate::client::Relay;
use crate::discovery::RelayArgs;

/// Before each further try.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(200),
    Duration::from_millis(600),
    Duration::from_millis(1500),
];
/// For one try.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Clone, Debug)]
pub(super) struct Line {
    args: RelayArgs,
    relay: Option<Relay>,
}

impl Line {
    pub(super) fn new(args: RelayArgs) -> Self {
        Self { args, relay: None }
    }

    /// Asks until there is an answer, or no hope of one.
    pub(super) async fn ask<T>(
        &mut self,
        question: impl AsyncFn(&Relay) -> Result<Response<T>, Status>,
    ) -> Result<T, Refusal> {
        self.ask_within(PATIENCE, question).await
    }

    /// The same for what cannot wait so long.
    pub(super) async fn ask_within<T>(
        &mut self,
        patience: Duration,
        question: impl AsyncFn(&Relay) -> Result<Response<T>, Status>,
    ) -> Result<T, Refusal> {
        let mut pauses = PAUSES.into_iter();
        let mut may_read_token_again = true;
        loop {
            let refusal = match self.ask_once(patience, &question).await {
                Ok(answer) => return Ok(answer),
                Err(refusal) => refusal,
            };
            if refusal.status == UNAUTHENTICATED && may_read_token_again {
                may_read_token_again = false;
                self.relay = None;
                continue;
            }
            let pause = pauses.next().filter(|_| refusal.is_transient());
            let Some(pause) = pause else {
                return Err(refusal);
            };
            self.relay = None;
            tokio::time::sleep(pause).await;
        }
    }

    async fn ask_once<T>(
        &mut self,
        patience: Duration,
        question: &impl AsyncFn(&Relay) -> Result<Response<T>, Status>,
    ) -> Result<T, Refusal> {
        let relay = match self.relay.take() {
            Some(relay) => relay,
            None => Relay::discover(&self.args).await?,
        };
        let relay = self.relay.insert(relay);
        let asked = tokio::time::timeout(patience, question(relay)).await;
        let late = |_| {
            let next = "see whether the relay is up, then call again";
            Refusal::new(
                UNAVAILABLE,
                "relay_silent",
                "the relay did not answer in time",
                next,
            )
        };
        Ok(asked.map_err(late)??.into_inner())
    }
}
