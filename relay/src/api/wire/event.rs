//! A task's timeline as clients see it: one event each, with the attempt's number, phase and state after it.
//!
//! The stored event holds what is new; the rest (which phase the attempt was in, who canceled) is read off the record.

use std::collections::HashMap;

use baton_core::goal::completion_contract;
use baton_core::ids::{AttemptId, InputId};
use baton_core::record::{
    AttemptStateKind, LifecyclePhase, OperatorAudit, TaskRecord, TimelineEvent, TimelineEventKind,
};
use baton_core::task::spec::TaskSpec;
use baton_core::time::WallTime;
use baton_proto::{ShortName, v1};

use crate::api::wire::{enums, timestamp};

/// The record's events after `revision`, oldest first.
pub(crate) fn events_after(
    spec: &TaskSpec,
    record: &TaskRecord,
    revision: u64,
) -> Vec<v1::TaskEvent> {
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
fn phase_of(event: &TimelineEvent) -> Option<LifecyclePhase> {
    match &event.kind {
        TimelineEventKind::Phase(phase) => Some(*phase),
        TimelineEventKind::Confirmed => Some(LifecyclePhase::Accepted),
        TimelineEventKind::ToolStarted { .. } => Some(LifecyclePhase::ToolStarted),
        TimelineEventKind::ToolFinished { .. } => Some(LifecyclePhase::ToolFinished),
        TimelineEventKind::InputAsked { .. } => Some(LifecyclePhase::WaitingInput),
        TimelineEventKind::InputReceived { .. } => Some(LifecyclePhase::InputReceived),
        TimelineEventKind::RetryScheduled { .. } => Some(LifecyclePhase::RetryScheduled),
        TimelineEventKind::Ended { .. } | TimelineEventKind::AdoptedLate => {
            event.state.and_then(end_phase)
        }
        TimelineEventKind::Submitted
        | TimelineEventKind::Queued
        | TimelineEventKind::Offered { .. }
        | TimelineEventKind::Rejected { .. }
        | TimelineEventKind::InputAnswered { .. }
        | TimelineEventKind::InputClosed { .. }
        | TimelineEventKind::DeadlineExpired { .. }
        | TimelineEventKind::CancelRequested
        | TimelineEventKind::CancelDelivered
        | TimelineEventKind::CancelConfirmed
        | TimelineEventKind::RetryStopped
        | TimelineEventKind::ResumeFallback
        | TimelineEventKind::RetryAsked
        | TimelineEventKind::Attention(_)
        | TimelineEventKind::Paused
        | TimelineEventKind::Unpaused
        | TimelineEventKind::ReceiptArrived
        | TimelineEventKind::CompletionRefused { .. }
        | TimelineEventKind::LateTerminal
        | TimelineEventKind::Forced(_)
        | TimelineEventKind::PhaseRegression(_)
        | TimelineEventKind::Progress
        | TimelineEventKind::Checkpoint { .. }
        | TimelineEventKind::Resumed { .. }
        | TimelineEventKind::PickedUp { .. } => None,
    }
}

fn end_phase(state: AttemptStateKind) -> Option<LifecyclePhase> {
    match state {
        AttemptStateKind::Completed => Some(LifecyclePhase::Completed),
        AttemptStateKind::Failed => Some(LifecyclePhase::Failed),
        AttemptStateKind::Canceled => Some(LifecyclePhase::Canceled),
        AttemptStateKind::TimedOut => Some(LifecyclePhase::TimedOut),
        AttemptStateKind::Lost => Some(LifecyclePhase::Lost),
        AttemptStateKind::Released | AttemptStateKind::HandedOff => Some(LifecyclePhase::Released),
        AttemptStateKind::Parked => Some(LifecyclePhase::Blocked),
        AttemptStateKind::Queued
        | AttemptStateKind::Offered
        | AttemptStateKind::Accepted
        | AttemptStateKind::Starting
        | AttemptStateKind::Prompted
        | AttemptStateKind::Streaming
        | AttemptStateKind::ToolRunning
        | AttemptStateKind::WaitingInput
        | AttemptStateKind::CleaningUp => None,
    }
}

fn task_event(
    spec: &TaskSpec,
    record: &TaskRecord,
    event: &TimelineEvent,
    phases: &HashMap<AttemptId, LifecyclePhase>,
) -> v1::TaskEvent {
    let attempt = event.attempt.and_then(|id| record.attempt(id));
    let holder = attempt.and_then(|attempt| attempt.daemon_holder());
    let phase = event.attempt.and_then(|id| phases.get(&id));
    let mut shown = v1::TaskEvent {
        revision: event.revision,
        kind: kind(&event.kind).into(),
        task_id: record.task.to_string(),
        attempt_id: event.attempt.map(|id| id.to_string()).unwrap_or_default(),
        attempt_number: attempt.map_or(0, |attempt| attempt.number),
        phase: phase.map_or(0, |phase| enums::phase(*phase).into()),
        state: event
            .state
            .map_or(0, |state| enums::attempt_state(state).into()),
        task_state: enums::task_state(event.task_state).into(),
        observed_at: Some(timestamp(event.observed_at.unwrap_or(event.at))),
        recorded_at: Some(timestamp(event.at)),
        deadline_at: event.deadline.map(|(_, at)| timestamp(at)),
        timer: event
            .deadline
            .map_or(0, |(timer, _)| enums::timer(timer).into()),
        message: event.message.as_deref().unwrap_or_default().to_owned(),
        daemon_id: holder
            .map(|holder| holder.daemon.to_string())
            .unwrap_or_default(),
        ..v1::TaskEvent::default()
    };
    add_data(&mut shown, record, event);
    if let TimelineEventKind::CompletionRefused { missing } = event.kind {
        shown.missing = completion_contract::unmet_paths(spec, missing);
    }
    shown
}

/// What the event's kind carries beyond the common fields.
fn add_data(shown: &mut v1::TaskEvent, record: &TaskRecord, event: &TimelineEvent) {
    match &event.kind {
        TimelineEventKind::Offered { daemon } => daemon.as_ref().clone_into(&mut shown.detail),
        TimelineEventKind::Rejected { code } => code.as_ref().clone_into(&mut shown.failure_code),
        TimelineEventKind::ToolStarted { id, name } => {
            shown.tool_call_id = id.to_string();
            shown.tool_name = name.to_string();
        }
        TimelineEventKind::ToolFinished { id } => shown.tool_call_id = id.to_string(),
        TimelineEventKind::InputAnswered { input } => {
            shown.input_id = input.to_string();
            add_answer(shown, record, *input);
        }
        TimelineEventKind::InputAsked { input }
        | TimelineEventKind::InputReceived { input }
        | TimelineEventKind::InputClosed { input } => shown.input_id = input.to_string(),
        TimelineEventKind::DeadlineExpired { timer } => shown.timer = enums::timer(*timer).into(),
        TimelineEventKind::CancelRequested => add_cancel(shown, record),
        TimelineEventKind::Confirmed => add_claimant(shown, record, event),
        TimelineEventKind::Ended { .. } | TimelineEventKind::AdoptedLate => {
            add_end(shown, record, event)
        }
        TimelineEventKind::RetryScheduled { after_ms } => {
            let due = WallTime(event.at.0.saturating_add(*after_ms));
            shown.deadline_at = Some(timestamp(due));
        }
        TimelineEventKind::Forced(audit) => add_audit(shown, audit, event),
        TimelineEventKind::PhaseRegression(phase) => phase.as_str().clone_into(&mut shown.detail),
        TimelineEventKind::Attention(cause) => {
            shown.attention_cause = enums::attention_cause(*cause).into()
        }
        TimelineEventKind::Checkpoint { id } => shown.checkpoint_id = id.to_string(),
        TimelineEventKind::Resumed { by } | TimelineEventKind::PickedUp { by } => {
            shown.principal = by.to_string();
            shown.reason = std::mem::take(&mut shown.message);
        }
        TimelineEventKind::Submitted
        | TimelineEventKind::Queued
        | TimelineEventKind::Phase(_)
        | TimelineEventKind::CancelDelivered
        | TimelineEventKind::CancelConfirmed
        | TimelineEventKind::RetryStopped
        | TimelineEventKind::ResumeFallback
        | TimelineEventKind::RetryAsked
        | TimelineEventKind::Paused
        | TimelineEventKind::Unpaused
        | TimelineEventKind::ReceiptArrived
        | TimelineEventKind::Progress
        | TimelineEventKind::CompletionRefused { .. }
        | TimelineEventKind::LateTerminal => {}
    }
}

/// `force_release attempt=streaming->released task=running->queued`: what was found and what was left.
fn add_audit(shown: &mut v1::TaskEvent, audit: &OperatorAudit, event: &TimelineEvent) {
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
    if let Some(agent) = attempt.and_then(|attempt| attempt.agent_holder()) {
        shown.principal = agent.name.to_string();
    }
}

/// Who answered, as long as the record keeps the input.
fn add_answer(shown: &mut v1::TaskEvent, record: &TaskRecord, input: InputId) {
    let mut inputs = record.attempts.iter().flat_map(|attempt| &attempt.inputs);
    let answered = inputs.find(|known| known.id == input);
    if let Some(answer) = answered.and_then(|known| known.state.answer()) {
        shown.principal = answer.by.to_string();
        shown.detail = enums::outcome(answer.decision).short_name().to_owned();
    }
}

fn add_end(shown: &mut v1::TaskEvent, record: &TaskRecord, event: &TimelineEvent) {
    if let TimelineEventKind::Ended { code, retryable } = &event.kind {
        shown.failure_code = code
            .as_ref()
            .map(|code| code.as_str().to_owned())
            .unwrap_or_default();
        shown.retryable = *retryable;
    }
    let attempt = event.attempt.and_then(|id| record.attempt(id));
    if let Some(end) = attempt.and_then(|attempt| attempt.state.end()) {
        shown.ended_by = enums::ended_by(end.ended_by).into();
        shown.user_message = end.user_message.as_deref().unwrap_or_default().to_owned();
    }
}

fn kind(event: &TimelineEventKind) -> v1::TaskEventKind {
    use v1::TaskEventKind as Kind;
    match event {
        TimelineEventKind::Submitted => Kind::Submitted,
        TimelineEventKind::Queued => Kind::Queued,
        TimelineEventKind::Offered { .. } => Kind::Offered,
        TimelineEventKind::Confirmed => Kind::Confirmed,
        TimelineEventKind::Rejected { .. } => Kind::Rejected,
        TimelineEventKind::Phase(_) => Kind::Phase,
        TimelineEventKind::ToolStarted { .. } => Kind::ToolStarted,
        TimelineEventKind::ToolFinished { .. } => Kind::ToolFinished,
        TimelineEventKind::InputAsked { .. } => Kind::InputAsked,
        TimelineEventKind::InputAnswered { .. } => Kind::InputAnswered,
        TimelineEventKind::InputReceived { .. } => Kind::InputReceived,
        TimelineEventKind::InputClosed { .. } => Kind::InputClosed,
        TimelineEventKind::DeadlineExpired { .. } => Kind::DeadlineExpired,
        TimelineEventKind::CancelRequested => Kind::CancelRequested,
        TimelineEventKind::CancelDelivered => Kind::CancelDelivered,
        TimelineEventKind::CancelConfirmed => Kind::CancelConfirmed,
        TimelineEventKind::Ended { .. } => Kind::Ended,
        TimelineEventKind::RetryScheduled { .. } => Kind::RetryScheduled,
        TimelineEventKind::RetryStopped => Kind::RetryStopped,
        TimelineEventKind::ResumeFallback => Kind::ResumeFallback,
        TimelineEventKind::RetryAsked => Kind::RetryAsked,
        TimelineEventKind::Attention(_) => Kind::Attention,
        TimelineEventKind::Paused => Kind::Paused,
        TimelineEventKind::Unpaused => Kind::Unpaused,
        TimelineEventKind::ReceiptArrived => Kind::ReceiptArrived,
        TimelineEventKind::LateTerminal => Kind::LateTerminal,
        TimelineEventKind::AdoptedLate => Kind::AdoptedLate,
        TimelineEventKind::Progress => Kind::Progress,
        TimelineEventKind::Checkpoint { .. } => Kind::Checkpoint,
        TimelineEventKind::Resumed { .. } => Kind::Resumed,
        TimelineEventKind::PickedUp { .. } => Kind::PickedUp,
        TimelineEventKind::CompletionRefused { .. } => Kind::CompletionRefused,
        TimelineEventKind::Forced(_) => Kind::Forced,
        TimelineEventKind::PhaseRegression(_) => Kind::PhaseRegression,
    }
}
