//! Retention may remove only tasks that have ended and can no longer change, and daemons that
//! are no longer needed. Also: every drain and its end is recorded with its operator.

use baton_core::ids::{DaemonId, TaskId};
use baton_core::io::effects::RecordChange;
use baton_core::record::DaemonRecord;

use crate::simulation::Simulation;

impl Simulation {
    /// All removals of one input, before they take effect.
    pub(crate) fn check_removals(&mut self, writes: &[RecordChange]) {
        let by_word = writes
            .iter()
            .any(|w| matches!(w, RecordChange::PutForgotten(_)));
        let audited = writes
            .iter()
            .any(|w| matches!(w, RecordChange::PutDaemonChanges(_)));
        for write in writes {
            match write {
                RecordChange::PutDaemon(record) => self.check_drain_audit(record, audited),
                RecordChange::RemoveTask { task, .. } => self.check_task_removal(*task),
                RecordChange::DropDaemon(record) => self.check_daemon_removal(record, by_word),
                RecordChange::PutSpec { .. }
                | RecordChange::PutLive(_)
                | RecordChange::PutDone(_)
                | RecordChange::Reopen(_)
                | RecordChange::PutIdempotency { .. }
                | RecordChange::PutScheduler(_)
                | RecordChange::PutForgotten(_)
                | RecordChange::PutDaemonChanges(_)
                | RecordChange::PutProgress(_)
                | RecordChange::PutCheckpoint(_)
                | RecordChange::DropCheckpoint { .. }
                | RecordChange::PutPauses(_)
                | RecordChange::PutFence(_)
                | RecordChange::DropFence(_) => {}
            }
        }
    }

    fn check_task_removal(&self, task: TaskId) {
        let view = &self.relay.store.view;
        let fence = view.fences.values().find(|fence| fence.task == task);
        assert!(
            fence.is_none(),
            "retention: {task} is gone before {fence:?}"
        );
        let awaited = view
            .record(task)
            .and_then(|record| self.adoptable_attempt(record));
        assert!(
            awaited.is_none(),
            "retention: {task} is gone and {awaited:?} may still be adopted"
        );
    }

    fn check_drain_audit(&self, record: &DaemonRecord, audited: bool) {
        let known = self.relay.store.view.daemons.get(&record.daemon);
        let was = known.is_some_and(|known| known.drained.is_some());
        assert!(
            was == record.drained.is_some() || audited,
            "audit: the drain of {} is not on record",
            record.name
        );
    }

    fn check_daemon_removal(&mut self, record: &DaemonRecord, by_word: bool) {
        let known = self.relay.store.view.daemons.get(&record.daemon);
        let drained = known.is_some_and(|known| known.drained.is_some()) && !by_word;
        assert!(
            !drained,
            "retention: {} is gone with its drain",
            record.name
        );
        self.forget_stream_order(record.daemon);
    }

    /// The order of its streams is removed with a daemon; it has no attempt that an old stream
    /// could refer to.
    fn forget_stream_order(&mut self, daemon: DaemonId) {
        for conn in &mut self.streams {
            let own = self.daemons[conn.daemon].id == daemon;
            conn.was_current &= !own;
        }
    }
}
