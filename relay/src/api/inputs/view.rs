//! Inputs as messages for clients. The relay stores the daemon's payload as sent; it is decoded
//! here.

use baton_core::record::{
    AttemptRecord, InputKind, InputRecord, InputState, StoredAnswer, TaskRecord,
};
use baton_core::task::spec::TaskSpec;
use baton_core::time::WallTime;
use baton_proto::v1;
use bytes::Bytes;
use prost::Message;

use crate::api::wire;
use crate::api::wire::{enums, timestamp};

/// The open inputs of a task, oldest first.
pub(crate) fn open_inputs_of(spec: &TaskSpec, record: &TaskRecord) -> Vec<v1::Input> {
    let mut inputs = all_inputs_of(spec, record);
    inputs.retain(|input| input.state() == v1::InputState::Open);
    inputs
}

/// Every stored input of a task, oldest first.
pub(crate) fn all_inputs_of(spec: &TaskSpec, record: &TaskRecord) -> Vec<v1::Input> {
    let mut inputs: Vec<(&AttemptRecord, &InputRecord)> = record
        .attempts
        .iter()
        .flat_map(|attempt| attempt.inputs.iter().map(move |input| (attempt, input)))
        .collect();
    inputs.sort_by_key(|(_, input)| (input.asked, input.id));
    let messages = inputs
        .into_iter()
        .map(|(attempt, input)| input_message(spec, record, attempt, input));
    messages.collect()
}

pub(crate) fn input_message(
    spec: &TaskSpec,
    record: &TaskRecord,
    attempt: &AttemptRecord,
    input: &InputRecord,
) -> v1::Input {
    let (state, outcome) = state_and_outcome(input);
    let answer = input.state.answer();
    let content = answer.map(|answer| answer_content(input.kind, answer));
    let content = content.unwrap_or_default();
    v1::Input {
        input_id: input.id.to_string(),
        task_id: record.task.to_string(),
        attempt_id: attempt.id.to_string(),
        attempt_number: attempt.number,
        kind: input_kind(input.kind).into(),
        state: state.into(),
        outcome: outcome.into(),
        body: Some(input_body(input)),
        asked_at: Some(timestamp(input.asked)),
        expires_at: input_expiry(spec, input).map(timestamp),
        answered_at: answer.map(|answer| timestamp(answer.at)),
        answered_by: answer
            .map(|answer| answer.by.to_string())
            .unwrap_or_default(),
        scope: content.scope,
        labels: content.labels,
        text: content.text,
        goal: spec.goal.clone(),
        agent: spec.agent.clone(),
        rule: answer.and_then(|answer| permission_rule_of(spec, answer)),
    }
}

/// For display only; the core owns the timer.
fn input_expiry(spec: &TaskSpec, input: &InputRecord) -> Option<WallTime> {
    let limit = spec.effective_profile.user_input_ms.filter(|ms| *ms > 0)?;
    let open = input.state == InputState::Open;
    open.then(|| WallTime(input.asked.0.saturating_add(limit)))
}

fn permission_rule_of(spec: &TaskSpec, answer: &StoredAnswer) -> Option<v1::PermissionRule> {
    let index = usize::try_from(answer.rule?.checked_sub(1)?).ok()?;
    spec.permission_rules.get(index).map(wire::permission_rule)
}

fn input_kind(kind: InputKind) -> v1::InputKind {
    match kind {
        InputKind::Permission => v1::InputKind::Permission,
        InputKind::Question => v1::InputKind::Question,
    }
}

/// The request as the daemon sent it. A closed input stores no payload, so only the tool name and
/// the digest of its arguments remain.
fn input_body(input: &InputRecord) -> v1::input::Body {
    match input.kind {
        InputKind::Permission => {
            let asked = v1::PermissionRequest::decode(&*input.payload).unwrap_or_default();
            v1::input::Body::Permission(v1::PermissionRequest {
                input_id: input.id.to_string(),
                tool_name: input.tool_name.as_deref().unwrap_or_default().to_owned(),
                tool_input_sha256: Bytes::copy_from_slice(&input.digest),
                ..asked
            })
        }
        InputKind::Question => {
            let asked = v1::Question::decode(&*input.payload).unwrap_or_default();
            v1::input::Body::Question(v1::Question {
                input_id: input.id.to_string(),
                ..asked
            })
        }
    }
}

fn state_and_outcome(input: &InputRecord) -> (v1::InputState, v1::InputOutcome) {
    use v1::{InputOutcome as Outcome, InputState as State};
    match &input.state {
        InputState::Open => (State::Open, Outcome::Unspecified),
        InputState::Answered(answer) => (State::Answered, enums::outcome(answer.decision)),
        InputState::Received(answer) => (State::Received, enums::outcome(answer.decision)),
        InputState::Withdrawn => (State::Closed, Outcome::Withdrawn),
        InputState::Expired => (State::Closed, Outcome::Expired),
        InputState::Superseded(_) => (State::Closed, Outcome::Superseded),
    }
}

#[derive(Default)]
struct InputAnswerContent {
    scope: i32,
    labels: Vec<String>,
    text: String,
}

fn answer_content(kind: InputKind, answer: &StoredAnswer) -> InputAnswerContent {
    match kind {
        InputKind::Permission => {
            let decision = v1::PermissionDecision::decode(&*answer.payload).unwrap_or_default();
            InputAnswerContent {
                scope: decision.scope,
                text: decision.message,
                ..InputAnswerContent::default()
            }
        }
        InputKind::Question => {
            let answer = v1::QuestionAnswer::decode(&*answer.payload).unwrap_or_default();
            InputAnswerContent {
                labels: answer.labels,
                text: answer.text,
                ..InputAnswerContent::default()
            }
        }
    }
}
