//! The background task that builds spans from finished records and sends them. It never delays
//! the dispatcher.
//!
//! Its memory is bounded: spans that do not fit are dropped, counted and logged at most once a
//! minute. A batch is sent as soon as the previous one is through, so a fast collector gets
//! small batches and a slow one gets large batches.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use baton_core::time::MonotonicTime;
use opentelemetry::InstrumentationScope;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::counters::CounterTable;
use super::due_spans::DueSpans;
use super::span_names;
use crate::clock::RelayClock;

/// Spans of one request. They stay well below the 4 MiB that collectors accept by default.
const BATCH_SPANS: usize = 512;
/// Spans that wait for a slow or absent collector, some tens of MiB. The newest spans are
/// dropped when it is full.
const QUEUE_SPANS: usize = 16 * 1024;
const LOSS_LOG_INTERVAL_MS: u64 = 60_000;

pub(super) const EXPORTED: &str = "spans_exported";
pub(super) const DROPPED: &str = "spans_dropped";

type ExportFuture<'a> = Pin<Box<dyn Future<Output = OTelSdkResult> + Send + 'a>>;

/// State of the export task without the exporter.
#[derive(Debug)]
pub(super) struct SpanExportWorker {
    pub(super) due: mpsc::Receiver<DueSpans>,
    /// Cancelled when no more records follow. The task then sends the queued spans and ends.
    pub(super) finish: CancellationToken,
    pub(super) counters: Arc<CounterTable>,
    pub(super) clock: RelayClock,
    pub(super) scope: InstrumentationScope,
    pub(super) queued: VecDeque<SpanData>,
    loss_notices: LossNotices,
}

impl SpanExportWorker {
    pub(super) fn new(
        due: mpsc::Receiver<DueSpans>,
        finish: CancellationToken,
        counters: Arc<CounterTable>,
        clock: RelayClock,
    ) -> Self {
        let scope = InstrumentationScope::builder(span_names::SCOPE);
        Self {
            due,
            finish,
            counters,
            clock,
            scope: scope.with_version(env!("CARGO_PKG_VERSION")).build(),
            queued: VecDeque::new(),
            loss_notices: LossNotices::default(),
        }
    }

    pub(super) async fn run(mut self, exporter: impl SpanExporter) {
        let mut sending: Option<(usize, ExportFuture<'_>)> = None;
        let (mut finishing, mut all_in) = (false, false);
        loop {
            if sending.is_none() {
                sending = self.next_batch().map(|batch| {
                    let spans = batch.len();
                    (spans, Box::pin(exporter.export(batch)) as ExportFuture<'_>)
                });
            }
            if all_in && sending.is_none() {
                return;
            }
            tokio::select! {
                biased;
                (spans, outcome) = wait_sent(&mut sending) => {
                    sending = None;
                    self.note_sent(spans, outcome);
                }
                () = self.finish.cancelled(), if !finishing => {
                    finishing = true;
                    self.due.close();
                }
                due = self.due.recv(), if !all_in => match due {
                    Some(due) => self.add_due(&due),
                    None => all_in = true,
                },
            }
        }
    }

    fn next_batch(&mut self) -> Option<Vec<SpanData>> {
        let batch = self.queued.len().min(BATCH_SPANS);
        (batch > 0).then(|| self.queued.drain(..batch).collect())
    }

    /// Builds the spans of a record. Records are taken even when the queue is full, so that
    /// they do not stay in memory while the collector is away.
    fn add_due(&mut self, due: &DueSpans) {
        let mut spans = Vec::new();
        due.build_spans(&self.scope, &mut spans);
        if self.queued.len() + spans.len() > QUEUE_SPANS {
            self.counters.add(DROPPED, "queue_full", spans.len() as u64);
            self.loss_notices
                .log_lost(&self.counters, &self.clock, "the collector is too slow");
        } else {
            self.queued.extend(spans);
        }
    }

    fn note_sent(&mut self, spans: usize, outcome: OTelSdkResult) {
        match outcome {
            Ok(()) => self.counters.add(EXPORTED, "", spans as u64),
            Err(error) => {
                self.counters.add(DROPPED, "not_sent", spans as u64);
                self.loss_notices
                    .log_lost(&self.counters, &self.clock, &error.to_string());
            }
        }
    }
}

async fn wait_sent(sending: &mut Option<(usize, ExportFuture<'_>)>) -> (usize, OTelSdkResult) {
    match sending {
        Some((spans, future)) => (*spans, future.as_mut().await),
        None => std::future::pending().await,
    }
}

/// Limits the log lines about lost spans while the collector is away.
#[derive(Debug, Default)]
struct LossNotices {
    last: Option<MonotonicTime>,
}

impl LossNotices {
    fn log_lost(&mut self, counters: &CounterTable, clock: &RelayClock, why: &str) {
        let now = clock.now().monotonic;
        if self
            .last
            .is_some_and(|last| now.since(last) < LOSS_LOG_INTERVAL_MS)
        {
            return;
        }
        self.last = Some(now);
        let dropped = counters.value(DROPPED);
        tracing::warn!(
            dropped,
            why,
            "spans were dropped; tasks are not affected; check the OTLP collector"
        );
    }
}
