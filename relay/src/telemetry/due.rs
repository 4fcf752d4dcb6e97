//! Which spans a newly durable record makes complete. Decided from the record alone, so that a restart forgets nothing.

use std::sync::Arc;

use baton_core::id::AttemptId;
use baton_core::record::{EventKind, TaskRecord, TimelineEvent};
use baton_core::spec::TaskSpec;
use baton_core::time::Wall;
use opentelemetry::InstrumentationScope;
use opentelemetry_sdk::trace::SpanData;

use super::spans::Trace;

/// Spans that are complete and not yet built.
#[derive(Debug)]
pub(super) struct Due {
    spec: Arc<TaskSpec>,
    record: Arc<TaskRecord>,
    attempts: Vec<AttemptId>,
    task: bool,
}

impl Due {
    /// `began` is when this process did: what ended before it may have been lost with the process that ended it.
    pub(super) fn of(
        spec: &Arc<TaskSpec>,
        record: &Arc<TaskRecord>,
        events: &[Arc<TimelineEvent>],
        began: Wall,
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

    pub(super) fn build(&self, scope: &InstrumentationScope, spans: &mut Vec<SpanData>) {
        let trace = Trace {
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
        .filter(|event| ends(&event.kind))
        .filter_map(|event| event.attempt)
}

/// An adopted late result is a second end of the same attempt, and the one that counts.
fn ends(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Ended { .. } | EventKind::AdoptedLate)
}

/// It is over now and was not before these events, or is over in another way than before.
fn task_ended(record: &TaskRecord, events: &[Arc<TimelineEvent>]) -> bool {
    let Some(first) = events.first() else {
        return false;
    };
    let mut newest_first = record.timeline.events.iter().rev();
    let before = newest_first.find(|event| event.revision < first.revision);
    let was_over = before.is_some_and(|event| event.task_state.is_terminal());
    let adopted = events
        .iter()
        .any(|event| event.kind == EventKind::AdoptedLate);
    record.state.is_terminal() && (!was_over || adopted)
}

fn ended_before(record: &TaskRecord, began: Wall) -> impl Iterator<Item = AttemptId> {
    let early = move |ended: Wall| ended < began;
    let ended = record.attempts.iter();
    let ended = ended.filter(move |attempt| attempt.times.ended.is_some_and(early));
    ended.map(|attempt| attempt.id)
}
