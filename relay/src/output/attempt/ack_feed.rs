//! A session's feed of durable output ends, which determine what it may acknowledge, for all
//! its attempts at once.
//!
//! Updates are coalesced: there is one entry per watched attempt, always the newest. The feed
//! can therefore neither grow nor fall behind.

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

/// Durable ends of the attempts that one session watches. Dropping it stops watching.
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

    /// Starts watching an attempt. If it has output already, the next `changed` returns its
    /// present end.
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

    /// Waits until the output of some watched attempt has changed, and returns all that have. A
    /// seal is a change too, and so is a full disk that discards accepted bytes (`end` equals
    /// `durable` again). Safe in `select!`; only one task may wait at a time.
    pub async fn changed(&self) -> Vec<(Uuid, OutputEnd)> {
        loop {
            let changes = std::mem::take(&mut *self.feed.lock_changed_ends());
            if !changes.is_empty() {
                return changes.into_iter().collect();
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
