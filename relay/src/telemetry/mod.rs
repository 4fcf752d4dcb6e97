//! What operators see of the relay's work: counters of odd things, and one trace per task.
//!
//! Spans are built from durable records only, after their commit, so that a restart loses no trace. The dispatcher
//! hands a record over and goes on: it never waits for a collector, and pays nothing when there is none.

mod collector;
mod counters;
mod due;
mod export;
mod happenings;
mod names;
mod spans;
mod stages;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton_core::effects::Count;
use baton_core::record::{TaskRecord, TimelineEvent};
use baton_core::spec::TaskSpec;
use baton_core::time::Wall;
use opentelemetry_sdk::trace::SpanExporter;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

pub use collector::TelemetryError;
pub use counters::Counter;

use collector::Collector;
use counters::Counters;
use due::Due;
use export::Worker;

use crate::clock::Clock;
use crate::look_ups::LookUps;

/// Records on their way to the export task, which takes them as quickly as it can build spans. Full: the record's
/// spans are dropped and counted, since the dispatcher may not wait.
const RECORDS: usize = 4_096;

/// Where the dispatcher reports. Clones share it. The default one counts and exports nothing.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    counters: Arc<Counters>,
    look_ups: LookUps,
    export: Option<Arc<Export>>,
}

#[derive(Debug)]
struct Export {
    due: mpsc::Sender<Due>,
    began: Wall,
    finish: CancellationToken,
    finished: CancellationToken,
    worker: AbortHandle,
}

impl Telemetry {
    /// Exports to `otlp`, or to what the OTEL_* variables name, or not at all. Needs a runtime around it.
    pub fn start(otlp: Option<&str>, clock: &Clock) -> Result<Self, TelemetryError> {
        match Collector::resolve(otlp, |name| std::env::var(name).ok())? {
            Some(collector) => {
                let exporter = collector.exporter()?;
                tracing::info!(endpoint = collector.endpoint, "exporting traces");
                Ok(Self::exporting(exporter, clock))
            }
            None => Ok(Self::default()),
        }
    }

    fn exporting(exporter: impl SpanExporter + 'static, clock: &Clock) -> Self {
        let counters = Arc::<Counters>::default();
        let (due, records) = mpsc::channel(RECORDS);
        let (finish, finished) = (CancellationToken::new(), CancellationToken::new());
        let worker = Worker::new(records, finish.clone(), counters.clone(), clock.clone());
        let done = finished.clone().drop_guard();
        let worker = tokio::spawn(async move {
            let _done = done;
            worker.run(exporter).await;
        });
        let export = Export {
            due,
            began: clock.now().wall,
            finish,
            finished,
            worker: worker.abort_handle(),
        };
        Self {
            counters,
            look_ups: LookUps::default(),
            export: Some(Arc::new(export)),
        }
    }

    /// Things that no record tells.
    pub(crate) fn count(&self, counts: &[Count]) {
        for count in counts {
            self.counters.count(count);
            tracing::debug!(?count, "counted");
        }
    }

    /// Stored records that cannot be read, each once.
    pub(crate) fn unreadable(&self, records: u64) {
        self.counters.add("unreadable_records", "", records);
    }

    /// A daemon sent a frame of a newer protocol.
    pub(crate) fn unknown_frame(&self) {
        self.counters.add("unknown_frames", "", 1);
    }

    /// A daemon sent a number that this version's enum does not have.
    pub(crate) fn unknown_value(&self, of: &'static str) {
        self.counters.add("unknown_values", of, 1);
    }

    /// Something that happened outside the core.
    pub(crate) fn add(&self, name: &'static str, reason: &'static str, amount: u64) {
        self.counters.add(name, reason, amount);
    }

    /// A task's record as it became durable, with the events that are new in it.
    pub(crate) fn published(
        &self,
        spec: &Arc<TaskSpec>,
        record: &Arc<TaskRecord>,
        events: &[Arc<TimelineEvent>],
    ) {
        for event in events {
            log(record, event);
        }
        let Some(export) = &self.export else {
            return;
        };
        if let Some(due) = Due::of(spec, record, events, export.began)
            && export.due.try_send(due).is_err()
        {
            self.counters.add(export::DROPPED, "record", 1);
        }
    }

    /// What was counted since this process began.
    pub fn snapshot(&self) -> BTreeMap<Counter, u64> {
        let mut counted = self.counters.snapshot();
        let name = "look_ups";
        let looked = self.look_ups.counted();
        counted.extend(looked.map(|(reason, value)| (Counter { name, reason }, value)));
        counted
    }

    /// Counts what clients' calls look up: too often for a lock.
    pub(crate) fn look_ups(&self) -> &LookUps {
        &self.look_ups
    }

    /// Sends what waits, for at most `within`. Call it once the dispatcher has ended: later records are not sent.
    pub async fn finish(&self, within: Duration) {
        let Some(export) = &self.export else {
            return;
        };
        export.finish.cancel();
        if tokio::time::timeout(within, export.finished.cancelled())
            .await
            .is_err()
        {
            export.worker.abort();
            tracing::warn!("the collector did not take all spans in time; the rest is lost");
        }
    }
}

fn log(record: &TaskRecord, event: &TimelineEvent) {
    tracing::debug!(
        task_id = %record.task,
        attempt_id = event.attempt.map(tracing::field::display),
        tenant = %record.tenant,
        revision = event.revision,
        event = event.kind.as_str(),
        attempt_state = event.state.map(|state| state.as_str()),
        task_state = event.task_state.as_str(),
        "task event"
    );
}
