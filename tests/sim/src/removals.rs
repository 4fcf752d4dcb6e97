//! What retention may take: tasks that are over and of which nothing can still be said, daemons of which nothing must be known;
//! and that no daemon is drained, or taken up again, without a word about who did it.

use baton_core::effects::Write;
use baton_core::id::{DaemonId, TaskId};
use baton_core::record::DaemonRecord;

use crate::world::World;

impl World {
    /// All that one input removes, before it is gone.
    pub(crate) fn check_removals(&mut self, writes: &[Write]) {
        let by_word = writes.iter().any(|w| matches!(w, Write::PutForgotten(_)));
        let audited = writes
            .iter()
            .any(|w| matches!(w, Write::PutDaemonChanges(_)));
        for write in writes {
            match write {
                Write::PutDaemon(record) => self.drain_is_on_record(record, audited),
                Write::RemoveTask { task, .. } => self.task_removed(*task),
                Write::DropDaemon(record) => self.daemon_forgotten(record, by_word),
                Write::PutSpec { .. }
                | Write::PutLive(_)
                | Write::PutDone(_)
                | Write::Reopen(_)
                | Write::PutIdempotency { .. }
                | Write::PutScheduler(_)
                | Write::PutForgotten(_)
                | Write::PutDaemonChanges(_)
                | Write::PutProgress(_)
                | Write::PutCheckpoint(_)
                | Write::DropCheckpoint { .. }
                | Write::PutPauses(_)
                | Write::PutFence(_)
                | Write::DropFence(_) => {}
            }
        }
    }

    fn task_removed(&self, task: TaskId) {
        let view = &self.relay.store.view;
        let fence = view.fences.values().find(|fence| fence.task == task);
        assert!(
            fence.is_none(),
            "retention: {task} is gone before {fence:?}"
        );
        let awaited = view.record(task).and_then(|record| self.awaited(record));
        assert!(
            awaited.is_none(),
            "retention: {task} is gone and {awaited:?} may still be adopted"
        );
    }

    fn drain_is_on_record(&self, record: &DaemonRecord, audited: bool) {
        let known = self.relay.store.view.daemons.get(&record.daemon);
        let was = known.is_some_and(|known| known.drained.is_some());
        assert!(
            was == record.drained.is_some() || audited,
            "audit: the drain of {} is not on record",
            record.name
        );
    }

    fn daemon_forgotten(&mut self, record: &DaemonRecord, by_word: bool) {
        let known = self.relay.store.view.daemons.get(&record.daemon);
        let drained = known.is_some_and(|known| known.drained.is_some()) && !by_word;
        assert!(
            !drained,
            "retention: {} is gone with its drain",
            record.name
        );
        self.forget_streams(record.daemon);
    }

    /// The order of its streams is forgotten with a daemon; it holds nothing that an old stream could speak of.
    fn forget_streams(&mut self, daemon: DaemonId) {
        for conn in &mut self.conns {
            let own = self.daemons[conn.daemon].id == daemon;
            conn.welcomed &= !own;
        }
    }
}
