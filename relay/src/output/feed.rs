//! The feed of durable ends by which a session learns what it may acknowledge, for all its attempts at once.
//!
//! Coalesced: it holds one entry per watched attempt, always the newest, so it cannot grow and cannot fall behind.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use uuid::Uuid;

use super::index::Index;
use super::piece::OutputEnd;

#[derive(Debug, Default)]
pub(crate) struct Feed {
    news: Mutex<HashMap<Uuid, OutputEnd>>,
    posted: Notify,
}

impl Feed {
    fn news(&self) -> MutexGuard<'_, HashMap<Uuid, OutputEnd>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn post(&self, attempt: Uuid, end: OutputEnd) {
        self.news().insert(attempt, end);
        self.posted.notify_one();
    }
}

/// Durable ends of the attempts that one session watches. Dropping it ends the watching.
#[derive(Debug)]
pub struct AckFeed {
    index: Arc<Index>,
    feed: Arc<Feed>,
    watched: Mutex<HashSet<Uuid>>,
}

impl AckFeed {
    pub(crate) fn new(index: Arc<Index>) -> Self {
        Self {
            index,
            feed: Arc::default(),
            watched: Mutex::default(),
        }
    }

    fn watched(&self) -> MutexGuard<'_, HashSet<Uuid>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts watching an attempt; its present end, if it has any, comes with the next `changed`.
    pub fn watch(&self, attempt: Uuid) {
        if self.watched().insert(attempt) {
            self.index.add_feed(attempt, &self.feed);
        }
    }

    pub fn unwatch(&self, attempt: Uuid) {
        if self.watched().remove(&attempt) {
            self.index.remove_feed(attempt, &self.feed);
            self.feed.news().remove(&attempt);
        }
    }

    /// Waits until some watched attempt's output moved and takes all that did. Also told: a seal, and a full disk
    /// taking accepted bytes back (`end` is `durable` again). Safe in `select!`; for one task at a time.
    pub async fn changed(&self) -> Vec<(Uuid, OutputEnd)> {
        loop {
            let news = std::mem::take(&mut *self.feed.news());
            if !news.is_empty() {
                return news.into_iter().collect();
            }
            self.feed.posted.notified().await;
        }
    }
}

impl Drop for AckFeed {
    fn drop(&mut self) {
        let watched = std::mem::take(&mut *self.watched());
        for attempt in watched {
            self.index.remove_feed(attempt, &self.feed);
        }
    }
}
