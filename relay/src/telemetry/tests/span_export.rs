//! Tests of the span export: it is bounded and does not delay the dispatcher.

use std::sync::Mutex;
use std::time::Duration;

use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio_util::sync::CancellationToken;

use super::super::{CounterKey, Telemetry};
use super::*;
use crate::clock::RelayClock;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);
/// One root, two attempts, fifteen stages, tool calls and waits.
const SPANS: usize = 18;

/// An exporter that accepts spans once `open` is cancelled.
#[derive(Clone, Debug, Default)]
struct GatedExporter {
    open: CancellationToken,
    spans: Arc<Mutex<Vec<SpanData>>>,
}

impl SpanExporter for GatedExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.open.cancelled().await;
        self.spans.lock().unwrap().extend(batch);
        Ok(())
    }
}

fn publish(telemetry: &Telemetry) {
    let record = Arc::new(record());
    telemetry.record_published(&spec(), &record, &record.timeline.events);
}

fn value(telemetry: &Telemetry, name: &'static str, reason: &'static str) -> u64 {
    let counter = CounterKey { name, reason };
    telemetry.snapshot().get(&counter).copied().unwrap_or(0)
}

#[tokio::test]
async fn finishing_sends_everything_that_was_published() {
    let exporter = GatedExporter::default();
    exporter.open.cancel();
    let telemetry = Telemetry::with_exporter(exporter.clone(), &RelayClock::system());
    for _ in 0..100 {
        publish(&telemetry);
    }
    telemetry.finish(TEST_TIMEOUT).await;
    assert_eq!(exporter.spans.lock().unwrap().len(), 100 * SPANS);
    assert_eq!(value(&telemetry, "spans_exported", ""), 100 * SPANS as u64);
}

#[tokio::test]
async fn a_stuck_collector_loses_spans_and_delays_neither_dispatch_nor_stop() {
    let exporter = GatedExporter::default();
    let telemetry = Telemetry::with_exporter(exporter.clone(), &RelayClock::system());
    // The export task cannot run before this test awaits, so only the channel takes records.
    for _ in 0..super::super::RECORD_QUEUE + 7 {
        publish(&telemetry);
    }
    assert_eq!(value(&telemetry, "spans_dropped", "record"), 7);

    let overflow = async {
        while value(&telemetry, "spans_dropped", "queue_full") == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, overflow)
        .await
        .expect("the queue of spans is bounded");

    telemetry.finish(Duration::from_millis(10)).await;
    assert_eq!(value(&telemetry, "spans_exported", ""), 0);
}

#[tokio::test]
async fn without_a_collector_only_unusual_events_are_counted() {
    let telemetry = Telemetry::default();
    publish(&telemetry);
    telemetry.add_counts(&[
        baton_core::io::effects::CoreMetric::UnknownFrame,
        baton_core::io::effects::CoreMetric::FrameRejected(
            baton_core::io::rejection::Rejection::Gap,
        ),
        baton_core::io::effects::CoreMetric::FrameRejected(
            baton_core::io::rejection::Rejection::Gap,
        ),
    ]);
    assert_eq!(value(&telemetry, "frames_rejected", "gap"), 2);
    assert_eq!(value(&telemetry, "unknown_frames", ""), 1);
    let counted = telemetry.snapshot();
    assert_eq!(counted.values().filter(|count| **count > 0).count(), 2);
    telemetry.finish(TEST_TIMEOUT).await;
}
