//! Selects the timeline events that appear in spans: decisions and unusual events. Ordinary
//! progress is visible as stages.

use baton_core::record::{
    AttemptRecord, LifecyclePhase, TaskRecord, TimelineEvent, TimelineEventKind,
};
use opentelemetry::KeyValue;
use opentelemetry::trace::Event;

use super::span_names;
use super::spans::{number_attribute, system_time};

/// The spans in which an event appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpanEventTarget {
    Task,
    Attempt,
    Both,
    Nowhere,
}

pub(super) fn task_events(record: &TaskRecord) -> Vec<Event> {
    let shown = |event: &&TimelineEvent| {
        matches!(
            target(&event.kind),
            SpanEventTarget::Task | SpanEventTarget::Both
        )
    };
    events(record).filter(shown).map(span_event).collect()
}

pub(super) fn attempt_events(record: &TaskRecord, attempt: &AttemptRecord) -> Vec<Event> {
    let shown = |event: &&TimelineEvent| {
        event.attempt == Some(attempt.id)
            && matches!(
                target(&event.kind),
                SpanEventTarget::Attempt | SpanEventTarget::Both
            )
    };
    events(record).filter(shown).map(span_event).collect()
}

fn events(record: &TaskRecord) -> impl Iterator<Item = &TimelineEvent> {
    record.timeline.events.iter().map(AsRef::as_ref)
}

fn target(kind: &TimelineEventKind) -> SpanEventTarget {
    match kind {
        TimelineEventKind::CancelRequested | TimelineEventKind::CancelDelivered | TimelineEventKind::CancelConfirmed => {
            SpanEventTarget::Both
        }
        TimelineEventKind::DeadlineExpired { .. }
        | TimelineEventKind::Rejected { .. }
        | TimelineEventKind::CompletionRefused { .. }
        | TimelineEventKind::PhaseRegression(_)
        | TimelineEventKind::Phase(LifecyclePhase::FirstVisibleEventSeen) => SpanEventTarget::Attempt,
        TimelineEventKind::RetryScheduled { .. }
        | TimelineEventKind::RetryStopped
        | TimelineEventKind::ResumeFallback
        | TimelineEventKind::RetryAsked
        | TimelineEventKind::Attention(_)
        | TimelineEventKind::Resumed { .. }
        | TimelineEventKind::PickedUp { .. }
        | TimelineEventKind::Paused
        | TimelineEventKind::Unpaused
        | TimelineEventKind::LateTerminal
        | TimelineEventKind::Forced(_)
        | TimelineEventKind::AdoptedLate => SpanEventTarget::Task,
        TimelineEventKind::Checkpoint { .. } => SpanEventTarget::Both,
        TimelineEventKind::Submitted
        | TimelineEventKind::Queued
        | TimelineEventKind::Offered { .. }
        | TimelineEventKind::Confirmed
        | TimelineEventKind::Phase(_)
        | TimelineEventKind::ToolStarted { .. }
        | TimelineEventKind::ToolFinished { .. }
        | TimelineEventKind::InputAsked { .. }
        | TimelineEventKind::InputAnswered { .. }
        | TimelineEventKind::InputReceived { .. }
        | TimelineEventKind::InputClosed { .. }
        | TimelineEventKind::Ended { .. }
        // There may be hundreds of progress events, and the newest is part of the task.
        | TimelineEventKind::Progress
        | TimelineEventKind::ReceiptArrived => SpanEventTarget::Nowhere,
    }
}

fn span_event(event: &TimelineEvent) -> Event {
    let name = format!("baton.{}", event.kind.as_str());
    let attribute = match &event.kind {
        TimelineEventKind::DeadlineExpired { timer } => {
            Some(KeyValue::new(span_names::DEADLINE, timer.as_str()))
        }
        TimelineEventKind::Rejected { code } => {
            Some(KeyValue::new(span_names::REJECT_CODE, code.clone()))
        }
        TimelineEventKind::Attention(cause) => {
            Some(KeyValue::new(span_names::ATTENTION_CAUSE, cause.as_str()))
        }
        TimelineEventKind::Checkpoint { id } => {
            Some(KeyValue::new(span_names::CHECKPOINT_ID, id.to_string()))
        }
        TimelineEventKind::Forced(audit) => Some(KeyValue::new(
            span_names::OPERATION,
            audit.operation.as_str(),
        )),
        TimelineEventKind::RetryScheduled { after_ms } => {
            Some(number_attribute(span_names::RETRY_AFTER_MS, *after_ms))
        }
        TimelineEventKind::CancelRequested
        | TimelineEventKind::CancelDelivered
        | TimelineEventKind::CancelConfirmed
        | TimelineEventKind::RetryStopped
        | TimelineEventKind::ResumeFallback
        | TimelineEventKind::RetryAsked
        | TimelineEventKind::Paused
        | TimelineEventKind::Unpaused
        | TimelineEventKind::LateTerminal
        | TimelineEventKind::AdoptedLate
        | TimelineEventKind::CompletionRefused { .. }
        | TimelineEventKind::Submitted
        | TimelineEventKind::Queued
        | TimelineEventKind::Offered { .. }
        | TimelineEventKind::Confirmed
        | TimelineEventKind::Phase(_)
        | TimelineEventKind::ToolStarted { .. }
        | TimelineEventKind::ToolFinished { .. }
        | TimelineEventKind::InputAsked { .. }
        | TimelineEventKind::InputAnswered { .. }
        | TimelineEventKind::InputReceived { .. }
        | TimelineEventKind::InputClosed { .. }
        | TimelineEventKind::Ended { .. }
        | TimelineEventKind::Progress
        | TimelineEventKind::Resumed { .. }
        | TimelineEventKind::PickedUp { .. }
        | TimelineEventKind::PhaseRegression(_)
        | TimelineEventKind::ReceiptArrived => None,
    };
    Event::new(
        name,
        system_time(event.at),
        attribute.into_iter().collect(),
        0,
    )
}
