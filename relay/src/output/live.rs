//! Who listens to one attempt: durable-end watchers, session feeds, and followers with the short tail they share.
//!
//! The tail is a few of the newest durable pieces, kept in memory only while someone follows, so that followers who
//! keep up do not read the disk. It is bounded: who falls behind it reads the disk again.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use tokio::sync::watch;
use uuid::Uuid;

use super::feed::Feed;
use super::piece::{OutputEnd, Piece};

/// Payload bytes kept per followed attempt.
const TAIL_BYTES: usize = 256 * 1024;
/// And pieces, because small chunks cost more than their bytes.
const TAIL_PIECES: usize = 1024;

#[derive(Debug)]
pub(crate) struct Live {
    attempt: Uuid,
    watch: watch::Sender<OutputEnd>,
    feeds: Vec<Weak<Feed>>,
    pub(crate) followers: u32,
    tail: VecDeque<Piece>,
    tail_bytes: usize,
}

impl Live {
    pub(crate) fn new(attempt: Uuid, end: OutputEnd) -> Self {
        Self {
            attempt,
            watch: watch::Sender::new(end),
            feeds: Vec::new(),
            followers: 0,
            tail: VecDeque::new(),
            tail_bytes: 0,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.followers == 0
            && self.watch.receiver_count() == 0
            && self.feeds.iter().all(|feed| feed.strong_count() == 0)
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<OutputEnd> {
        self.watch.subscribe()
    }

    pub(crate) fn add_feed(&mut self, feed: &Arc<Feed>) {
        self.feeds.retain(|known| {
            known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), Arc::as_ptr(feed))
        });
        self.feeds.push(Arc::downgrade(feed));
    }

    pub(crate) fn remove_feed(&mut self, feed: &Arc<Feed>) {
        self.feeds
            .retain(|known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(feed)));
    }

    pub(crate) fn tell(&self, end: OutputEnd) {
        self.watch.send_replace(end);
        for feed in self.feeds.iter().filter_map(Weak::upgrade) {
            feed.post(self.attempt, end);
        }
    }

    /// Keeps a newly durable piece for followers, if there are any.
    pub(crate) fn keep(&mut self, piece: &Piece) {
        if self.followers == 0 {
            return;
        }
        self.tail_bytes += piece.weight();
        self.tail.push_back(piece.clone());
        while self.tail_bytes > TAIL_BYTES || self.tail.len() > TAIL_PIECES {
            let oldest = self
                .tail
                .pop_front()
                .expect("an over-full tail is not empty");
            self.tail_bytes -= oldest.weight();
        }
    }

    pub(crate) fn follower_left(&mut self) {
        self.followers -= 1;
        if self.followers == 0 {
            self.tail = VecDeque::new();
            self.tail_bytes = 0;
        }
    }

    /// The tail from `at` on, when it reaches back that far.
    pub(crate) fn tail_from(&self, at: u64) -> Option<Vec<Piece>> {
        if self.tail.front()?.start() > at {
            return None;
        }
        let first = self.tail.partition_point(|piece| piece.end() <= at);
        let mut pieces: Vec<Piece> = self.tail.range(first..).cloned().collect();
        let head = pieces.first_mut()?;
        *head = head.clone().starting_at(at);
        Some(pieces)
    }
}
