//! Telemetry of the relay: counters of unusual events, and one trace per task.
//!
//! Spans are built only from durable records, after their commit, so that a restart loses no
//! trace. The dispatcher hands a record over and goes on. It never waits for a collector, and
//! there is no cost without one.

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

/// Size of the queue of records to the export task. When it is full, the spans of a record are
/// dropped and counted, because the dispatcher must not wait.
const RECORD_QUEUE: usize = 4_096;

/// Receives the reports of the dispatcher. Clones share it. The default one counts, and exports
/// nothing.
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
    /// Exports to `otlp`, or to the collector of the OTEL_* variables, or not at all. Must be
    /// called in a tokio runtime.
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

    /// Counts core events that are not visible in any record.
    pub(crate) fn add_counts(&self, counts: &[CoreMetric]) {
        for count in counts {
            self.counters.add_count(count);
            tracing::debug!(?count, "counted");
        }
    }

    /// Counts stored records that cannot be read. Each record is counted once.
    pub(crate) fn count_unreadable(&self, records: u64) {
        self.counters.add("unreadable_records", "", records);
    }

    /// Counts a frame of a newer protocol.
    pub(crate) fn count_unknown_frame(&self) {
        self.counters.add("unknown_frames", "", 1);
    }

    /// Counts a number from a daemon that this version's enum does not have.
    pub(crate) fn count_unknown_value(&self, of: &'static str) {
        self.counters.add("unknown_values", of, 1);
    }

    /// Counts an event outside the core.
    pub(crate) fn add(&self, name: &'static str, reason: &'static str, amount: u64) {
        self.counters.add(name, reason, amount);
    }

    /// Reports a task record that became durable, with its new events.
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

    /// All counters since the start of this process.
    pub fn snapshot(&self) -> BTreeMap<CounterKey, u64> {
        let mut counted = self.counters.snapshot();
        let name = "look_ups";
        let lookups = self.lookups.totals();
        counted.extend(lookups.map(|(reason, value)| (CounterKey { name, reason }, value)));
        counted
    }

    /// Counts lookups of client calls. They are too frequent for the lock of the other
    /// counters.
    pub(crate) fn lookups(&self) -> &LookupCounter {
        &self.lookups
    }

    /// Sends the queued spans, for at most `within`. Call it after the dispatcher has ended:
    /// later records are not sent.
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
            tracing::warn!(
                "the OTLP collector did not accept all spans before the stop; the rest are lost"
            );
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
