//! An answer to an input: whether it fits what was asked, what is kept of it, and who was quicker.

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

    /// Who answered otherwise, and when.
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

/// What the core keeps of an answer: the decision, and the words for the agent as the wire has them.
fn parse_answer(given: &Given) -> Result<(InputDecision, Vec<u8>), ApiFault> {
    match given {
        Given::Permission(reply) => {
            let scope = validate::enumeration("permission.scope", reply.scope)?;
            validate::text("permission.message", &reply.message, limits::REASON)?;
            let scope = match scope {
                v1::PermissionScope::Attempt if reply.allow => v1::PermissionScope::Attempt,
                // A refusal is for the one call, and so is what does not say how far it reaches.
                v1::PermissionScope::Attempt
                | v1::PermissionScope::Once
                | v1::PermissionScope::Unspecified => v1::PermissionScope::Once,
            };
            let decision = v1::PermissionDecision {
                scope: scope.into(),
                message: reply.message.clone(),
                ..v1::PermissionDecision::default()
            };
            let said = if reply.allow {
                InputDecision::Allowed
            } else {
                InputDecision::Denied
            };
            Ok((said, decision.encode_to_vec()))
        }
        Given::Question(reply) => {
            validate::count("question.labels", reply.labels.len(), limits::ANSWER_LABELS)?;
            for (place, label) in reply.labels.iter().enumerate() {
                validate::not_blank("question.labels", label, limits::OPTION_LABEL)?;
                if reply.labels[..place].contains(label) {
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

/// An answer is bound to what the answerer saw: the attempt and the exact arguments.
fn refuse_stale(
    request: &v1::AnswerRequest,
    attempt: &AttemptRecord,
    asked: &InputRecord,
) -> Result<(), ApiFault> {
    if !request.attempt_id.is_empty() {
        let seen: AttemptId = validate::id("attempt_id", &request.attempt_id)?;
        if seen != attempt.id {
            return Err(ApiFault::StaleAnswer);
        }
    }
    let seen = &request.tool_input_sha256;
    if asked.kind == InputKind::Permission && !seen.is_empty() && **seen != asked.digest {
        return Err(ApiFault::StaleAnswer);
    }
    Ok(())
}

/// The answer must be one of those that were offered. What is closed is not there to compare with: then the core
/// says whether it is the answer that was given.
fn refuse_mismatched(given: &Given, asked: &InputRecord) -> ValidationResult<()> {
    let open = !asked.payload.is_empty();
    match (given, asked.kind) {
        (Given::Permission(_), InputKind::Question)
        | (Given::Question(_), InputKind::Permission) => {
            let with = "the kind of the input";
            Err(invalid_field("answer", InvalidReason::Conflict { with }))
        }
        (Given::Permission(reply), InputKind::Permission) if open => {
            let request = v1::PermissionRequest::decode(&*asked.payload).unwrap_or_default();
            let wide = reply.allow && reply.scope() == v1::PermissionScope::Attempt;
            if wide && !request.can_allow_for_attempt {
                return Err(invalid_field("permission.scope", InvalidReason::OnceOnly));
            }
            Ok(())
        }
        (Given::Question(reply), InputKind::Question) if open => {
            let question = v1::Question::decode(&*asked.payload).unwrap_or_default();
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
    let free = question.options.is_empty() || question.allow_free_text;
    if !reply.text.is_empty() && !free {
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
