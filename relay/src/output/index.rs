//! The index: all attempts the log knows, in shards, each behind a lock that is never held over I/O or an await.
//!
//! Memory is bounded by what is stored: an entry goes when its last segment is dropped, when it is forgotten, or when
//! nothing was ever stored and the last listener leaves.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use uuid::Uuid;

use super::attempt::{Attempt, Phase, Standing, Step};
use super::extent::{Contents, Extent};
use super::feed::Feed;
use super::live::{Live, TailRoom};
use super::piece::{OutputEnd, Piece};

const SHARDS: usize = 64;

type Shard = HashMap<Uuid, Attempt>;

#[derive(Debug)]
pub(crate) struct Index {
    shards: Vec<Mutex<Shard>>,
    generations: AtomicU64,
    hung_up: AtomicBool,
    tails: TailRoom,
}

/// What to read for one request: below `base` there is nothing, then the extents in order.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) base: u64,
    pub(crate) extents: Vec<Extent>,
}

impl Index {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            generations: AtomicU64::new(0),
            hung_up: AtomicBool::new(false),
            tails: TailRoom::default(),
        }
    }

    /// The last byte of an id is random, so it spreads. A panic leaves an entry at worst with stale listeners, so
    /// poisoning must not spread to every other attempt.
    pub(crate) fn shard(&self, attempt: Uuid) -> MutexGuard<'_, Shard> {
        let shard = usize::from(attempt.as_bytes()[15]) % SHARDS;
        self.shards[shard]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn next_generation(&self) -> u64 {
        self.generations.fetch_add(1, Ordering::Relaxed)
    }

    /// Looks at an attempt that is known.
    pub(crate) fn look<T>(&self, attempt: Uuid, look: impl FnOnce(&mut Attempt) -> T) -> Option<T> {
        self.shard(attempt).get_mut(&attempt).map(look)
    }

    fn known_or_new<T>(&self, attempt: Uuid, change: impl FnOnce(&mut Attempt) -> T) -> T {
        let mut shard = self.shard(attempt);
        change(
            shard
                .entry(attempt)
                .or_insert_with(|| Attempt::new(self.next_generation())),
        )
    }

    pub(crate) fn end(&self, attempt: Uuid) -> Option<OutputEnd> {
        let end = self.look(attempt, |known| {
            (!known.is_blank()).then(|| known.output_end())
        });
        end.flatten()
    }

    pub(crate) fn standing(&self, attempt: Uuid) -> Option<Standing> {
        self.look(attempt, |known| known.standing())
    }

    pub(crate) fn is_current(&self, attempt: Uuid, generation: u64) -> bool {
        self.look(attempt, |known| known.generation == generation) == Some(true)
    }

    /// A sealed attempt moves no more: its receiver holds the last word and is closed.
    pub(crate) fn subscribe(&self, attempt: Uuid) -> watch::Receiver<OutputEnd> {
        self.known_or_new(attempt, |known| subscribe_to(attempt, known, &self.tails))
    }

    /// The same for an attempt that must be known already, with where it stands now.
    pub(crate) fn await_moves(
        &self,
        attempt: Uuid,
    ) -> Option<(Standing, watch::Receiver<OutputEnd>)> {
        self.look(attempt, |known| {
            let moves = subscribe_to(attempt, known, &self.tails);
            (known.standing(), moves)
        })
    }

    pub(crate) fn add_follower(&self, attempt: Uuid) -> watch::Receiver<OutputEnd> {
        self.known_or_new(attempt, |known| {
            let live = live_of(attempt, known, &self.tails);
            live.followers += 1;
            live.subscribe()
        })
    }

    pub(crate) fn remove_follower(&self, attempt: Uuid) {
        self.leave(attempt, Live::follower_left);
    }

    pub(crate) fn add_feed(&self, attempt: Uuid, feed: &Arc<Feed>) {
        self.known_or_new(attempt, |known| {
            if !known.is_blank() {
                feed.post(attempt, known.output_end());
            }
            if known.phase != Phase::Sealed {
                live_of(attempt, known, &self.tails).add_feed(feed);
            }
        });
    }

    pub(crate) fn remove_feed(&self, attempt: Uuid, feed: &Arc<Feed>) {
        self.leave(attempt, |live| live.remove_feed(feed));
    }

    /// A listener goes; the entry goes with it when it was there for listeners only.
    fn leave(&self, attempt: Uuid, leave: impl FnOnce(&mut Live)) {
        let mut shard = self.shard(attempt);
        let Some(known) = shard.get_mut(&attempt) else {
            return;
        };
        if let Some(live) = &mut known.live {
            leave(live);
            if live.is_idle() {
                known.live = None;
            }
        }
        if known.is_vacant() {
            shard.remove(&attempt);
        }
    }

    /// Makes one run of frames visible: the extents they went into, and the pieces themselves for followers.
    pub(crate) fn publish(
        &self,
        attempt: Uuid,
        extents: &[Extent],
        pieces: &[Piece],
        sealed: bool,
    ) {
        self.look(attempt, |known| {
            let was_durable = known.durable;
            for extent in extents {
                known.join(*extent);
            }
            if let Some(live) = &mut known.live {
                let new = pieces.iter().filter(|piece| piece.start() >= was_durable);
                new.for_each(|piece| live.keep(piece));
            }
            if sealed {
                known.phase = Phase::Sealed;
                known.extents.shrink_to_fit();
            }
            known.tell();
        });
    }

    pub(crate) fn take_back(&self, attempt: Uuid) {
        let generation = self.next_generation();
        let mut shard = self.shard(attempt);
        if let Some(known) = shard.get_mut(&attempt) {
            known.take_back(generation);
            if known.is_vacant() {
                shard.remove(&attempt);
            }
        }
    }

    pub(crate) fn forget(&self, attempt: Uuid) -> bool {
        self.shard(attempt).remove(&attempt).is_some()
    }

    /// Drops what lies in segments up to `segment`. Answers with where an attempt stands that goes on and of which
    /// nothing is left on disk: its end must be written again.
    pub(crate) fn drop_through(&self, attempt: Uuid, segment: u32) -> Option<Standing> {
        let mut shard = self.shard(attempt);
        let known = shard.get_mut(&attempt)?;
        known.drop_through(segment);
        if known.is_vacant() {
            shard.remove(&attempt);
            return None;
        }
        (known.extents.is_empty() && known.phase != Phase::Sealed).then(|| known.standing())
    }

    pub(crate) fn absorb(&self, contents: Contents, segment: u32, dropped_before: bool) -> u64 {
        let mut damage = 0;
        for (attempt, part) in contents.parts {
            if part.forgotten {
                self.forget(attempt);
            } else {
                damage +=
                    self.known_or_new(attempt, |known| known.absorb(part, segment, dropped_before));
            }
        }
        damage
    }

    pub(crate) fn step(&self, attempt: Uuid, at: u64) -> Option<Step> {
        self.look(attempt, |known| known.step(at))
    }

    /// Extents from `from` on that together hold `max_bytes`, or all there are.
    pub(crate) fn plan(&self, attempt: Uuid, from: u64, max_bytes: u64) -> Option<Plan> {
        self.look(attempt, |known| {
            let first = known.extents.partition_point(|extent| extent.end() <= from);
            let mut held = 0;
            let enough = |extent: &&Extent| {
                let wanted = held < max_bytes;
                held += extent.end() - extent.offset.max(from);
                wanted
            };
            Plan {
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
    pub(crate) fn ids(&self, keep: impl Fn(&Attempt) -> bool) -> Vec<Uuid> {
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
    pub(crate) fn hang_up(&self) {
        self.hung_up.store(true, Ordering::Release);
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.values_mut().for_each(|known| known.live = None);
        }
    }

    pub(crate) fn has_hung_up(&self) -> bool {
        self.hung_up.load(Ordering::Acquire)
    }
}

fn subscribe_to(
    attempt: Uuid,
    known: &mut Attempt,
    tails: &TailRoom,
) -> watch::Receiver<OutputEnd> {
    match known.phase {
        Phase::Open | Phase::Sealing => live_of(attempt, known, tails).subscribe(),
        Phase::Sealed => watch::channel(known.output_end()).1,
    }
}

fn live_of<'a>(attempt: Uuid, known: &'a mut Attempt, tails: &TailRoom) -> &'a mut Live {
    let end = known.output_end();
    known
        .live
        .get_or_insert_with(|| Box::new(Live::new(attempt, end, tails.clone())))
}
