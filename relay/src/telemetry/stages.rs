//! What is inside an attempt's span: its stages one after the other, its tool calls, its waits for a person.
//!
//! Stages come from the attempt's own times and have no gap between them; tool calls and waits come from the
//! timeline, which is bounded, so that a very long attempt shows only its newest ones.

use baton_core::record::{AttemptRecord, End, EventKind, InputKind, TimelineEvent};
use baton_core::time::Wall;
use opentelemetry::KeyValue;
use opentelemetry::trace::SpanKind;
use opentelemetry_sdk::trace::SpanData;
use sha2::{Digest, Sha256};

use super::names;
use super::spans::{Shape, Trace, status, text};

/// In order. Each lasts until the next one that began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waits for a daemon with a free slot.
    Queue,
    /// Offered; the daemon has not answered.
    Accept,
    /// From the daemon's yes to the agent's process.
    ProcessStart,
    PromptWrite,
    FirstEvent,
    Stream,
    Cleanup,
}

impl Stage {
    const ALL: [Stage; 7] = [
        Stage::Queue,
        Stage::Accept,
        Stage::ProcessStart,
        Stage::PromptWrite,
        Stage::FirstEvent,
        Stage::Stream,
        Stage::Cleanup,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Stage::Queue => "queue",
            Stage::Accept => "accept",
            Stage::ProcessStart => "process_start",
            Stage::PromptWrite => "prompt_write",
            Stage::FirstEvent => "first_event",
            Stage::Stream => "stream",
            Stage::Cleanup => "cleanup",
        }
    }

    fn span_name(self) -> &'static str {
        match self {
            Stage::Queue => "baton.queue",
            Stage::Accept => "baton.accept",
            Stage::ProcessStart => "baton.process_start",
            Stage::PromptWrite => "baton.prompt_write",
            Stage::FirstEvent => "baton.first_event",
            Stage::Stream => "baton.stream",
            Stage::Cleanup => "baton.cleanup",
        }
    }

    /// None for a stage that the attempt skipped or never came to.
    fn began(self, attempt: &AttemptRecord) -> Option<Wall> {
        let times = &attempt.times;
        match self {
            Stage::Queue => times.queued,
            Stage::Accept => times.offered,
            Stage::ProcessStart => times.accepted.or(times.started),
            Stage::PromptWrite => times.agent_started,
            Stage::FirstEvent => times.prompt_written,
            Stage::Stream => times.first_event.or(times.first_visible_event),
            Stage::Cleanup => times.cleanup_started,
        }
    }
}

pub(super) fn append(
    trace: &Trace<'_>,
    attempt: &AttemptRecord,
    end: &End,
    spans: &mut Vec<SpanData>,
) {
    append_stages(trace, attempt, end, spans);
    let events = &trace.record.timeline.events;
    let own = || {
        events
            .iter()
            .filter(|event| event.attempt == Some(attempt.id))
    };
    for (index, event) in own().enumerate() {
        let later = || own().skip(index + 1).map(AsRef::as_ref);
        let inner = match &event.kind {
            EventKind::ToolStarted { id, name } => {
                let to = ended_at(later(), end.at, |kind| is_finish(kind, id));
                Some(tool(trace, attempt, (id, name), (event, to)))
            }
            EventKind::InputAsked { input } => {
                let to = ended_at(later(), end.at, |kind| is_answer(kind, *input));
                Some(wait(trace, attempt, *input, (event, to)))
            }
            EventKind::Submitted
            | EventKind::Queued
            | EventKind::Offered { .. }
            | EventKind::Confirmed
            | EventKind::Rejected { .. }
            | EventKind::Phase(_)
            | EventKind::ToolFinished { .. }
            | EventKind::InputAnswered { .. }
            | EventKind::InputReceived { .. }
            | EventKind::InputClosed { .. }
            | EventKind::DeadlineExpired { .. }
            | EventKind::CancelRequested
            | EventKind::CancelDelivered
            | EventKind::CancelConfirmed
            | EventKind::Ended { .. }
            | EventKind::RetryScheduled { .. }
            | EventKind::RetryStopped
            | EventKind::ResumeFallback
            | EventKind::RetryAsked
            | EventKind::Attention(_)
            | EventKind::Paused
            | EventKind::Unpaused
            | EventKind::ReceiptArrived
            | EventKind::LateTerminal
            | EventKind::Progress
            | EventKind::Checkpoint { .. }
            | EventKind::Resumed { .. }
            | EventKind::PickedUp { .. }
            | EventKind::CompletionRefused { .. }
            | EventKind::Forced(_)
            | EventKind::PhaseRegression(_)
            | EventKind::AdoptedLate => None,
        };
        spans.extend(inner);
    }
}

fn append_stages(trace: &Trace<'_>, attempt: &AttemptRecord, end: &End, spans: &mut Vec<SpanData>) {
    let began: Vec<(Stage, Wall)> = Stage::ALL
        .into_iter()
        .filter_map(|stage| Some((stage, stage.began(attempt)?)))
        .collect();
    // What failed is the stage that did not get to its successor, not the cleanup that came of it.
    let reached = began
        .iter()
        .rev()
        .find(|(stage, _)| *stage != Stage::Cleanup);
    let reached = reached.map(|(stage, _)| *stage);
    for (index, &(stage, from)) in began.iter().enumerate() {
        let next = began.get(index + 1).map(|(_, from)| *from);
        let cleaned = attempt
            .times
            .cleanup_finished
            .filter(|_| stage == Stage::Cleanup);
        let mut span = trace.span(Shape {
            name: stage.span_name().into(),
            kind: SpanKind::Internal,
            id: span_id(attempt, stage.as_str(), 0),
            parent: Some(attempt.span_id),
            from,
            to: next.or(cleaned).unwrap_or(end.at),
        });
        span.attributes = trace.attempt_ids(attempt);
        span.attributes
            .push(KeyValue::new(names::STAGE, stage.as_str()));
        if Some(stage) == reached {
            span.status = status(end);
        }
        spans.push(span);
    }
}

fn tool(
    trace: &Trace<'_>,
    attempt: &AttemptRecord,
    (id, name): (&str, &str),
    (began, to): (&TimelineEvent, Wall),
) -> SpanData {
    let mut span = trace.span(Shape {
        name: format!("{} {name}", names::EXECUTE_TOOL).into(),
        kind: SpanKind::Internal,
        id: span_id(attempt, names::EXECUTE_TOOL, began.revision),
        parent: Some(attempt.span_id),
        from: began.at,
        to,
    });
    span.attributes = trace.attempt_ids(attempt);
    span.attributes.extend([
        KeyValue::new(names::GEN_AI_OPERATION, names::EXECUTE_TOOL),
        KeyValue::new(names::GEN_AI_TOOL_NAME, name.to_owned()),
        KeyValue::new(names::GEN_AI_TOOL_CALL_ID, id.to_owned()),
    ]);
    span
}

fn wait(
    trace: &Trace<'_>,
    attempt: &AttemptRecord,
    input: baton_core::id::InputId,
    (began, to): (&TimelineEvent, Wall),
) -> SpanData {
    let mut span = trace.span(Shape {
        name: names::INPUT_SPAN.into(),
        kind: SpanKind::Internal,
        id: span_id(attempt, names::INPUT_SPAN, began.revision),
        parent: Some(attempt.span_id),
        from: began.at,
        to,
    });
    span.attributes = trace.attempt_ids(attempt);
    span.attributes.push(text(names::INPUT_ID, input));
    let asked = attempt.inputs.iter().find(|asked| asked.id == input);
    span.attributes.extend(asked.map(|asked| {
        let kind = match asked.kind {
            InputKind::Permission => "permission",
            InputKind::Question => "question",
        };
        KeyValue::new(names::INPUT_KIND, kind)
    }));
    span
}

fn ended_at<'a>(
    mut later: impl Iterator<Item = &'a TimelineEvent>,
    otherwise: Wall,
    is_end: impl Fn(&EventKind) -> bool,
) -> Wall {
    later
        .find(|event| is_end(&event.kind))
        .map_or(otherwise, |event| event.at)
}

fn is_finish(kind: &EventKind, tool: &str) -> bool {
    matches!(kind, EventKind::ToolFinished { id } if **id == *tool)
}

/// The wait is over when a person has answered, even if the daemon gets the answer later.
fn is_answer(kind: &EventKind, wanted: baton_core::id::InputId) -> bool {
    matches!(
        kind,
        EventKind::InputAnswered { input } | EventKind::InputClosed { input } if *input == wanted
    )
}

/// Always the same for the same part of the same attempt, so nothing but the attempt's own id has to be stored.
fn span_id(attempt: &AttemptRecord, part: &str, revision: u64) -> [u8; 8] {
    let digest = Sha256::new()
        .chain_update(attempt.span_id)
        .chain_update(revision.to_be_bytes())
        .chain_update(part)
        .finalize();
    let mut id = [0; 8];
    id.copy_from_slice(&digest[..8]);
    id[7] |= 1; // All zero would mean none.
    id
}
