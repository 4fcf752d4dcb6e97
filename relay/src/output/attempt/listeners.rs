//! The listeners of one attempt: watchers of its end, session feeds, and followers with the
//! short tail that they share.
//!
//! The tail contains the newest durable pieces. It is in memory only while there is a follower,
//! so that followers that keep up do not read from disk. It is bounded; a follower that falls
//! behind it reads from disk again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::watch;
use uuid::Uuid;

use super::ack_feed::DurableEndFeed;
use crate::output::piece::{OutputEnd, OutputPiece};

/// Tail bytes that every followed attempt may keep, however many others there are.
const TAIL_BYTES: usize = 256 * 1024;
/// Tail bytes of one attempt while memory is available. Enough for the largest group, so that
/// followers of a fast writer need not read all of it from disk.
const MAX_TAIL_BYTES: usize = 4 << 20;
/// Bytes in all tails above which each is limited to `TAIL_BYTES`.
const ALL_TAILS_BYTES: usize = 32 << 20;
/// Pieces in one tail, because small chunks cost more memory than their bytes.
const TAIL_PIECES: usize = 1024;

/// Bytes in all tails together. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TailMemory(Arc<AtomicUsize>);

impl TailMemory {
    fn reserve(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn release(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes that one attempt may keep now.
    fn attempt_share(&self) -> usize {
        if self.0.load(Ordering::Relaxed) < ALL_TAILS_BYTES {
            MAX_TAIL_BYTES
        } else {
            TAIL_BYTES
        }
    }
}

#[derive(Debug)]
pub(crate) struct AttemptListeners {
    attempt: Uuid,
    watch: watch::Sender<OutputEnd>,
    feeds: Vec<Weak<DurableEndFeed>>,
    pub(crate) followers: u32,
    tail: VecDeque<OutputPiece>,
    tail_bytes: usize,
    tail_memory: TailMemory,
}

impl AttemptListeners {
    pub(crate) fn new(attempt: Uuid, end: OutputEnd, tail_memory: TailMemory) -> Self {
        Self {
            attempt,
            watch: watch::Sender::new(end),
            feeds: Vec::new(),
            followers: 0,
            tail: VecDeque::new(),
            tail_bytes: 0,
            tail_memory,
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

    pub(crate) fn add_feed(&mut self, feed: &Arc<DurableEndFeed>) {
        self.feeds.retain(|other| {
            other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), Arc::as_ptr(feed))
        });
        self.feeds.push(Arc::downgrade(feed));
    }

    pub(crate) fn remove_feed(&mut self, feed: &Arc<DurableEndFeed>) {
        self.feeds
            .retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(feed)));
    }

    pub(crate) fn publish_end(&self, end: OutputEnd) {
        self.watch.send_replace(end);
        for feed in self.feeds.iter().filter_map(Weak::upgrade) {
            feed.post_end(self.attempt, end);
        }
    }

    /// Adds a newly durable piece to the tail, if there are followers.
    pub(crate) fn push_to_tail(&mut self, piece: &OutputPiece) {
        if self.followers == 0 {
            return;
        }
        self.tail_bytes += piece.payload_bytes();
        self.tail_memory.reserve(piece.payload_bytes());
        self.tail.push_back(piece.clone());
        while self.tail_bytes > self.tail_memory.attempt_share() || self.tail.len() > TAIL_PIECES {
            let oldest = self
                .tail
                .pop_front()
                .expect("an over-full tail is not empty");
            self.tail_bytes -= oldest.payload_bytes();
            self.tail_memory.release(oldest.payload_bytes());
        }
    }

    pub(crate) fn remove_follower(&mut self) {
        self.followers -= 1;
        if self.followers == 0 {
            self.drop_tail();
        }
    }

    fn drop_tail(&mut self) {
        self.tail_memory
            .release(std::mem::take(&mut self.tail_bytes));
        self.tail = VecDeque::new();
    }

    /// The tail from `at` on, if it reaches back that far.
    pub(crate) fn tail_from(&self, at: u64) -> Option<Vec<OutputPiece>> {
        if self.tail.front()?.start() > at {
            return None;
        }
        let first = self.tail.partition_point(|piece| piece.end() <= at);
        let mut pieces: Vec<OutputPiece> = self.tail.range(first..).cloned().collect();
        let head = pieces.first_mut()?;
        *head = head.clone().starting_at(at);
        Some(pieces)
    }
}

impl Drop for AttemptListeners {
    fn drop(&mut self) {
        self.drop_tail();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn piece(offset: u64, len: usize) -> OutputPiece {
        OutputPiece::Bytes {
            offset,
            after_control_seq: 0,
            kind: 0,
            observed_at_ms: 0,
            bytes: Bytes::from(vec![0; len]),
        }
    }

    fn flooded_listeners(tail_memory: &TailMemory, bytes: usize) -> AttemptListeners {
        let mut listeners =
            AttemptListeners::new(Uuid::nil(), OutputEnd::default(), tail_memory.clone());
        listeners.followers = 1;
        let len = 64 * 1024;
        for number in 0..bytes / len {
            listeners.push_to_tail(&piece((number * len) as u64, len));
        }
        listeners
    }

    #[test]
    fn tails_shrink_when_many_attempts_are_followed() {
        let tail_memory = TailMemory::default();
        let followed: Vec<AttemptListeners> = (0..64)
            .map(|_| flooded_listeners(&tail_memory, 8 << 20))
            .collect();
        assert!(followed[0].tail_bytes <= MAX_TAIL_BYTES && followed[0].tail_bytes > TAIL_BYTES);
        assert!(followed[63].tail_bytes <= TAIL_BYTES);
        let all: usize = followed.iter().map(|listeners| listeners.tail_bytes).sum();
        assert_eq!(tail_memory.0.load(Ordering::Relaxed), all);
        assert!(
            all <= ALL_TAILS_BYTES + MAX_TAIL_BYTES + 64 * TAIL_BYTES,
            "{all}"
        );
        drop(followed);
        assert_eq!(
            tail_memory.0.load(Ordering::Relaxed),
            0,
            "all tail memory was released"
        );
    }
}
