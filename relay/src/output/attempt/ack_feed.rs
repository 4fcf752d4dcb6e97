//! The feed of durable ends by which a session learns what it may acknowledge, for all its attempts at once.
//!
//! Coalesced: it holds one entry per watched attempt, always the newest, so it cannot grow and cannot fall behind.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use uuid::Uuid;

use super::index::OutputIndex;
use crate::output::piece::OutputEnd;

#[derive(Debug, Default)]
pub(crate) struct DurableEndFeed {
    changed_ends: Mutex<HashMap<Uuid, OutputEnd>>,
    end_posted: Notify,
}

impl DurableEndFeed {
    fn lock_changed_ends(&self) -> MutexGuard<'_, HashMap<Uuid, OutputEnd>> {
        self.changed_ends
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn post_end(&self, attempt: Uuid, end: OutputEnd) {
        self.lock_changed_ends().insert(attempt, end);
        self.end_posted.notify_one();
    }
}

/// Durable ends of the attempts that one session watches. Dropping it ends the watching.
#[derive(Debug)]
pub struct AckFeed {
    index: Arc<OutputIndex>,
    feed: Arc<DurableEndFeed>,
    watched: Mutex<HashSet<Uuid>>,
}

impl AckFeed {
    pub(crate) fn new(index: Arc<OutputIndex>) -> Self {
        Self {
            index,
            feed: Arc::default(),
            watched: Mutex::default(),
        }
    }

    fn lock_watched(&self) -> MutexGuard<'_, HashSet<Uuid>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts watching an attempt; its present end, if it has any, comes with the next `changed`.
    pub fn watch(&self, attempt: Uuid) {
        if self.lock_watched().insert(attempt) {
            self.index.add_feed(attempt, &self.feed);
        }
    }

    pub fn unwatch(&self, attempt: Uuid) {
        if self.lock_watched().remove(&attempt) {
            self.index.remove_feed(attempt, &self.feed);
            self.feed.lock_changed_ends().remove(&attempt);
        }
    }

    /// Waits until some watched attempt's output moved and takes all that did. Also told: a seal, and a full disk
    /// taking accepted bytes back (`end` is `durable` again). Safe in `select!`; for one task at a time.
    pub async fn changed(&self) -> Vec<(Uuid, OutputEnd)> {
        loop {
            let news = std::mem::take(&mut *self.feed.lock_changed_ends());
            if !news.is_empty() {
                return news.into_iter().collect();
            }
            self.feed.end_posted.notified().await;
        }
    }
}

impl Drop for AckFeed {
    fn drop(&mut self) {
        let watched = std::mem::take(&mut *self.lock_watched());
        for attempt in watched {
            self.index.remove_feed(attempt, &self.feed);
        }
    }
}
