//! Decides which spans a newly durable record completes. It uses only the record, so that a
//! restart loses no span.

use std::sync::Arc;

use baton_core::ids::AttemptId;
use baton_core::record::{TaskRecord, TimelineEvent, TimelineEventKind};
use baton_core::task::spec::TaskSpec;
use baton_core::time::WallTime;
use opentelemetry::InstrumentationScope;
use opentelemetry_sdk::trace::SpanData;

use super::spans::TaskTrace;

/// Spans that are complete but not yet built.
#[derive(Debug)]
pub(super) struct DueSpans {
    spec: Arc<TaskSpec>,
    record: Arc<TaskRecord>,
    attempts: Vec<AttemptId>,
    task: bool,
}

impl DueSpans {
    /// `began` is the start of this process. The spans of attempts that ended earlier may have
    /// been lost with the previous process, so they are sent again with the span of the task.
    pub(super) fn from_record(
        spec: &Arc<TaskSpec>,
        record: &Arc<TaskRecord>,
        events: &[Arc<TimelineEvent>],
        began: WallTime,
    ) -> Option<Self> {
        if !record.trace.sampled {
            return None;
        }
        let mut attempts: Vec<AttemptId> = ended_attempts(events).collect();
        let task = task_ended(record, events);
        if task {
            let earlier = ended_before(record, began);
            attempts.extend(earlier.filter(|id| !ended_attempts(events).any(|new| new == *id)));
        }
        (task || !attempts.is_empty()).then(|| Self {
            spec: spec.clone(),
            record: record.clone(),
            attempts,
            task,
        })
    }

    pub(super) fn build_spans(&self, scope: &InstrumentationScope, spans: &mut Vec<SpanData>) {
        let trace = TaskTrace {
            spec: &self.spec,
            record: &self.record,
            scope,
        };
        for attempt in &self.attempts {
            trace.attempt(*attempt, spans);
        }
        if self.task {
            spans.push(trace.task());
        }
    }
}

fn ended_attempts(events: &[Arc<TimelineEvent>]) -> impl Iterator<Item = AttemptId> {
    events
        .iter()
        .filter(|event| is_attempt_end(&event.kind))
        .filter_map(|event| event.attempt)
}

/// Whether the event ends an attempt. An adopted late result is a second end, which replaces
/// the first.
fn is_attempt_end(kind: &TimelineEventKind) -> bool {
    matches!(
        kind,
        TimelineEventKind::Ended { .. } | TimelineEventKind::AdoptedLate
    )
}

/// Whether these events ended the task, or replaced its earlier end.
fn task_ended(record: &TaskRecord, events: &[Arc<TimelineEvent>]) -> bool {
    let Some(first) = events.first() else {
        return false;
    };
    let mut newest_first = record.timeline.events.iter().rev();
    let before = newest_first.find(|event| event.revision < first.revision);
    let was_terminal = before.is_some_and(|event| event.task_state.is_terminal());
    let adopted = events
        .iter()
        .any(|event| event.kind == TimelineEventKind::AdoptedLate);
    record.state.is_terminal() && (!was_terminal || adopted)
}

fn ended_before(record: &TaskRecord, began: WallTime) -> impl Iterator<Item = AttemptId> {
    let is_earlier = move |ended: WallTime| ended < began;
    let ended = record.attempts.iter();
    let ended = ended.filter(move |attempt| attempt.stage_times.ended.is_some_and(is_earlier));
    ended.map(|attempt| attempt.id)
}
