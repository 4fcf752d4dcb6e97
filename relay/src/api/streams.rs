//! Live client streams: how many one token may hold open, and what ends them all.
//!
//! Each stream is fed by its own task over a small channel. Full: the feeder waits, and what it feeds from (a record, a
//! log on disk) needs no queue. A stream ends when its client leaves, its credential ends or the relay stops.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_core::id::TokenId;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::codegen::BoxStream;

use super::fault::Fault;
use super::{Api, status};
use crate::auth::{AuthFault, Principal};

/// Messages between a feeder and its client's connection. Few, because a client that does not read holds all of them,
/// up to 64 KiB each, beside what HTTP/2 buffers.
const QUEUE: usize = 2;

/// An empty message goes out this often: proxies end streams that carry nothing for a minute, pings or not.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The answering half of a streaming call.
pub(super) type Answers<T> = BoxStream<T>;

/// How a feeder hands messages over.
pub(super) type Feed<T> = mpsc::Sender<Result<T, Status>>;

/// What each token holds open: streams, or calls of one kind. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct LiveStreams {
    limit: usize,
    open: Arc<Mutex<HashMap<TokenId, usize>>>,
}

/// One stream's place; dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Place {
    streams: LiveStreams,
    token: TokenId,
}

impl LiveStreams {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            open: Arc::default(),
        }
    }

    pub(crate) fn enter(&self, token: TokenId) -> Result<Place, Fault> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(token).or_default();
        if *count >= self.limit {
            return Err(Fault::TooManyStreams { limit: self.limit });
        }
        *count += 1;
        Ok(Place {
            streams: self.clone(),
            token,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self
            .streams
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.token) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.token);
            }
        }
    }
}

impl Api {
    /// Opens a stream and feeds it until `feed` is done or something ends it. A feeder's fault is the last message.
    pub(super) fn stream<T, F>(
        &self,
        principal: &Principal,
        feed: impl FnOnce(Feed<T>) -> F,
    ) -> Result<Answers<T>, Fault>
    where
        T: Default + Send + 'static,
        F: Future<Output = Result<(), Fault>> + Send + 'static,
    {
        let place = self.streams.enter(principal.token)?;
        let (sender, answers) = mpsc::channel(QUEUE);
        let feeding = feed(sender.clone());
        let (principal, clock, stop) = (principal.clone(), self.clock.clone(), self.stop.clone());
        tokio::spawn(async move {
            let _place = place;
            let ended = tokio::select! {
                ended = feeding => ended,
                () = principal.ended(&clock) => Err(AuthFault::Ended.into()),
                () = stop.cancelled() => Err(Fault::Stopping),
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
async fn keep_alive<T: Default>(sender: &Feed<T>) {
    let mut ticks = tokio::time::interval(KEEPALIVE);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        if sender.capacity() == sender.max_capacity() {
            let _ = sender.try_send(Ok(T::default()));
        }
    }
}
