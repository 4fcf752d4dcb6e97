//! The relay connection of a long-running server. It is opened on the first call. Broken calls
//! are retried with growing pauses; after a rejected token, the token file is read once again.

use std::time::Duration;

use tonic::{Response, Status};

use super::tool_result::{ToolRejection, UNAUTHENTICATED, UNAVAILABLE};
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;

/// Pauses before each further try.
const RETRY_DELAYS: [Duration; 3] = [
    Duration::from_millis(200),
    Duration::from_millis(600),
    Duration::from_millis(1500),
];
/// Time limit of one try.
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

    /// Calls the relay and retries transient errors.
    pub(super) async fn call<T>(
        &mut self,
        request: impl AsyncFn(&RelayClient) -> Result<Response<T>, Status>,
    ) -> Result<T, ToolRejection> {
        self.call_with_timeout(CALL_TIMEOUT, request).await
    }

    /// Like [`Self::call`] with another time limit for each try.
    pub(super) async fn call_with_timeout<T>(
        &mut self,
        timeout: Duration,
        request: impl AsyncFn(&RelayClient) -> Result<Response<T>, Status>,
    ) -> Result<T, ToolRejection> {
        let mut pauses = RETRY_DELAYS.into_iter();
        let mut may_read_token_again = true;
        loop {
            let rejection = match self.call_once(timeout, &request).await {
                Ok(answer) => return Ok(answer),
                Err(rejection) => rejection,
            };
            if rejection.status == UNAUTHENTICATED && may_read_token_again {
                may_read_token_again = false;
                self.relay = None;
                continue;
            }
            let pause = pauses.next().filter(|_| rejection.is_transient());
            let Some(pause) = pause else {
                return Err(rejection);
            };
            self.relay = None;
            tokio::time::sleep(pause).await;
        }
    }

    async fn call_once<T>(
        &mut self,
        timeout: Duration,
        request: &impl AsyncFn(&RelayClient) -> Result<Response<T>, Status>,
    ) -> Result<T, ToolRejection> {
        let relay = match self.relay.take() {
            Some(relay) => relay,
            None => RelayClient::discover(&self.args).await?,
        };
        let relay = self.relay.insert(relay);
        let result = tokio::time::timeout(timeout, request(relay)).await;
        let timed_out = |_| {
            let next = "check that the relay is running, then call again";
            ToolRejection::new(
                UNAVAILABLE,
                "relay_silent",
                "the relay did not answer in time",
                next,
            )
        };
        Ok(result.map_err(timed_out)??.into_inner())
    }
}
