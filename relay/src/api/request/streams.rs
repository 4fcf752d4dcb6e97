//! Live response streams: limits for each token and tenant, keepalive, and the end of a stream.
//!
//! Each stream has its own feeder task with a small channel. If the channel is full, the feeder
//! waits; its source (a record, a log on disk) needs no queue. A stream ends when its client
//! leaves, its credential expires or is revoked, or the relay stops.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_core::ids::{TenantId, TokenId};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::codegen::BoxStream;

use crate::api::Api;
use crate::api::error::fault::ApiFault;
use crate::api::error::status;
use crate::auth::{AuthFault, Principal};

/// Messages between a feeder and its client's connection. Few, because a client that does not read
/// keeps all of them in memory, up to 64 KiB each, besides the HTTP/2 buffers.
const STREAM_QUEUE: usize = 2;

/// Interval of empty messages. Proxies close streams without messages for a minute, despite pings.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// The response of a streaming call.
pub(crate) type ResponseStream<T> = BoxStream<T>;

/// The channel of a feeder.
pub(crate) type StreamSender<T> = mpsc::Sender<Result<T, Status>>;

/// Limits on open streams: for each token, and for each tenant over all its tokens.
#[derive(Clone, Debug)]
pub(crate) struct LiveStreamLimits {
    per_token: KeyedLimit<TokenId>,
    per_tenant: KeyedLimit<TenantId>,
}

impl LiveStreamLimits {
    pub(crate) fn new(per_token: usize, per_tenant: usize) -> Self {
        Self {
            per_token: KeyedLimit::new(per_token),
            per_tenant: KeyedLimit::new(per_tenant),
        }
    }

    fn acquire(
        &self,
        who: &Principal,
    ) -> Result<(KeyedPermit<TokenId>, KeyedPermit<TenantId>), ApiFault> {
        let token_permit = self.per_token.acquire(who.token)?;
        Ok((token_permit, self.per_tenant.acquire(who.tenant.clone())?))
    }
}

/// Limits how many streams, or calls of one kind, each key has open. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct KeyedLimit<K: Eq + Hash> {
    limit: usize,
    in_use: Arc<Mutex<HashMap<K, usize>>>,
}

/// One open stream or call; dropping it releases it.
#[derive(Debug)]
pub(crate) struct KeyedPermit<K: Eq + Hash> {
    limit: KeyedLimit<K>,
    key: K,
}

impl<K: Clone + Eq + Hash> KeyedLimit<K> {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            in_use: Arc::default(),
        }
    }

    pub(crate) fn acquire(&self, key: K) -> Result<KeyedPermit<K>, ApiFault> {
        let mut open = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(key.clone()).or_default();
        if *count >= self.limit {
            return Err(ApiFault::TooManyStreams { limit: self.limit });
        }
        *count += 1;
        Ok(KeyedPermit {
            limit: self.clone(),
            key,
        })
    }
}

impl<K: Eq + Hash> Drop for KeyedPermit<K> {
    fn drop(&mut self) {
        let open = self.limit.in_use.lock();
        let mut open = open.unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.key);
            }
        }
    }
}

impl Api {
    /// Opens a stream and runs its feeder until it is done or the stream ends. A fault of the
    /// feeder is the last message.
    pub(crate) fn open_stream<T, F>(
        &self,
        principal: &Principal,
        feed: impl FnOnce(StreamSender<T>) -> F,
    ) -> Result<ResponseStream<T>, ApiFault>
    where
        T: Default + Send + 'static,
        F: Future<Output = Result<(), ApiFault>> + Send + 'static,
    {
        let permits = self.stream_limits.acquire(principal)?;
        let (sender, answers) = mpsc::channel(STREAM_QUEUE);
        let feeding = feed(sender.clone());
        let (principal, clock, stop) = (principal.clone(), self.clock.clone(), self.stop.clone());
        tokio::spawn(async move {
            let _permits = permits;
            let ended = tokio::select! {
                ended = feeding => ended,
                () = principal.ended(&clock) => Err(AuthFault::CredentialEnded.into()),
                () = stop.cancelled() => Err(ApiFault::Stopping),
                () = sender.closed() => Ok(()),
                () = keep_alive(&sender) => Ok(()),
            };
            if let Err(fault) = ended {
                // If the channel is full, the fault is dropped: a client that does not read must
                // not block this task.
                let _ = sender.try_send(Err(status::status(&fault)));
            }
        });
        Ok(Box::pin(ReceiverStream::new(answers)))
    }
}

/// Runs forever. Sends nothing while the channel has messages that the client has not read.
async fn keep_alive<T: Default>(sender: &StreamSender<T>) {
    let mut ticks = tokio::time::interval(KEEPALIVE_INTERVAL);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        if sender.capacity() == sender.max_capacity() {
            let _ = sender.try_send(Ok(T::default()));
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn many_tokens_of_one_tenant_leave_streams_for_others() {
        let streams = LiveStreamLimits::new(2, 3);
        let who = |token: u128, tenant: &str| {
            let token = TokenId(Uuid::from_u128(token));
            (token, TenantId::new(tenant).unwrap())
        };
        let acquire = |(token, tenant): (TokenId, TenantId)| {
            let permit = streams.per_token.acquire(token)?;
            Ok::<_, ApiFault>((permit, streams.per_tenant.acquire(tenant)?))
        };
        let first: Vec<_> = (0..2).map(|_| acquire(who(1, "acme")).unwrap()).collect();
        assert!(
            acquire(who(1, "acme")).is_err(),
            "the limit of this token is reached"
        );
        let second = acquire(who(2, "acme")).unwrap();
        assert!(
            acquire(who(2, "acme")).is_err(),
            "the limit of this tenant is reached"
        );
        let other = acquire(who(3, "globex")).unwrap();
        drop((first, second, other));
        assert!(streams.per_token.in_use.lock().unwrap().is_empty());
        assert!(streams.per_tenant.in_use.lock().unwrap().is_empty());
    }
}
