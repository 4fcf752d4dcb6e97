//! What operators see of the relay's work: counters of odd things, and one trace per task.

use std::sync::Arc;

use baton_core::effects::Count;
use baton_core::record::{TaskRecord, TimelineEvent};
use baton_core::spec::TaskSpec;

/// Where the dispatcher reports. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {}

impl Telemetry {
    /// Things that no record tells.
    pub(crate) fn count(&self, counts: &[Count]) {
        for count in counts {
            tracing::debug!(?count, "counted");
        }
    }

    /// A task's record as it became durable, with the events that are new in it.
    pub(crate) fn published(
        &self,
        _spec: &Arc<TaskSpec>,
        record: &Arc<TaskRecord>,
        events: &[Arc<TimelineEvent>],
    ) {
        for event in events {
            tracing::debug!(task_id = %record.task, revision = event.revision, kind = event.kind.as_str(), "task event");
        }
    }
}
