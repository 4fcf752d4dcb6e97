//! Which timeline events appear inside spans: decisions and odd things. Ordinary progress is what stages show.

use baton_core::record::{AttemptRecord, EventKind, Phase, TaskRecord, TimelineEvent};
use opentelemetry::KeyValue;
use opentelemetry::trace::Event;

use super::names;
use super::spans::{number, time};

/// Whose span shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Task,
    Attempt,
    Both,
    Nowhere,
}

pub(super) fn of_task(record: &TaskRecord) -> Vec<Event> {
    let shown = |event: &&TimelineEvent| matches!(place(&event.kind), Place::Task | Place::Both);
    events(record).filter(shown).map(event).collect()
}

pub(super) fn of_attempt(record: &TaskRecord, attempt: &AttemptRecord) -> Vec<Event> {
    let shown = |event: &&TimelineEvent| {
        event.attempt == Some(attempt.id)
            && matches!(place(&event.kind), Place::Attempt | Place::Both)
    };
    events(record).filter(shown).map(event).collect()
}

fn events(record: &TaskRecord) -> impl Iterator<Item = &TimelineEvent> {
    record.timeline.events.iter().map(AsRef::as_ref)
}

fn place(kind: &EventKind) -> Place {
    match kind {
        EventKind::CancelRequested | EventKind::CancelDelivered | EventKind::CancelConfirmed => {
            Place::Both
        }
        EventKind::DeadlineExpired { .. }
        | EventKind::Rejected { .. }
        | EventKind::CompletionRefused { .. }
        | EventKind::PhaseRegression(_)
        | EventKind::Phase(Phase::FirstVisibleEventSeen) => Place::Attempt,
        EventKind::RetryScheduled { .. }
        | EventKind::RetryStopped
        | EventKind::ResumeFallback
        | EventKind::RetryAsked
        | EventKind::Attention(_)
        | EventKind::Resumed { .. }
        | EventKind::PickedUp { .. }
        | EventKind::Paused
        | EventKind::Unpaused
        | EventKind::LateTerminal
        | EventKind::Forced(_)
        | EventKind::AdoptedLate => Place::Task,
        EventKind::Checkpoint { .. } => Place::Both,
        EventKind::Submitted
        | EventKind::Queued
        | EventKind::Offered { .. }
        | EventKind::Confirmed
        | EventKind::Phase(_)
        | EventKind::ToolStarted { .. }
        | EventKind::ToolFinished { .. }
        | EventKind::InputAsked { .. }
        | EventKind::InputAnswered { .. }
        | EventKind::InputReceived { .. }
        | EventKind::InputClosed { .. }
        | EventKind::Ended { .. }
        // There may be hundreds of them, and the newest is on the task.
        | EventKind::Progress
        | EventKind::ReceiptArrived => Place::Nowhere,
    }
}

fn event(event: &TimelineEvent) -> Event {
    let name = format!("baton.{}", event.kind.as_str());
    let attribute = match &event.kind {
        EventKind::DeadlineExpired { timer } => {
            Some(KeyValue::new(names::DEADLINE, timer.as_str()))
        }
        EventKind::Rejected { code } => Some(KeyValue::new(names::REJECT_CODE, code.clone())),
        EventKind::Attention(cause) => Some(KeyValue::new(names::ATTENTION_CAUSE, cause.as_str())),
        EventKind::Checkpoint { id } => Some(KeyValue::new(names::CHECKPOINT_ID, id.to_string())),
        EventKind::Forced(audit) => Some(KeyValue::new(names::OPERATION, audit.operation.as_str())),
        EventKind::RetryScheduled { after_ms } => Some(number(names::RETRY_AFTER_MS, *after_ms)),
        EventKind::CancelRequested
        | EventKind::CancelDelivered
        | EventKind::CancelConfirmed
        | EventKind::RetryStopped
        | EventKind::ResumeFallback
        | EventKind::RetryAsked
        | EventKind::Paused
        | EventKind::Unpaused
        | EventKind::LateTerminal
        | EventKind::AdoptedLate
        | EventKind::CompletionRefused { .. }
        | EventKind::Submitted
        | EventKind::Queued
        | EventKind::Offered { .. }
        | EventKind::Confirmed
        | EventKind::Phase(_)
        | EventKind::ToolStarted { .. }
        | EventKind::ToolFinished { .. }
        | EventKind::InputAsked { .. }
        | EventKind::InputAnswered { .. }
        | EventKind::InputReceived { .. }
        | EventKind::InputClosed { .. }
        | EventKind::Ended { .. }
        | EventKind::Progress
        | EventKind::Resumed { .. }
        | EventKind::PickedUp { .. }
        | EventKind::PhaseRegression(_)
        | EventKind::ReceiptArrived => None,
    };
    Event::new(name, time(event.at), attribute.into_iter().collect(), 0)
}
