//! Live client streams: how many one token and one tenant may hold open, and what ends them all.
//!
//! Each stream is fed by its own task over a small channel. Full: the feeder waits, and what it feeds from (a record, a
//! log on disk) needs no queue. A stream ends when its client leaves, its credential ends or the relay stops.

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

/// Messages between a feeder and its client's connection. Few, because a client that does not read holds all of them,
/// up to 64 KiB each, beside what HTTP/2 buffers.
const STREAM_QUEUE: usize = 2;

/// An empty message goes out this often: proxies end streams that carry nothing for a minute, pings or not.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// The answering half of a streaming call.
pub(crate) type ResponseStream<T> = BoxStream<T>;

/// How a feeder hands messages over.
pub(crate) type StreamSender<T> = mpsc::Sender<Result<T, Status>>;

/// What clients hold open: so much for a token, and so much for a tenant, however many tokens it has.
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
        let own = self.per_token.acquire(who.token)?;
        Ok((own, self.per_tenant.acquire(who.tenant.clone())?))
    }
}

/// How many streams, or calls of one kind, each holder has open. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct KeyedLimit<K: Eq + Hash> {
    limit: usize,
    in_use: Arc<Mutex<HashMap<K, usize>>>,
}

/// Dropping it frees the place.
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

    pub(crate) fn acquire(&self, holder: K) -> Result<KeyedPermit<K>, ApiFault> {
        let mut open = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(holder.clone()).or_default();
        if *count >= self.limit {
            return Err(ApiFault::TooManyStreams { limit: self.limit });
        }
        *count += 1;
        Ok(KeyedPermit {
            limit: self.clone(),
            key: holder,
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
    /// Opens a stream and feeds it until `feed` is done or something ends it. A feeder's fault is the last message.
    pub(crate) fn open_stream<T, F>(
        &self,
        principal: &Principal,
        feed: impl FnOnce(StreamSender<T>) -> F,
    ) -> Result<ResponseStream<T>, ApiFault>
    where
        T: Default + Send + 'static,
        F: Future<Output = Result<(), ApiFault>> + Send + 'static,
    {
        let place = self.stream_limits.acquire(principal)?;
        let (sender, answers) = mpsc::channel(STREAM_QUEUE);
        let feeding = feed(sender.clone());
        let (principal, clock, stop) = (principal.clone(), self.clock.clone(), self.stop.clone());
        tokio::spawn(async move {
            let _place = place;
            let ended = tokio::select! {
                ended = feeding => ended,
                () = principal.ended(&clock) => Err(AuthFault::CredentialEnded.into()),
                () = stop.cancelled() => Err(ApiFault::Stopping),
                () = sender.closed() => Ok(()),
                () = keep_alive(&sender) => Ok(()),
            };
            if let Err(fault) = ended {
                // A client that does not read cannot be told, and must not hold its feeder.
                let _ = sender.try_send(Err(status::status(&fault)));
            }
        });
        Ok(Box::pin(ReceiverStream::new(answers)))
    }
}

/// For ever. A client that does not read has messages to read, and needs no more.
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
    fn many_tokens_of_one_tenant_leave_places_to_others() {
        let streams = LiveStreamLimits::new(2, 3);
        let who = |token: u128, tenant: &str| {
            let token = TokenId(Uuid::from_u128(token));
            (token, TenantId::new(tenant).unwrap())
        };
        let enter = |(token, tenant): (TokenId, TenantId)| {
            let own = streams.per_token.acquire(token)?;
            Ok::<_, ApiFault>((own, streams.per_tenant.acquire(tenant)?))
        };
        let first: Vec<_> = (0..2).map(|_| enter(who(1, "acme")).unwrap()).collect();
        assert!(enter(who(1, "acme")).is_err(), "this token has its share");
        let second = enter(who(2, "acme")).unwrap();
        assert!(enter(who(2, "acme")).is_err(), "this tenant has its share");
        let other = enter(who(3, "globex")).unwrap();
        drop((first, second, other));
        assert!(streams.per_token.in_use.lock().unwrap().is_empty());
        assert!(streams.per_tenant.in_use.lock().unwrap().is_empty());
    }
}
