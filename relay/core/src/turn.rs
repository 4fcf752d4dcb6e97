//! One turn of the core: its time, its fresh ids, the settings, and what comes out.

use std::sync::Arc;

use crate::config::Config;
use crate::ids::SessionId;
use crate::io::effects::{
    CommitDependency, DaemonMessage, Delivery, Effects, GatedDelivery, RecordChange,
};
use crate::record::{TaskRecord, TimelineEvent};
use crate::task::spec::TaskSpec;
use crate::time::{ClockReading, IdSource};

/// Passed to everything that decides; it holds no state of its own between two turns.
#[expect(missing_debug_implementations, reason = "lives for one turn only")]
pub struct CoreTurn<'a> {
    pub(crate) now: ClockReading,
    /// How long the relay has run, earlier runs included.
    pub(crate) uptime_ms: u64,
    pub(crate) config: &'a Config,
    pub(crate) id_source: &'a mut dyn IdSource,
    pub(crate) effects: Effects,
}

impl<'a> CoreTurn<'a> {
    pub(crate) fn new(
        now: ClockReading,
        uptime_ms: u64,
        config: &'a Config,
        id_source: &'a mut dyn IdSource,
    ) -> Self {
        Self {
            now,
            uptime_ms,
            config,
            id_source,
            effects: Effects::default(),
        }
    }

    pub(crate) fn push_delivery(&mut self, after: CommitDependency, send: Delivery) {
        self.effects.deliveries.push(GatedDelivery {
            depends_on: after,
            delivery: send,
        });
    }

    pub(crate) fn send_to_session(
        &mut self,
        after: CommitDependency,
        session: SessionId,
        message: DaemonMessage,
    ) {
        self.push_delivery(after, Delivery::ToSession { session, message });
    }

    pub(crate) fn push_change(&mut self, write: RecordChange) {
        self.effects.changes.push(write);
    }

    pub(crate) fn publish_events(
        &mut self,
        record: Arc<TaskRecord>,
        spec: Arc<TaskSpec>,
        events: Vec<Arc<TimelineEvent>>,
    ) {
        if !events.is_empty() {
            let after = CommitDependency::Task(record.task);
            self.push_delivery(
                after.unless_broken(mutant!(PublishBeforePersist)),
                Delivery::Published {
                    record,
                    spec,
                    events,
                },
            );
        }
    }
}
