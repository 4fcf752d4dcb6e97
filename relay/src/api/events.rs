//! A task's timeline as clients see it: one event each, with the attempt's number, phase and state after it.
//!
//! The stored event holds what is new; the rest (which phase the attempt was in, who canceled) is read off the record.

use std::collections::HashMap;

use baton_core::contract;
use baton_core::id::{AttemptId, InputId};
use baton_core::record::{AttemptState, Audit, EventKind, Phase, TaskRecord, TimelineEvent};
use baton_core::spec::TaskSpec;
use baton_core::time::Wall;
use baton_proto::{ShortName, v1};

use crate::wire::{timestamp, words};

/// The record's events after `revision`, oldest first.
pub(super) fn after(spec: &TaskSpec, record: &TaskRecord, revision: u64) -> Vec<v1::TaskEvent> {
    let mut phases = HashMap::new();
    let mut shown = Vec::new();
    for event in &record.timeline.events {
        if let (Some(attempt), Some(phase)) = (event.attempt, phase_of(event)) {
            phases.insert(attempt, phase);
        }
        if event.revision > revision {
            shown.push(task_event(spec, record, event, &phases));
        }
    }
    shown
}

/// The phase that an event brings its attempt to, if it moves it.
fn phase_of(event: &TimelineEvent) -> Option<Phase> {
    match &event.kind {
        EventKind::Phase(phase) => Some(*phase),
        EventKind::Confirmed => Some(Phase::Accepted),
        EventKind::ToolStarted { .. } => Some(Phase::ToolStarted),
        EventKind::ToolFinished { .. } => Some(Phase::ToolFinished),
        EventKind::InputAsked { .. } => Some(Phase::WaitingInput),
        EventKind::InputReceived { .. } => Some(Phase::InputReceived),
        EventKind::RetryScheduled { .. } => Some(Phase::RetryScheduled),
        EventKind::Ended { .. } | EventKind::AdoptedLate => event.state.and_then(end_phase),
        EventKind::Submitted
        | EventKind::Queued
        | EventKind::Offered { .. }
        | EventKind::Rejected { .. }
        | EventKind::InputAnswered { .. }
        | EventKind::InputClosed { .. }
        | EventKind::DeadlineExpired { .. }
        | EventKind::CancelRequested
        | EventKind::CancelDelivered
        | EventKind::CancelConfirmed
        | EventKind::RetryStopped
        | EventKind::ResumeFallback
        | EventKind::RetryAsked
        | EventKind::Attention(_)
        | EventKind::Paused
        | EventKind::Unpaused
        | EventKind::ReceiptArrived
        | EventKind::CompletionRefused { .. }
        | EventKind::LateTerminal
        | EventKind::Forced(_)
        | EventKind::PhaseRegression(_)
        | EventKind::Progress
        | EventKind::Checkpoint { .. }
        | EventKind::Resumed { .. }
        | EventKind::PickedUp { .. } => None,
    }
}

fn end_phase(state: AttemptState) -> Option<Phase> {
    match state {
        AttemptState::Completed => Some(Phase::Completed),
        AttemptState::Failed => Some(Phase::Failed),
        AttemptState::Canceled => Some(Phase::Canceled),
        AttemptState::TimedOut => Some(Phase::TimedOut),
        AttemptState::Lost => Some(Phase::Lost),
        AttemptState::Released | AttemptState::HandedOff => Some(Phase::Released),
        AttemptState::Parked => Some(Phase::Blocked),
        AttemptState::Queued
        | AttemptState::Offered
        | AttemptState::Accepted
        | AttemptState::Starting
        | AttemptState::Prompted
        | AttemptState::Streaming
        | AttemptState::ToolRunning
        | AttemptState::WaitingInput
        | AttemptState::CleaningUp => None,
    }
}

fn task_event(
    spec: &TaskSpec,
    record: &TaskRecord,
    event: &TimelineEvent,
    phases: &HashMap<AttemptId, Phase>,
) -> v1::TaskEvent {
    let attempt = event.attempt.and_then(|id| record.attempt(id));
    let holder = attempt.and_then(|attempt| attempt.daemon());
    let phase = event.attempt.and_then(|id| phases.get(&id));
    let mut shown = v1::TaskEvent {
        revision: event.revision,
        kind: kind(&event.kind).into(),
        task_id: record.task.to_string(),
        attempt_id: event.attempt.map(|id| id.to_string()).unwrap_or_default(),
        attempt_number: attempt.map_or(0, |attempt| attempt.number),
        phase: phase.map_or(0, |phase| words::phase(*phase).into()),
        state: event
            .state
            .map_or(0, |state| words::attempt_state(state).into()),
        task_state: words::task_state(event.task_state).into(),
        observed_at: Some(timestamp(event.observed.unwrap_or(event.at))),
        recorded_at: Some(timestamp(event.at)),
        deadline_at: event.deadline.map(|(_, at)| timestamp(at)),
        timer: event
            .deadline
            .map_or(0, |(timer, _)| words::timer(timer).into()),
        message: event.message.as_deref().unwrap_or_default().to_owned(),
        daemon_id: holder
            .map(|holder| holder.daemon.to_string())
            .unwrap_or_default(),
        ..v1::TaskEvent::default()
    };
    add_data(&mut shown, record, event);
    if let EventKind::CompletionRefused { missing } = event.kind {
        shown.missing = contract::paths(spec, missing);
    }
    shown
}

/// What the event's kind carries beyond the common fields.
fn add_data(shown: &mut v1::TaskEvent, record: &TaskRecord, event: &TimelineEvent) {
    match &event.kind {
        EventKind::Offered { daemon } => daemon.as_ref().clone_into(&mut shown.detail),
        EventKind::Rejected { code } => code.as_ref().clone_into(&mut shown.failure_code),
        EventKind::ToolStarted { id, name } => {
            shown.tool_call_id = id.to_string();
            shown.tool_name = name.to_string();
        }
        EventKind::ToolFinished { id } => shown.tool_call_id = id.to_string(),
        EventKind::InputAnswered { input } => {
            shown.input_id = input.to_string();
            add_answer(shown, record, *input);
        }
        EventKind::InputAsked { input }
        | EventKind::InputReceived { input }
        | EventKind::InputClosed { input } => shown.input_id = input.to_string(),
        EventKind::DeadlineExpired { timer } => shown.timer = words::timer(*timer).into(),
        EventKind::CancelRequested => add_cancel(shown, record),
        EventKind::Confirmed => add_claimant(shown, record, event),
        EventKind::Ended { .. } | EventKind::AdoptedLate => add_end(shown, record, event),
        EventKind::RetryScheduled { after_ms } => {
            let due = Wall(event.at.0.saturating_add(*after_ms));
            shown.deadline_at = Some(timestamp(due));
        }
        EventKind::Forced(audit) => add_audit(shown, audit, event),
        EventKind::PhaseRegression(phase) => phase.as_str().clone_into(&mut shown.detail),
        EventKind::Attention(cause) => shown.attention_cause = words::attention(*cause).into(),
        EventKind::Checkpoint { id } => shown.checkpoint_id = id.to_string(),
        EventKind::Resumed { by } | EventKind::PickedUp { by } => {
            shown.principal = by.to_string();
            shown.reason = std::mem::take(&mut shown.message);
        }
        EventKind::Submitted
        | EventKind::Queued
        | EventKind::Phase(_)
        | EventKind::CancelDelivered
        | EventKind::CancelConfirmed
        | EventKind::RetryStopped
        | EventKind::ResumeFallback
        | EventKind::RetryAsked
        | EventKind::Paused
        | EventKind::Unpaused
        | EventKind::ReceiptArrived
        | EventKind::Progress
        | EventKind::CompletionRefused { .. }
        | EventKind::LateTerminal => {}
    }
}

/// `force_release attempt=streaming->released task=running->queued`: what was found and what was left.
fn add_audit(shown: &mut v1::TaskEvent, audit: &Audit, event: &TimelineEvent) {
    shown.principal = audit.by.to_string();
    shown.reason = std::mem::take(&mut shown.message);
    shown.detail = format!(
        "{} attempt={}->{} task={}->{}",
        audit.operation.as_str(),
        audit.attempt_before.as_str(),
        audit.attempt_after.as_str(),
        audit.task_before.as_str(),
        event.task_state.as_str(),
    );
}

fn add_cancel(shown: &mut v1::TaskEvent, record: &TaskRecord) {
    if let Some(cancel) = &record.cancel {
        shown.principal = cancel.by.to_string();
        shown.reason = cancel.reason.as_deref().unwrap_or_default().to_owned();
    }
}

/// The agent that took it, where it holds the lease itself.
fn add_claimant(shown: &mut v1::TaskEvent, record: &TaskRecord, event: &TimelineEvent) {
    let attempt = event.attempt.and_then(|id| record.attempt(id));
    if let Some(agent) = attempt.and_then(|attempt| attempt.agent()) {
        shown.principal = agent.name.to_string();
    }
}

/// Who answered, as long as the record keeps the input.
fn add_answer(shown: &mut v1::TaskEvent, record: &TaskRecord, input: InputId) {
    let mut inputs = record.attempts.iter().flat_map(|attempt| &attempt.inputs);
    let answered = inputs.find(|known| known.id == input);
    if let Some(answer) = answered.and_then(|known| known.state.answer()) {
        shown.principal = answer.by.to_string();
        shown.detail = words::outcome(answer.decision).short_name().to_owned();
    }
}

fn add_end(shown: &mut v1::TaskEvent, record: &TaskRecord, event: &TimelineEvent) {
    if let EventKind::Ended { code, retryable } = &event.kind {
        shown.failure_code = code
            .as_ref()
            .map(|code| code.as_str().to_owned())
            .unwrap_or_default();
        shown.retryable = *retryable;
    }
    let attempt = event.attempt.and_then(|id| record.attempt(id));
    if let Some(end) = attempt.and_then(|attempt| attempt.state.end()) {
        shown.ended_by = words::ended_by(end.by).into();
        shown.user_message = end.user_message.as_deref().unwrap_or_default().to_owned();
    }
}

fn kind(event: &EventKind) -> v1::TaskEventKind {
    use v1::TaskEventKind as Kind;
    match event {
        EventKind::Submitted => Kind::Submitted,
        EventKind::Queued => Kind::Queued,
        EventKind::Offered { .. } => Kind::Offered,
        EventKind::Confirmed => Kind::Confirmed,
        EventKind::Rejected { .. } => Kind::Rejected,
        EventKind::Phase(_) => Kind::Phase,
        EventKind::ToolStarted { .. } => Kind::ToolStarted,
        EventKind::ToolFinished { .. } => Kind::ToolFinished,
        EventKind::InputAsked { .. } => Kind::InputAsked,
        EventKind::InputAnswered { .. } => Kind::InputAnswered,
        EventKind::InputReceived { .. } => Kind::InputReceived,
        EventKind::InputClosed { .. } => Kind::InputClosed,
        EventKind::DeadlineExpired { .. } => Kind::DeadlineExpired,
        EventKind::CancelRequested => Kind::CancelRequested,
        EventKind::CancelDelivered => Kind::CancelDelivered,
        EventKind::CancelConfirmed => Kind::CancelConfirmed,
        EventKind::Ended { .. } => Kind::Ended,
        EventKind::RetryScheduled { .. } => Kind::RetryScheduled,
        EventKind::RetryStopped => Kind::RetryStopped,
        EventKind::ResumeFallback => Kind::ResumeFallback,
        EventKind::RetryAsked => Kind::RetryAsked,
        EventKind::Attention(_) => Kind::Attention,
        EventKind::Paused => Kind::Paused,
        EventKind::Unpaused => Kind::Unpaused,
        EventKind::ReceiptArrived => Kind::ReceiptArrived,
        EventKind::LateTerminal => Kind::LateTerminal,
        EventKind::AdoptedLate => Kind::AdoptedLate,
        EventKind::Progress => Kind::Progress,
        EventKind::Checkpoint { .. } => Kind::Checkpoint,
        EventKind::Resumed { .. } => Kind::Resumed,
        EventKind::PickedUp { .. } => Kind::PickedUp,
        EventKind::CompletionRefused { .. } => Kind::CompletionRefused,
        EventKind::Forced(_) => Kind::Forced,
        EventKind::PhaseRegression(_) => Kind::PhaseRegression,
    }
}
