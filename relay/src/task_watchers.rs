//! Watches of tasks: history first, then live events, in revision order, without a gap or a
//! duplicate.
//!
//! A watcher subscribes, reads the record, and is then woken with newer records. The events it
//! has not shown yet are taken from the record's timeline. There is no queue per watcher that
//! could overflow: a slow watcher continues with the newest record, and if the timeline no
//! longer reaches back far enough, it reports the revisions that are missing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use baton_core::ids::TaskId;
use baton_core::record::{TaskRecord, TimelineEvent};
use tokio::sync::watch;

/// Watchers at one time, over all tenants. Each uses one open stream.
pub const WATCHERS_MAX: usize = 4096;
/// Watchers of one tenant, so that some are left for the others.
pub(crate) const WATCHERS_PER_TENANT: usize = WATCHERS_MAX / 4 * 3;

type WatchChannel = watch::Sender<Option<Arc<TaskRecord>>>;

/// The watchers of all tasks. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct TaskWatchers {
    channels: Arc<Mutex<WatchChannels>>,
}

#[derive(Debug, Default)]
struct WatchChannels {
    by_task: HashMap<TaskId, WatchChannel>,
    watcher_count: usize,
}

/// The limit on watchers is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyWatchers;

impl TaskWatchers {
    /// Subscribes to a task. Read the task's record only after this call, or an event in
    /// between is lost.
    pub fn subscribe(
        &self,
        task: TaskId,
        after_revision: u64,
    ) -> Result<TaskSubscription, TooManyWatchers> {
        let mut slots = self.lock();
        if slots.watcher_count >= WATCHERS_MAX {
            return Err(TooManyWatchers);
        }
        slots.watcher_count += 1;
        let slot = slots
            .by_task
            .entry(task)
            .or_insert_with(|| watch::channel(None).0);
        let records = slot.subscribe();
        drop(slots);
        Ok(TaskSubscription {
            watchers: self.clone(),
            task,
            records,
            seen_revision: after_revision,
        })
    }

    /// Wakes the task's watchers with a durable record.
    pub(crate) fn publish(&self, record: &Arc<TaskRecord>) {
        if let Some(slot) = self.lock().by_task.get(&record.task) {
            slot.send_replace(Some(Arc::clone(record)));
        }
    }

    fn unsubscribe(&self, task: TaskId) {
        let mut slots = self.lock();
        slots.watcher_count -= 1;
        // The receiver being dropped still counts, so one means that no other watcher is left.
        if slots
            .by_task
            .get(&task)
            .is_some_and(|slot| slot.receiver_count() <= 1)
        {
            slots.by_task.remove(&task);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, WatchChannels> {
        // A panic leaves the map consistent: every change is a single insert or remove.
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One watcher's subscription to one task. Dropping it frees its slot.
#[derive(Debug)]
pub struct TaskSubscription {
    watchers: TaskWatchers,
    task: TaskId,
    records: watch::Receiver<Option<Arc<TaskRecord>>>,
    seen_revision: u64,
}

/// What a watcher shows next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchUpdate {
    /// Revisions `from..=to` are no longer in the timeline and will not be delivered, except
    /// for operators' actions.
    pub missed: Option<(u64, u64)>,
    pub events: Vec<Arc<TimelineEvent>>,
    pub record: Arc<TaskRecord>,
}

impl TaskSubscription {
    /// The part of `record` that was not shown yet, if any.
    pub fn advance(&mut self, record: &Arc<TaskRecord>) -> Option<WatchUpdate> {
        if record.revision <= self.seen_revision {
            return None;
        }
        let oldest = record.timeline.dropped_through + 1;
        let missed =
            (self.seen_revision + 1 < oldest).then(|| (self.seen_revision + 1, oldest - 1));
        let fresh = record
            .timeline
            .events
            .iter()
            .filter(|event| event.revision > self.seen_revision);
        let events = fresh.cloned().collect();
        self.seen_revision = record.revision;
        Some(WatchUpdate {
            missed,
            events,
            record: Arc::clone(record),
        })
    }

    /// Waits for the next update. Safe in `select!`: nothing is consumed before it resolves.
    pub async fn next(&mut self) -> WatchUpdate {
        loop {
            // The sender stays in the map as long as this receiver is subscribed.
            let _ = self.records.changed().await;
            let newest = self.records.borrow_and_update().clone();
            if let Some(update) = newest.and_then(|record| self.advance(&record)) {
                return update;
            }
        }
    }
}

impl Drop for TaskSubscription {
    fn drop(&mut self) {
        self.watchers.unsubscribe(self.task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_core::ids::TenantId;
    use baton_core::record::{RetryCounters, TaskState, TaskTimeline, TimelineEventKind, TraceIds};
    use baton_core::time::WallTime;
    use uuid::Uuid;

    fn event(revision: u64) -> Arc<TimelineEvent> {
        Arc::new(TimelineEvent {
            revision,
            at: WallTime(0),
            observed_at: None,
            attempt: None,
            kind: TimelineEventKind::Submitted,
            state: None,
            task_state: TaskState::Pending,
            message: None,
            deadline: None,
        })
    }

    /// A record whose timeline holds the revisions `from..=to`.
    fn record(from: u64, to: u64) -> Arc<TaskRecord> {
        let trace = TraceIds {
            trace_id: [0; 16],
            root_span: [0; 8],
            parent_span: None,
            sampled: false,
        };
        Arc::new(TaskRecord {
            tenant: TenantId::new("default").unwrap(),
            task: TaskId(Uuid::from_u128(1)),
            revision: to,
            state: TaskState::Pending,
            created: WallTime(0),
            updated: WallTime(0),
            ended: None,
            attempts: Vec::new(),
            cancel: None,
            attention: None,
            retry: None,
            counters: RetryCounters::default(),
            paused: None,
            retry_stop_reason: None,
            checkpoint_count: 0,
            checkpointed_revision: 0,
            timeline: TaskTimeline {
                dropped_through: from - 1,
                events: (from..=to).map(event).collect(),
            },
            trace,
        })
    }

    fn revisions(update: &WatchUpdate) -> Vec<u64> {
        update.events.iter().map(|event| event.revision).collect()
    }

    #[tokio::test]
    async fn history_then_live_without_a_gap_or_a_duplicate() {
        let watchers = TaskWatchers::default();
        let mut subscription = watchers.subscribe(TaskId(Uuid::from_u128(1)), 1).unwrap();
        // Published between subscribing and reading: seen only once.
        watchers.publish(&record(1, 3));
        assert_eq!(
            revisions(&subscription.advance(&record(1, 3)).unwrap()),
            [2, 3]
        );
        watchers.publish(&record(1, 4));
        watchers.publish(&record(1, 6));
        let update = subscription.next().await;
        assert_eq!((revisions(&update), update.missed), (vec![4, 5, 6], None));
    }

    #[tokio::test]
    async fn a_slow_watcher_gets_the_missed_revisions() {
        let watchers = TaskWatchers::default();
        let mut subscription = watchers.subscribe(TaskId(Uuid::from_u128(1)), 2).unwrap();
        watchers.publish(&record(10, 12));
        let update = subscription.next().await;
        assert_eq!(
            (revisions(&update), update.missed),
            (vec![10, 11, 12], Some((3, 9)))
        );
    }

    #[test]
    fn watcher_slots_are_freed_when_watchers_leave() {
        let watchers = TaskWatchers::default();
        let task = TaskId(Uuid::from_u128(1));
        let subscriptions: Vec<TaskSubscription> = (0..WATCHERS_MAX)
            .map(|_| watchers.subscribe(task, 0).unwrap())
            .collect();
        assert_eq!(watchers.subscribe(task, 0).err(), Some(TooManyWatchers));
        drop(subscriptions);
        assert!(watchers.lock().by_task.is_empty());
        assert!(watchers.subscribe(task, 0).is_ok());
    }
}
