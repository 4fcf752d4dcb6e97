//! Watching tasks: history first, then live, in revision order, without a gap or a duplicate.
//!
//! A watcher registers, reads the record, and from then on is woken with newer records; what it has not shown yet
//! is cut out of the record's own timeline. There is no queue per watcher to overflow: a slow one skips straight
//! to the newest record, and if the timeline no longer reaches back far enough it is told what it missed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use baton_core::ids::TaskId;
use baton_core::record::{TaskRecord, TimelineEvent};
use tokio::sync::watch;

/// Watchers at one time, over all tenants; each holds one stream open.
pub const WATCHERS_MAX: usize = 4096;
/// One tenant leaves some of them to the others.
pub(crate) const WATCHERS_PER_TENANT: usize = WATCHERS_MAX / 4 * 3;

type WatchChannel = watch::Sender<Option<Arc<TaskRecord>>>;

/// Who watches what. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct TaskWatchers {
    channels: Arc<Mutex<WatchChannels>>,
}

#[derive(Debug, Default)]
struct WatchChannels {
    by_task: HashMap<TaskId, WatchChannel>,
    watcher_count: usize,
}

/// All places are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyWatchers;

impl TaskWatchers {
    /// Takes a place. Read the task's record only after this, or an event may fall between.
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

    /// Wakes the task's watchers with a record that is durable.
    pub(crate) fn publish(&self, record: &Arc<TaskRecord>) {
        if let Some(slot) = self.lock().by_task.get(&record.task) {
            slot.send_replace(Some(Arc::clone(record)));
        }
    }

    fn unsubscribe(&self, task: TaskId) {
        let mut slots = self.lock();
        slots.watcher_count -= 1;
        // The leaving receiver still counts here, so one means that nobody else is left.
        if slots
            .by_task
            .get(&task)
            .is_some_and(|slot| slot.receiver_count() <= 1)
        {
            slots.by_task.remove(&task);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, WatchChannels> {
        // A panic while the map was held leaves it whole: every change is one insert or remove.
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One watcher's place in one task. Dropping it frees the place.
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
    /// Revisions `from..=to` are no longer in the timeline and will not come, but for what operators did.
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

    /// Waits for the next step. Safe in `select!`: nothing is taken before it resolves.
    pub async fn next(&mut self) -> WatchUpdate {
        loop {
            // The sender lives in the map as long as this receiver holds its place there.
            let _ = self.records.changed().await;
            let newest = self.records.borrow_and_update().clone();
            if let Some(step) = newest.and_then(|record| self.advance(&record)) {
                return step;
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

    fn revisions(step: &WatchUpdate) -> Vec<u64> {
        step.events.iter().map(|event| event.revision).collect()
    }

    #[tokio::test]
    async fn history_then_live_without_a_gap_or_a_duplicate() {
        let watchers = TaskWatchers::default();
        let mut tail = watchers.subscribe(TaskId(Uuid::from_u128(1)), 1).unwrap();
        // Published between subscribing and reading: seen once.
        watchers.publish(&record(1, 3));
        assert_eq!(revisions(&tail.advance(&record(1, 3)).unwrap()), [2, 3]);
        watchers.publish(&record(1, 4));
        watchers.publish(&record(1, 6));
        let step = tail.next().await;
        assert_eq!((revisions(&step), step.missed), (vec![4, 5, 6], None));
    }

    #[tokio::test]
    async fn a_slow_watcher_is_told_what_it_missed() {
        let watchers = TaskWatchers::default();
        let mut tail = watchers.subscribe(TaskId(Uuid::from_u128(1)), 2).unwrap();
        watchers.publish(&record(10, 12));
        let step = tail.next().await;
        assert_eq!(
            (revisions(&step), step.missed),
            (vec![10, 11, 12], Some((3, 9)))
        );
    }

    #[test]
    fn places_come_back_when_watchers_leave() {
        let watchers = TaskWatchers::default();
        let task = TaskId(Uuid::from_u128(1));
        let tails: Vec<TaskSubscription> = (0..WATCHERS_MAX)
            .map(|_| watchers.subscribe(task, 0).unwrap())
            .collect();
        assert_eq!(watchers.subscribe(task, 0).err(), Some(TooManyWatchers));
        drop(tails);
        assert!(watchers.lock().by_task.is_empty());
        assert!(watchers.subscribe(task, 0).is_ok());
    }
}
