//! The connection to the relay for a server that runs for long: dialed when it is needed, asked again with growing pauses
//! when it breaks, and with the token read anew, once, when that is refused.

use std::time::Duration;

use tonic::{Response, Status};

use super::tool_result::{ToolRejection, UNAUTHENTICATED, UNAVAILABLE};
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;

/// Before each further try.
const RETRY_DELAYS: [Duration; 3] = [
    Duration::from_millis(200),
    Duration::from_millis(600),
    Duration::from_millis(1500),
];
/// For one try.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Clone, Debug)]
pub(super) struct RelayConnection {
    args: ConnectionArgs,
    relay: Option<RelayClient>,
}

impl RelayConnection {
    pub(super) fn new(args: ConnectionArgs) -> Self {
        Self { args, relay: None }
    }

    /// Asks until there is an answer, or no hope of one.
    pub(super) async fn call<T>(
        &mut self,
        question: impl AsyncFn(&RelayClient) -> Result<Response<T>, Status>,
    ) -> Result<T, ToolRejection> {
        self.call_with_timeout(CALL_TIMEOUT, question).await
    }

    /// The same for what cannot wait so long.
    pub(super) async fn call_with_timeout<T>(
        &mut self,
        patience: Duration,
        question: impl AsyncFn(&RelayClient) -> Result<Response<T>, Status>,
    ) -> Result<T, ToolRejection> {
        let mut pauses = RETRY_DELAYS.into_iter();
        let mut may_read_token_again = true;
        loop {
            let refusal = match self.call_once(patience, &question).await {
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

    async fn call_once<T>(
        &mut self,
        patience: Duration,
        question: &impl AsyncFn(&RelayClient) -> Result<Response<T>, Status>,
    ) -> Result<T, ToolRejection> {
        let relay = match self.relay.take() {
            Some(relay) => relay,
            None => RelayClient::discover(&self.args).await?,
        };
        let relay = self.relay.insert(relay);
        let asked = tokio::time::timeout(patience, question(relay)).await;
        let late = |_| {
            let next = "see whether the relay is up, then call again";
            ToolRejection::new(
                UNAVAILABLE,
                "relay_silent",
                "the relay did not answer in time",
                next,
            )
        };
        Ok(asked.map_err(late)??.into_inner())
    }
}
