//! The index of all attempts with output, in shards. No shard's lock is kept over I/O or an
//! await.
//!
//! Memory is bounded by what is stored. An entry is removed when its last segment is dropped,
//! when it is forgotten, or when nothing was ever stored and the last listener leaves.

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

/// What to read for one request: nothing below `base`, then the extents in order.
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

    /// The shard of an attempt. The last byte of an id is random, so attempts spread evenly. A
    /// panic leaves at worst stale listeners in one entry, so a poisoned lock must not block
    /// the other attempts of the shard.
    pub(crate) fn shard(&self, attempt: Uuid) -> MutexGuard<'_, IndexShard> {
        let shard = usize::from(attempt.as_bytes()[15]) % SHARDS;
        self.shards[shard]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn next_generation(&self) -> u64 {
        self.generations.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls `access` with the attempt's output, if it is known.
    pub(crate) fn with_attempt<T>(
        &self,
        attempt: Uuid,
        access: impl FnOnce(&mut AttemptOutput) -> T,
    ) -> Option<T> {
        self.shard(attempt).get_mut(&attempt).map(access)
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
        let end = self.with_attempt(attempt, |output| {
            (!output.has_no_output()).then(|| output.output_end())
        });
        end.flatten()
    }

    pub(crate) fn position(&self, attempt: Uuid) -> Option<OutputPosition> {
        self.with_attempt(attempt, |output| output.position())
    }

    pub(crate) fn is_current(&self, attempt: Uuid, generation: u64) -> bool {
        self.with_attempt(attempt, |output| output.generation == generation) == Some(true)
    }

    /// Watches an attempt's end. A sealed attempt does not change any more; its receiver has
    /// the final end and is closed.
    pub(crate) fn subscribe(&self, attempt: Uuid) -> watch::Receiver<OutputEnd> {
        self.with_attempt_or_new(attempt, |output| {
            subscribe_attempt(attempt, output, &self.tail_memory)
        })
    }

    /// Like `subscribe`, but only for a known attempt, and with its present position.
    pub(crate) fn subscribe_existing(
        &self,
        attempt: Uuid,
    ) -> Option<(OutputPosition, watch::Receiver<OutputEnd>)> {
        self.with_attempt(attempt, |output| {
            let changes = subscribe_attempt(attempt, output, &self.tail_memory);
            (output.position(), changes)
        })
    }

    pub(crate) fn add_follower(&self, attempt: Uuid) -> watch::Receiver<OutputEnd> {
        self.with_attempt_or_new(attempt, |output| {
            let listeners = listeners_of(attempt, output, &self.tail_memory);
            listeners.followers += 1;
            listeners.subscribe()
        })
    }

    pub(crate) fn remove_follower(&self, attempt: Uuid) {
        self.remove_listener(attempt, AttemptListeners::remove_follower);
    }

    pub(crate) fn add_feed(&self, attempt: Uuid, feed: &Arc<DurableEndFeed>) {
        self.with_attempt_or_new(attempt, |output| {
            if !output.has_no_output() {
                feed.post_end(attempt, output.output_end());
            }
            if output.phase != SealPhase::Sealed {
                listeners_of(attempt, output, &self.tail_memory).add_feed(feed);
            }
        });
    }

    pub(crate) fn remove_feed(&self, attempt: Uuid, feed: &Arc<DurableEndFeed>) {
        self.remove_listener(attempt, |listeners| listeners.remove_feed(feed));
    }

    /// Removes a listener, and the entry too if it existed for listeners only.
    fn remove_listener(&self, attempt: Uuid, remove: impl FnOnce(&mut AttemptListeners)) {
        let mut shard = self.shard(attempt);
        let Some(output) = shard.get_mut(&attempt) else {
            return;
        };
        if let Some(listeners) = &mut output.listeners {
            remove(listeners);
            if listeners.is_idle() {
                output.listeners = None;
            }
        }
        if output.is_removable() {
            shard.remove(&attempt);
        }
    }

    /// Makes a run of frames visible: the extents that contain them, and the pieces themselves
    /// for followers.
    pub(crate) fn publish(
        &self,
        attempt: Uuid,
        extents: &[StoredExtent],
        pieces: &[OutputPiece],
        sealed: bool,
    ) {
        self.with_attempt(attempt, |output| {
            let was_durable = output.durable;
            for extent in extents {
                output.join(*extent);
            }
            if let Some(listeners) = &mut output.listeners {
                let new = pieces.iter().filter(|piece| piece.start() >= was_durable);
                new.for_each(|piece| listeners.push_to_tail(piece));
            }
            if sealed {
                output.phase = SealPhase::Sealed;
                output.extents.shrink_to_fit();
            }
            output.notify_listeners();
        });
    }

    pub(crate) fn discard_unsynced(&self, attempt: Uuid) {
        let generation = self.next_generation();
        let mut shard = self.shard(attempt);
        if let Some(output) = shard.get_mut(&attempt) {
            output.discard_unsynced(generation);
            if output.is_removable() {
                shard.remove(&attempt);
            }
        }
    }

    pub(crate) fn forget(&self, attempt: Uuid) -> bool {
        self.shard(attempt).remove(&attempt).is_some()
    }

    /// Drops what is in segments up to `segment`. If the attempt is still running and nothing
    /// of it is left on disk, returns its position: its end must be written again.
    pub(crate) fn drop_through(&self, attempt: Uuid, segment: u32) -> Option<OutputPosition> {
        let mut shard = self.shard(attempt);
        let output = shard.get_mut(&attempt)?;
        output.drop_through(segment);
        if output.is_removable() {
            shard.remove(&attempt);
            return None;
        }
        (output.extents.is_empty() && output.phase != SealPhase::Sealed).then(|| output.position())
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
                damage += self.with_attempt_or_new(attempt, |output| {
                    output.absorb_segment(part, segment, dropped_before)
                });
            }
        }
        damage
    }

    pub(crate) fn step(&self, attempt: Uuid, at: u64) -> Option<FollowStep> {
        self.with_attempt(attempt, |output| output.step(at))
    }

    /// Extents from `from` on that together contain `max_bytes`, or all there are.
    pub(crate) fn plan_read(
        &self,
        attempt: Uuid,
        from: u64,
        max_bytes: u64,
    ) -> Option<OutputReadPlan> {
        self.with_attempt(attempt, |output| {
            let first = output
                .extents
                .partition_point(|extent| extent.end() <= from);
            let mut planned = 0;
            let enough = |extent: &&StoredExtent| {
                let wanted = planned < max_bytes;
                planned += extent.end() - extent.offset.max(from);
                wanted
            };
            OutputReadPlan {
                base: output.base,
                extents: output.extents[first..]
                    .iter()
                    .take_while(enough)
                    .copied()
                    .collect(),
            }
        })
    }

    /// Attempts that `keep` selects.
    pub(crate) fn ids(&self, keep: impl Fn(&AttemptOutput) -> bool) -> Vec<Uuid> {
        let mut ids = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            ids.extend(
                shard
                    .iter()
                    .filter(|(_, output)| keep(output))
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

    /// Marks the writer as ended. Closing the channels wakes everything that waits for more
    /// output.
    pub(crate) fn close_listeners(&self) {
        self.writer_ended.store(true, Ordering::Release);
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard
                .values_mut()
                .for_each(|output| output.listeners = None);
        }
    }

    pub(crate) fn has_writer_ended(&self) -> bool {
        self.writer_ended.load(Ordering::Acquire)
    }
}

fn subscribe_attempt(
    attempt: Uuid,
    output: &mut AttemptOutput,
    tails: &TailMemory,
) -> watch::Receiver<OutputEnd> {
    match output.phase {
        SealPhase::Open | SealPhase::Sealing => listeners_of(attempt, output, tails).subscribe(),
        SealPhase::Sealed => watch::channel(output.output_end()).1,
    }
}

fn listeners_of<'a>(
    attempt: Uuid,
    output: &'a mut AttemptOutput,
    tails: &TailMemory,
) -> &'a mut AttemptListeners {
    let end = output.output_end();
    output
        .listeners
        .get_or_insert_with(|| Box::new(AttemptListeners::new(attempt, end, tails.clone())))
}
