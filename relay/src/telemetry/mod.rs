//! What operators see of the relay's work: counters of odd things, and one trace per task.
//!
//! Spans are built from durable records only, after their commit, so that a restart loses no trace. The dispatcher
//! hands a record over and goes on: it never waits for a collector, and pays nothing when there is none.

mod attempt_stages;
mod collector;
mod counters;
mod due_spans;
mod span_events;
mod span_export;
mod span_names;
mod spans;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton_core::io::effects::CoreMetric;
use baton_core::record::{TaskRecord, TimelineEvent};
use baton_core::task::spec::TaskSpec;
use baton_core::time::WallTime;
use opentelemetry_sdk::trace::SpanExporter;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

pub use collector::TelemetryError;
pub use counters::CounterKey;

use collector::OtlpCollector;
use counters::CounterTable;
use due_spans::DueSpans;
use span_export::SpanExportWorker;

use crate::clock::RelayClock;
use crate::lookup_counter::LookupCounter;

/// Records on their way to the export task, which takes them as quickly as it can build spans. Full: the record's
/// spans are dropped and counted, since the dispatcher may not wait.
const RECORD_QUEUE: usize = 4_096;

/// Where the dispatcher reports. Clones share it. The default one counts and exports nothing.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    counters: Arc<CounterTable>,
    lookups: LookupCounter,
    export: Option<Arc<SpanExport>>,
}

#[derive(Debug)]
struct SpanExport {
    due: mpsc::Sender<DueSpans>,
    started_at: WallTime,
    finish: CancellationToken,
    finished: CancellationToken,
    worker: AbortHandle,
}

impl Telemetry {
    /// Exports to `otlp`, or to what the OTEL_* variables name, or not at all. Needs a runtime around it.
    pub fn start(otlp: Option<&str>, clock: &RelayClock) -> Result<Self, TelemetryError> {
        match OtlpCollector::resolve(otlp, |name| std::env::var(name).ok())? {
            Some(collector) => {
                let exporter = collector.exporter()?;
                tracing::info!(endpoint = collector.endpoint, "exporting traces");
                Ok(Self::with_exporter(exporter, clock))
            }
            None => Ok(Self::default()),
        }
    }

    fn with_exporter(exporter: impl SpanExporter + 'static, clock: &RelayClock) -> Self {
        let counters = Arc::<CounterTable>::default();
        let (due, records) = mpsc::channel(RECORD_QUEUE);
        let (finish, finished) = (CancellationToken::new(), CancellationToken::new());
        let worker =
            SpanExportWorker::new(records, finish.clone(), counters.clone(), clock.clone());
        let done = finished.clone().drop_guard();
        let worker = tokio::spawn(async move {
            let _done = done;
            worker.run(exporter).await;
        });
        let export = SpanExport {
            due,
            started_at: clock.now().wall,
            finish,
            finished,
            worker: worker.abort_handle(),
        };
        Self {
            counters,
            lookups: LookupCounter::default(),
            export: Some(Arc::new(export)),
        }
    }

    /// Things that no record tells.
    pub(crate) fn add_counts(&self, counts: &[CoreMetric]) {
        for count in counts {
            self.counters.add_count(count);
            tracing::debug!(?count, "counted");
        }
    }

    /// Stored records that cannot be read, each once.
    pub(crate) fn count_unreadable(&self, records: u64) {
        self.counters.add("unreadable_records", "", records);
    }

    /// A daemon sent a frame of a newer protocol.
    pub(crate) fn count_unknown_frame(&self) {
        self.counters.add("unknown_frames", "", 1);
    }

    /// A daemon sent a number that this version's enum does not have.
    pub(crate) fn count_unknown_value(&self, of: &'static str) {
        self.counters.add("unknown_values", of, 1);
    }

    /// Something that happened outside the core.
    pub(crate) fn add(&self, name: &'static str, reason: &'static str, amount: u64) {
        self.counters.add(name, reason, amount);
    }

    /// A task's record as it became durable, with the events that are new in it.
    pub(crate) fn record_published(
        &self,
        spec: &Arc<TaskSpec>,
        record: &Arc<TaskRecord>,
        events: &[Arc<TimelineEvent>],
    ) {
        for event in events {
            log_event(record, event);
        }
        let Some(export) = &self.export else {
            return;
        };
        if let Some(due) = DueSpans::from_record(spec, record, events, export.started_at)
            && export.due.try_send(due).is_err()
        {
            self.counters.add(span_export::DROPPED, "record", 1);
        }
    }

    /// What was counted since this process began.
    pub fn snapshot(&self) -> BTreeMap<CounterKey, u64> {
        let mut counted = self.counters.snapshot();
        let name = "look_ups";
        let looked = self.lookups.totals();
        counted.extend(looked.map(|(reason, value)| (CounterKey { name, reason }, value)));
        counted
    }

    /// Counts what clients' calls look up: too often for a lock.
    pub(crate) fn lookups(&self) -> &LookupCounter {
        &self.lookups
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

fn log_event(record: &TaskRecord, event: &TimelineEvent) {
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
