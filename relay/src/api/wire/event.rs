//! A task's timeline as messages: each event with the attempt's number and its phase and state
//! after the event.
//!
//! The stored event contains only what changed. The rest (the attempt's phase, who canceled)
//! comes from the task record.

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
    let mut messages = Vec::new();
    for event in &record.timeline.events {
        if let (Some(attempt), Some(phase)) = (event.attempt, phase_of(event)) {
            phases.insert(attempt, phase);
        }
        if event.revision > revision {
            messages.push(task_event(spec, record, event, &phases));
        }
    }
    messages
}

/// The phase of the attempt after the event, if the event changes it.
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
    let mut target = v1::TaskEvent {
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
    add_data(&mut target, record, event);
    if let TimelineEventKind::CompletionRefused { missing } = event.kind {
        target.missing = completion_contract::unmet_paths(spec, missing);
    }
    target
}

/// Adds the fields that depend on the event's kind.
fn add_data(target: &mut v1::TaskEvent, record: &TaskRecord, event: &TimelineEvent) {
    match &event.kind {
        TimelineEventKind::Offered { daemon } => daemon.as_ref().clone_into(&mut target.detail),
        TimelineEventKind::Rejected { code } => code.as_ref().clone_into(&mut target.failure_code),
        TimelineEventKind::ToolStarted { id, name } => {
            target.tool_call_id = id.to_string();
            target.tool_name = name.to_string();
        }
        TimelineEventKind::ToolFinished { id } => target.tool_call_id = id.to_string(),
        TimelineEventKind::InputAnswered { input } => {
            target.input_id = input.to_string();
            add_answer(target, record, *input);
        }
        TimelineEventKind::InputAsked { input }
        | TimelineEventKind::InputReceived { input }
        | TimelineEventKind::InputClosed { input } => target.input_id = input.to_string(),
        TimelineEventKind::DeadlineExpired { timer } => target.timer = enums::timer(*timer).into(),
        TimelineEventKind::CancelRequested => add_cancel(target, record),
        TimelineEventKind::Confirmed => add_claimant(target, record, event),
        TimelineEventKind::Ended { .. } | TimelineEventKind::AdoptedLate => {
            add_end(target, record, event)
        }
        TimelineEventKind::RetryScheduled { after_ms } => {
            let due = WallTime(event.at.0.saturating_add(*after_ms));
            target.deadline_at = Some(timestamp(due));
        }
        TimelineEventKind::Forced(audit) => add_audit(target, audit, event),
        TimelineEventKind::PhaseRegression(phase) => phase.as_str().clone_into(&mut target.detail),
        TimelineEventKind::Attention(cause) => {
            target.attention_cause = enums::attention_cause(*cause).into()
        }
        TimelineEventKind::Checkpoint { id } => target.checkpoint_id = id.to_string(),
        TimelineEventKind::Resumed { by } | TimelineEventKind::PickedUp { by } => {
            target.principal = by.to_string();
            target.reason = std::mem::take(&mut target.message);
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

/// Detail text with the states before and after, for example
/// `force_release attempt=streaming->released task=running->queued`.
fn add_audit(target: &mut v1::TaskEvent, audit: &OperatorAudit, event: &TimelineEvent) {
    target.principal = audit.by.to_string();
    target.reason = std::mem::take(&mut target.message);
    target.detail = format!(
        "{} attempt={}->{} task={}->{}",
        audit.operation.as_str(),
        audit.attempt_before.as_str(),
        audit.attempt_after.as_str(),
        audit.task_before.as_str(),
        event.task_state.as_str(),
    );
}

fn add_cancel(target: &mut v1::TaskEvent, record: &TaskRecord) {
    if let Some(cancel) = &record.cancel {
        target.principal = cancel.by.to_string();
        target.reason = cancel.reason.as_deref().unwrap_or_default().to_owned();
    }
}

/// Adds the agent that claimed the task, if an agent holds the lease.
fn add_claimant(target: &mut v1::TaskEvent, record: &TaskRecord, event: &TimelineEvent) {
    let attempt = event.attempt.and_then(|id| record.attempt(id));
    if let Some(agent) = attempt.and_then(|attempt| attempt.agent_holder()) {
        target.principal = agent.name.to_string();
    }
}

/// Adds the answerer, as long as the record stores the input.
fn add_answer(target: &mut v1::TaskEvent, record: &TaskRecord, input: InputId) {
    let mut inputs = record.attempts.iter().flat_map(|attempt| &attempt.inputs);
    let answered = inputs.find(|one| one.id == input);
    if let Some(answer) = answered.and_then(|one| one.state.answer()) {
        target.principal = answer.by.to_string();
        target.detail = enums::outcome(answer.decision).short_name().to_owned();
    }
}

fn add_end(target: &mut v1::TaskEvent, record: &TaskRecord, event: &TimelineEvent) {
    if let TimelineEventKind::Ended { code, retryable } = &event.kind {
        target.failure_code = code
            .as_ref()
            .map(|code| code.as_str().to_owned())
            .unwrap_or_default();
        target.retryable = *retryable;
    }
    let attempt = event.attempt.and_then(|id| record.attempt(id));
    if let Some(end) = attempt.and_then(|attempt| attempt.state.end()) {
        target.ended_by = enums::ended_by(end.ended_by).into();
        target.user_message = end.user_message.as_deref().unwrap_or_default().to_owned();
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
