//! The index: all attempts the log knows, in shards, each behind a lock that is never held over I/O or an await.
//!
//! Memory is bounded by what is stored: an entry goes when its last segment is dropped, when it is forgotten, or when
//! nothing was ever stored and the last listener leaves.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use uuid::Uuid;

use super::ack_feed::DurableEndFeed;
use super::attempt_output::{AttemptOutput, FollowStep, OutputPosition, SealPhase};
use super::listeners::{AttemptListeners, TailMemory};
use crate::output::piece::{OutputEnd, OutputPiece};
use crate::output::segment::extent::{SegmentContents, StoredExtent};

const SHARDS: usize = 64;

type IndexShard = HashMap<Uuid, AttemptOutput>;

#[derive(Debug)]
pub(crate) struct OutputIndex {
    shards: Vec<Mutex<IndexShard>>,
    generations: AtomicU64,
    writer_ended: AtomicBool,
    tail_memory: TailMemory,
}

/// What to read for one request: below `base` there is nothing, then the extents in order.
#[derive(Debug)]
pub(crate) struct OutputReadPlan {
    pub(crate) base: u64,
    pub(crate) extents: Vec<StoredExtent>,
}

impl OutputIndex {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            generations: AtomicU64::new(0),
            writer_ended: AtomicBool::new(false),
            tail_memory: TailMemory::default(),
        }
    }

    /// The last byte of an id is random, so it spreads. A panic leaves an entry at worst with stale listeners, so
    /// poisoning must not spread to every other attempt.
    pub(crate) fn shard(&self, attempt: Uuid) -> MutexGuard<'_, IndexShard> {
        let shard = usize::from(attempt.as_bytes()[15]) % SHARDS;
        self.shards[shard]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn next_generation(&self) -> u64 {
        self.generations.fetch_add(1, Ordering::Relaxed)
    }

    /// Looks at an attempt that is known.
    pub(crate) fn with_attempt<T>(
        &self,
        attempt: Uuid,
        look: impl FnOnce(&mut AttemptOutput) -> T,
    ) -> Option<T> {
        self.shard(attempt).get_mut(&attempt).map(look)
    }

    fn with_attempt_or_new<T>(
        &self,
        attempt: Uuid,
        change: impl FnOnce(&mut AttemptOutput) -> T,
    ) -> T {
        let mut shard = self.shard(attempt);
        change(
            shard
                .entry(attempt)
                .or_insert_with(|| AttemptOutput::new(self.next_generation())),
        )
    }

    pub(crate) fn end(&self, attempt: Uuid) -> Option<OutputEnd> {
        let end = self.with_attempt(attempt, |known| {
            (!known.has_no_output()).then(|| known.output_end())
        });
        end.flatten()
    }

    pub(crate) fn position(&self, attempt: Uuid) -> Option<OutputPosition> {
        self.with_attempt(attempt, |known| known.position())
    }

    pub(crate) fn is_current(&self, attempt: Uuid, generation: u64) -> bool {
        self.with_attempt(attempt, |known| known.generation == generation) == Some(true)
    }

    /// A sealed attempt moves no more: its receiver holds the last word and is closed.
    pub(crate) fn subscribe(&self, attempt: Uuid) -> watch::Receiver<OutputEnd> {
        self.with_attempt_or_new(attempt, |known| {
            subscribe_attempt(attempt, known, &self.tail_memory)
        })
    }

    /// The same for an attempt that must be known already, with where it stands now.
    pub(crate) fn subscribe_existing(
        &self,
        attempt: Uuid,
    ) -> Option<(OutputPosition, watch::Receiver<OutputEnd>)> {
        self.with_attempt(attempt, |known| {
            let moves = subscribe_attempt(attempt, known, &self.tail_memory);
            (known.position(), moves)
        })
    }

    pub(crate) fn add_follower(&self, attempt: Uuid) -> watch::Receiver<OutputEnd> {
        self.with_attempt_or_new(attempt, |known| {
            let live = listeners_of(attempt, known, &self.tail_memory);
            live.followers += 1;
            live.subscribe()
        })
    }

    pub(crate) fn remove_follower(&self, attempt: Uuid) {
        self.remove_listener(attempt, AttemptListeners::remove_follower);
    }

    pub(crate) fn add_feed(&self, attempt: Uuid, feed: &Arc<DurableEndFeed>) {
        self.with_attempt_or_new(attempt, |known| {
            if !known.has_no_output() {
                feed.post_end(attempt, known.output_end());
            }
            if known.phase != SealPhase::Sealed {
                listeners_of(attempt, known, &self.tail_memory).add_feed(feed);
            }
        });
    }

    pub(crate) fn remove_feed(&self, attempt: Uuid, feed: &Arc<DurableEndFeed>) {
        self.remove_listener(attempt, |live| live.remove_feed(feed));
    }

    /// A listener goes; the entry goes with it when it was there for listeners only.
    fn remove_listener(&self, attempt: Uuid, leave: impl FnOnce(&mut AttemptListeners)) {
        let mut shard = self.shard(attempt);
        let Some(known) = shard.get_mut(&attempt) else {
            return;
        };
        if let Some(live) = &mut known.listeners {
            leave(live);
            if live.is_idle() {
                known.listeners = None;
            }
        }
        if known.is_removable() {
            shard.remove(&attempt);
        }
    }

    /// Makes one run of frames visible: the extents they went into, and the pieces themselves for followers.
    pub(crate) fn publish(
        &self,
        attempt: Uuid,
        extents: &[StoredExtent],
        pieces: &[OutputPiece],
        sealed: bool,
    ) {
        self.with_attempt(attempt, |known| {
            let was_durable = known.durable;
            for extent in extents {
                known.join(*extent);
            }
            if let Some(live) = &mut known.listeners {
                let new = pieces.iter().filter(|piece| piece.start() >= was_durable);
                new.for_each(|piece| live.push_to_tail(piece));
            }
            if sealed {
                known.phase = SealPhase::Sealed;
                known.extents.shrink_to_fit();
            }
            known.notify_listeners();
        });
    }

    pub(crate) fn discard_unsynced(&self, attempt: Uuid) {
        let generation = self.next_generation();
        let mut shard = self.shard(attempt);
        if let Some(known) = shard.get_mut(&attempt) {
            known.discard_unsynced(generation);
            if known.is_removable() {
                shard.remove(&attempt);
            }
        }
    }

    pub(crate) fn forget(&self, attempt: Uuid) -> bool {
        self.shard(attempt).remove(&attempt).is_some()
    }

    /// Drops what lies in segments up to `segment`. Answers with where an attempt stands that goes on and of which
    /// nothing is left on disk: its end must be written again.
    pub(crate) fn drop_through(&self, attempt: Uuid, segment: u32) -> Option<OutputPosition> {
        let mut shard = self.shard(attempt);
        let known = shard.get_mut(&attempt)?;
        known.drop_through(segment);
        if known.is_removable() {
            shard.remove(&attempt);
            return None;
        }
        (known.extents.is_empty() && known.phase != SealPhase::Sealed).then(|| known.position())
    }

    pub(crate) fn absorb_segment(
        &self,
        contents: SegmentContents,
        segment: u32,
        dropped_before: bool,
    ) -> u64 {
        let mut damage = 0;
        for (attempt, part) in contents.parts {
            if part.forgotten {
                self.forget(attempt);
            } else {
                damage += self.with_attempt_or_new(attempt, |known| {
                    known.absorb_segment(part, segment, dropped_before)
                });
            }
        }
        damage
    }

    pub(crate) fn step(&self, attempt: Uuid, at: u64) -> Option<FollowStep> {
        self.with_attempt(attempt, |known| known.step(at))
    }

    /// Extents from `from` on that together hold `max_bytes`, or all there are.
    pub(crate) fn plan_read(
        &self,
        attempt: Uuid,
        from: u64,
        max_bytes: u64,
    ) -> Option<OutputReadPlan> {
        self.with_attempt(attempt, |known| {
            let first = known.extents.partition_point(|extent| extent.end() <= from);
            let mut held = 0;
            let enough = |extent: &&StoredExtent| {
                let wanted = held < max_bytes;
                held += extent.end() - extent.offset.max(from);
                wanted
            };
            OutputReadPlan {
                base: known.base,
                extents: known.extents[first..]
                    .iter()
                    .take_while(enough)
                    .copied()
                    .collect(),
            }
        })
    }

    /// Attempts for which `keep` holds.
    pub(crate) fn ids(&self, keep: impl Fn(&AttemptOutput) -> bool) -> Vec<Uuid> {
        let mut ids = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            ids.extend(
                shard
                    .iter()
                    .filter(|(_, known)| keep(known))
                    .map(|(id, _)| *id),
            );
        }
        ids
    }

    pub(crate) fn count(&self) -> usize {
        let lens = self
            .shards
            .iter()
            .map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len());
        lens.sum()
    }

    /// The writer has ended: whoever waits for more is told so by a closed channel.
    pub(crate) fn close_listeners(&self) {
        self.writer_ended.store(true, Ordering::Release);
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.values_mut().for_each(|known| known.listeners = None);
        }
    }

    pub(crate) fn has_writer_ended(&self) -> bool {
        self.writer_ended.load(Ordering::Acquire)
    }
}

fn subscribe_attempt(
    attempt: Uuid,
    known: &mut AttemptOutput,
    tails: &TailMemory,
) -> watch::Receiver<OutputEnd> {
    match known.phase {
        SealPhase::Open | SealPhase::Sealing => listeners_of(attempt, known, tails).subscribe(),
        SealPhase::Sealed => watch::channel(known.output_end()).1,
    }
}

fn listeners_of<'a>(
    attempt: Uuid,
    known: &'a mut AttemptOutput,
    tails: &TailMemory,
) -> &'a mut AttemptListeners {
    let end = known.output_end();
    known
        .listeners
        .get_or_insert_with(|| Box::new(AttemptListeners::new(attempt, end, tails.clone())))
}
