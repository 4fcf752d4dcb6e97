//! Answers to inputs: checks that an answer fits its input, and names the earlier answerer on a
//! conflict.

use baton_core::commands::AnswerInput;
use baton_core::ids::{AttemptId, InputId, TaskId};
use baton_core::io::rejection::Rejection;
use baton_core::record::{AttemptRecord, InputDecision, InputKind, InputRecord, TaskRecord};
use baton_proto::v1;
use baton_proto::v1::answer_request::Answer as Given;
use prost::Message;

use super::view;
use crate::api::error::fault::{ApiFault, EntityKind};
use crate::api::request::limits;
use crate::api::request::validate;
use crate::api::request::validate::{InvalidReason, ValidationResult, invalid_field};
use crate::api::{Api, actor};
use crate::auth::Principal;
use crate::dispatcher::RequestRefusal;

impl Api {
    pub(crate) async fn answer_input(
        &self,
        who: Principal,
        request: v1::AnswerRequest,
    ) -> Result<v1::AnswerResponse, ApiFault> {
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        let input: InputId = validate::id("input_id", &request.input_id)?;
        let given = validate::present("answer", request.answer.clone())?;
        let (decision, payload) = parse_answer(&given)?;
        let (spec, record) = self.stored_task(&who, task).await?;
        let (attempt, waiting) =
            find_input(&record, input).ok_or(ApiFault::NotFound(EntityKind::Input))?;
        refuse_stale(&request, attempt, waiting)?;
        refuse_mismatched(&given, waiting)?;
        let already_answered = waiting.state.answer().is_some();
        let (tenant, by) = (who.tenant.clone(), actor(&who));
        let answer = AnswerInput {
            tenant,
            task,
            input,
            by,
            decision,
            payload: payload.into(),
        };
        let after = match self.dispatcher.request(answer).await {
            Err(RequestRefusal::Rejected(Rejection::AnswerConflict)) => {
                return Err(self.answered_otherwise_fault(&who, task, input).await);
            }
            after => after?,
        };
        let (attempt, answered) = find_input(&after, input).ok_or(ApiFault::Internal)?;
        Ok(v1::AnswerResponse {
            input: Some(view::input_message(&spec, &after, attempt, answered)),
            already_answered,
        })
    }

    /// The fault for an input that has a different answer: who gave it, and when.
    async fn answered_otherwise_fault(
        &self,
        who: &Principal,
        task: TaskId,
        input: InputId,
    ) -> ApiFault {
        let Ok((_, record)) = self.stored_task(who, task).await else {
            return ApiFault::Refused(Rejection::AnswerConflict);
        };
        let given = find_input(&record, input).and_then(|(_, input)| input.state.answer());
        match given {
            Some(given) => ApiFault::AnsweredOtherwise {
                by: given.by.to_string(),
                at: given.at,
                decision: given.decision,
            },
            None => ApiFault::Refused(Rejection::AnswerConflict),
        }
    }
}

/// What the core stores of an answer: the decision, and the encoded message for the agent.
fn parse_answer(given: &Given) -> Result<(InputDecision, Vec<u8>), ApiFault> {
    match given {
        Given::Permission(reply) => {
            let scope = validate::enumeration("permission.scope", reply.scope)?;
            validate::text("permission.message", &reply.message, limits::REASON)?;
            let scope = match scope {
                v1::PermissionScope::Attempt if reply.allow => v1::PermissionScope::Attempt,
                // A denial is always for one tool call. An absent scope means one call too.
                v1::PermissionScope::Attempt
                | v1::PermissionScope::Once
                | v1::PermissionScope::Unspecified => v1::PermissionScope::Once,
            };
            let decision = v1::PermissionDecision {
                scope: scope.into(),
                message: reply.message.clone(),
                ..v1::PermissionDecision::default()
            };
            let outcome = if reply.allow {
                InputDecision::Allowed
            } else {
                InputDecision::Denied
            };
            Ok((outcome, decision.encode_to_vec()))
        }
        Given::Question(reply) => {
            validate::count("question.labels", reply.labels.len(), limits::ANSWER_LABELS)?;
            for (index, label) in reply.labels.iter().enumerate() {
                validate::not_blank("question.labels", label, limits::OPTION_LABEL)?;
                if reply.labels[..index].contains(label) {
                    return Err(invalid_field("question.labels", InvalidReason::Duplicate).into());
                }
            }
            validate::text("question.text", &reply.text, limits::ANSWER)?;
            if reply.labels.is_empty() && reply.text.trim().is_empty() {
                return Err(invalid_field("question.text", InvalidReason::Blank).into());
            }
            let answer = v1::QuestionAnswer {
                labels: reply.labels.clone(),
                text: reply.text.clone(),
                ..v1::QuestionAnswer::default()
            };
            Ok((InputDecision::Replied, answer.encode_to_vec()))
        }
    }
}

/// An answer applies only to what the answerer saw: the attempt and the exact tool arguments.
fn refuse_stale(
    request: &v1::AnswerRequest,
    attempt: &AttemptRecord,
    input: &InputRecord,
) -> Result<(), ApiFault> {
    if !request.attempt_id.is_empty() {
        let expected: AttemptId = validate::id("attempt_id", &request.attempt_id)?;
        if expected != attempt.id {
            return Err(ApiFault::StaleAnswer);
        }
    }
    let expected = &request.tool_input_sha256;
    if input.kind == InputKind::Permission && !expected.is_empty() && **expected != input.digest {
        return Err(ApiFault::StaleAnswer);
    }
    Ok(())
}

/// The answer must be one of those offered. A closed input no longer stores its options; then the
/// core decides whether the answer equals the one that was given.
fn refuse_mismatched(given: &Given, input: &InputRecord) -> ValidationResult<()> {
    let open = !input.payload.is_empty();
    match (given, input.kind) {
        (Given::Permission(_), InputKind::Question)
        | (Given::Question(_), InputKind::Permission) => {
            let with = "the kind of the input";
            Err(invalid_field("answer", InvalidReason::Conflict { with }))
        }
        (Given::Permission(reply), InputKind::Permission) if open => {
            let request = v1::PermissionRequest::decode(&*input.payload).unwrap_or_default();
            let for_attempt = reply.allow && reply.scope() == v1::PermissionScope::Attempt;
            if for_attempt && !request.can_allow_for_attempt {
                return Err(invalid_field("permission.scope", InvalidReason::OnceOnly));
            }
            Ok(())
        }
        (Given::Question(reply), InputKind::Question) if open => {
            let question = v1::Question::decode(&*input.payload).unwrap_or_default();
            refuse_unoffered(reply, &question)
        }
        (Given::Permission(_), InputKind::Permission)
        | (Given::Question(_), InputKind::Question) => Ok(()),
    }
}

fn refuse_unoffered(reply: &v1::QuestionReply, question: &v1::Question) -> ValidationResult<()> {
    let offered = |label: &String| question.options.iter().any(|option| option.label == *label);
    if !reply.labels.iter().all(offered) {
        return Err(invalid_field("question.labels", InvalidReason::NotOffered));
    }
    if reply.labels.len() > 1 && !question.multi_select {
        let (items, limit) = (reply.labels.len(), 1);
        return Err(invalid_field(
            "question.labels",
            InvalidReason::TooMany { items, limit },
        ));
    }
    let free_text = question.options.is_empty() || question.allow_free_text;
    if !reply.text.is_empty() && !free_text {
        return Err(invalid_field("question.text", InvalidReason::NotOffered));
    }
    Ok(())
}

pub(crate) fn find_input(
    record: &TaskRecord,
    input: InputId,
) -> Option<(&AttemptRecord, &InputRecord)> {
    record.attempts.iter().rev().find_map(|attempt| {
        let found = attempt.inputs.iter().find(|known| known.id == input)?;
        Some((attempt, found))
    })
}
