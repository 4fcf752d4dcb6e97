//! Spans within an attempt: its stages, its tool calls and its waits for a person.
//!
//! Stages come from the attempt's own times and follow each other without a gap. Tool calls and
//! waits come from the timeline, which is bounded, so a very long attempt shows only the newest
//! of them.

use baton_core::record::{AttemptEnd, AttemptRecord, InputKind, TimelineEvent, TimelineEventKind};
use baton_core::time::WallTime;
use opentelemetry::KeyValue;
use opentelemetry::trace::SpanKind;
use opentelemetry_sdk::trace::SpanData;
use sha2::{Digest, Sha256};

use super::span_names;
use super::spans::{SpanShape, TaskTrace, span_status, text_attribute};

/// The stages of an attempt, in order. Each lasts until the next stage that began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptStage {
    /// The attempt waits for a daemon with a free slot.
    Queue,
    /// The attempt is offered and the daemon has not answered.
    Accept,
    /// From the acceptance by the daemon to the start of the agent's process.
    ProcessStart,
    PromptWrite,
    FirstEvent,
    Stream,
    Cleanup,
}

impl AttemptStage {
    const ALL: [AttemptStage; 7] = [
        AttemptStage::Queue,
        AttemptStage::Accept,
        AttemptStage::ProcessStart,
        AttemptStage::PromptWrite,
        AttemptStage::FirstEvent,
        AttemptStage::Stream,
        AttemptStage::Cleanup,
    ];

    fn as_str(self) -> &'static str {
        match self {
            AttemptStage::Queue => "queue",
            AttemptStage::Accept => "accept",
            AttemptStage::ProcessStart => "process_start",
            AttemptStage::PromptWrite => "prompt_write",
            AttemptStage::FirstEvent => "first_event",
            AttemptStage::Stream => "stream",
            AttemptStage::Cleanup => "cleanup",
        }
    }

    fn span_name(self) -> &'static str {
        match self {
            AttemptStage::Queue => "baton.queue",
            AttemptStage::Accept => "baton.accept",
            AttemptStage::ProcessStart => "baton.process_start",
            AttemptStage::PromptWrite => "baton.prompt_write",
            AttemptStage::FirstEvent => "baton.first_event",
            AttemptStage::Stream => "baton.stream",
            AttemptStage::Cleanup => "baton.cleanup",
        }
    }

    /// `None` for a stage that the attempt skipped or did not reach.
    fn began(self, attempt: &AttemptRecord) -> Option<WallTime> {
        let times = &attempt.stage_times;
        match self {
            AttemptStage::Queue => times.queued,
            AttemptStage::Accept => times.offered,
            AttemptStage::ProcessStart => times.accepted.or(times.started),
            AttemptStage::PromptWrite => times.agent_started,
            AttemptStage::FirstEvent => times.prompt_written,
            AttemptStage::Stream => times.first_event.or(times.first_visible_event),
            AttemptStage::Cleanup => times.cleanup_started,
        }
    }
}

pub(super) fn append_parts(
    trace: &TaskTrace<'_>,
    attempt: &AttemptRecord,
    end: &AttemptEnd,
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
            TimelineEventKind::ToolStarted { id, name } => {
                let to = ended_at(later(), end.at, |kind| is_finish(kind, id));
                Some(tool_span(trace, attempt, (id, name), (event, to)))
            }
            TimelineEventKind::InputAsked { input } => {
                let to = ended_at(later(), end.at, |kind| is_answer(kind, *input));
                Some(input_wait_span(trace, attempt, *input, (event, to)))
            }
            TimelineEventKind::Submitted
            | TimelineEventKind::Queued
            | TimelineEventKind::Offered { .. }
            | TimelineEventKind::Confirmed
            | TimelineEventKind::Rejected { .. }
            | TimelineEventKind::Phase(_)
            | TimelineEventKind::ToolFinished { .. }
            | TimelineEventKind::InputAnswered { .. }
            | TimelineEventKind::InputReceived { .. }
            | TimelineEventKind::InputClosed { .. }
            | TimelineEventKind::DeadlineExpired { .. }
            | TimelineEventKind::CancelRequested
            | TimelineEventKind::CancelDelivered
            | TimelineEventKind::CancelConfirmed
            | TimelineEventKind::Ended { .. }
            | TimelineEventKind::RetryScheduled { .. }
            | TimelineEventKind::RetryStopped
            | TimelineEventKind::ResumeFallback
            | TimelineEventKind::RetryAsked
            | TimelineEventKind::Attention(_)
            | TimelineEventKind::Paused
            | TimelineEventKind::Unpaused
            | TimelineEventKind::ReceiptArrived
            | TimelineEventKind::LateTerminal
            | TimelineEventKind::Progress
            | TimelineEventKind::Checkpoint { .. }
            | TimelineEventKind::Resumed { .. }
            | TimelineEventKind::PickedUp { .. }
            | TimelineEventKind::CompletionRefused { .. }
            | TimelineEventKind::Forced(_)
            | TimelineEventKind::PhaseRegression(_)
            | TimelineEventKind::AdoptedLate => None,
        };
        spans.extend(inner);
    }
}

fn append_stages(
    trace: &TaskTrace<'_>,
    attempt: &AttemptRecord,
    end: &AttemptEnd,
    spans: &mut Vec<SpanData>,
) {
    let began: Vec<(AttemptStage, WallTime)> = AttemptStage::ALL
        .into_iter()
        .filter_map(|stage| Some((stage, stage.began(attempt)?)))
        .collect();
    // The error belongs to the last stage before the cleanup, not to the cleanup that followed
    // it.
    let reached = began
        .iter()
        .rev()
        .find(|(stage, _)| *stage != AttemptStage::Cleanup);
    let reached = reached.map(|(stage, _)| *stage);
    for (index, &(stage, from)) in began.iter().enumerate() {
        let next = began.get(index + 1).map(|(_, from)| *from);
        let cleaned = attempt
            .stage_times
            .cleanup_finished
            .filter(|_| stage == AttemptStage::Cleanup);
        let mut span = trace.span(SpanShape {
            name: stage.span_name().into(),
            kind: SpanKind::Internal,
            id: span_id(attempt, stage.as_str(), 0),
            parent: Some(attempt.span_id),
            from,
            to: next.or(cleaned).unwrap_or(end.at),
        });
        span.attributes = trace.attempt_ids(attempt);
        span.attributes
            .push(KeyValue::new(span_names::STAGE, stage.as_str()));
        if Some(stage) == reached {
            span.status = span_status(end);
        }
        spans.push(span);
    }
}

fn tool_span(
    trace: &TaskTrace<'_>,
    attempt: &AttemptRecord,
    (id, name): (&str, &str),
    (began, to): (&TimelineEvent, WallTime),
) -> SpanData {
    let mut span = trace.span(SpanShape {
        name: format!("{} {name}", span_names::EXECUTE_TOOL).into(),
        kind: SpanKind::Internal,
        id: span_id(attempt, span_names::EXECUTE_TOOL, began.revision),
        parent: Some(attempt.span_id),
        from: began.at,
        to,
    });
    span.attributes = trace.attempt_ids(attempt);
    span.attributes.extend([
        KeyValue::new(span_names::GEN_AI_OPERATION, span_names::EXECUTE_TOOL),
        KeyValue::new(span_names::GEN_AI_TOOL_NAME, name.to_owned()),
        KeyValue::new(span_names::GEN_AI_TOOL_CALL_ID, id.to_owned()),
    ]);
    span
}

fn input_wait_span(
    trace: &TaskTrace<'_>,
    attempt: &AttemptRecord,
    input: baton_core::ids::InputId,
    (began, to): (&TimelineEvent, WallTime),
) -> SpanData {
    let mut span = trace.span(SpanShape {
        name: span_names::INPUT_SPAN.into(),
        kind: SpanKind::Internal,
        id: span_id(attempt, span_names::INPUT_SPAN, began.revision),
        parent: Some(attempt.span_id),
        from: began.at,
        to,
    });
    span.attributes = trace.attempt_ids(attempt);
    span.attributes
        .push(text_attribute(span_names::INPUT_ID, input));
    let asked = attempt.inputs.iter().find(|asked| asked.id == input);
    span.attributes.extend(asked.map(|asked| {
        let kind = match asked.kind {
            InputKind::Permission => "permission",
            InputKind::Question => "question",
        };
        KeyValue::new(span_names::INPUT_KIND, kind)
    }));
    span
}

fn ended_at<'a>(
    mut later: impl Iterator<Item = &'a TimelineEvent>,
    otherwise: WallTime,
    is_end: impl Fn(&TimelineEventKind) -> bool,
) -> WallTime {
    later
        .find(|event| is_end(&event.kind))
        .map_or(otherwise, |event| event.at)
}

fn is_finish(kind: &TimelineEventKind, tool: &str) -> bool {
    matches!(kind, TimelineEventKind::ToolFinished { id } if **id == *tool)
}

/// Whether the event ends the wait for an input. The wait ends with the answer, even if the
/// daemon gets it later.
fn is_answer(kind: &TimelineEventKind, wanted: baton_core::ids::InputId) -> bool {
    matches!(
        kind,
        TimelineEventKind::InputAnswered { input } | TimelineEventKind::InputClosed { input } if *input == wanted
    )
}

/// A span id derived from the attempt's span id, so that only that id has to be stored.
fn span_id(attempt: &AttemptRecord, part: &str, revision: u64) -> [u8; 8] {
    let digest = Sha256::new()
        .chain_update(attempt.span_id)
        .chain_update(revision.to_be_bytes())
        .chain_update(part)
        .finalize();
    let mut id = [0; 8];
    id.copy_from_slice(&digest[..8]);
    id[7] |= 1; // An id of zeros would be invalid.
    id
}
