//! A watcher of a task gets each of its events once and in order (S11), and all of them in the
//! end (L6). After the relay was down, it reads the record first.

use baton_core::ids::TaskId;
use baton_core::record::{TaskRecord, TimelineEvent};

use crate::simulation::Simulation;

impl Simulation {
    pub(crate) fn reset_watchers(&mut self) {
        self.close_recorded_watches();
        let durable = &self.relay.store.durable;
        let records = durable.live.values().chain(durable.done.values());
        self.watched_revisions = records.map(|r| (r.task, r.revision)).collect();
    }

    pub(crate) fn notify_watchers<'a>(
        &mut self,
        record: &TaskRecord,
        events: impl Iterator<Item = &'a TimelineEvent>,
    ) {
        for event in events {
            let (task, revision) = (record.task, event.revision);
            let seen = self
                .watched_revisions
                .get(&task)
                .copied()
                .unwrap_or_default();
            assert_eq!(revision, seen + 1, "S11: watchers of {task} miss a change");
            self.watched_revisions.insert(task, revision);
            self.record_watched_event(record, event, seen);
        }
    }

    /// At the end of the healing phase no watcher is behind.
    pub(crate) fn check_watchers_complete(&self) {
        let durable = &self.relay.store.durable;
        let behind = |record: &TaskRecord| {
            let seen = self
                .watched_revisions
                .get(&record.task)
                .copied()
                .unwrap_or_default();
            (seen != record.revision).then_some((record.task, seen, record.revision))
        };
        let mut records = durable.live.values().chain(durable.done.values());
        let missed: Option<(TaskId, u64, u64)> = records.find_map(|record| behind(record));
        assert!(missed.is_none(), "L6: watchers never saw {missed:?}");
    }
}
