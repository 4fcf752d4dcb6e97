//! An answer to an input: whether it fits what was asked, what is kept of it, and who was quicker.

use baton_core::id::{AttemptId, InputId, TaskId};
use baton_core::input::Input;
use baton_core::record::{AttemptRecord, Decision, InputKind, InputRecord, TaskRecord};
use baton_core::reject::Rejection;
use baton_proto::v1;
use baton_proto::v1::answer_request::Answer as Given;
use prost::Message;

use super::fault::{Fault, Thing};
use super::validate::{self, Checked, Why, invalid};
use super::{Api, actor, asked, limits};
use crate::auth::Principal;

impl Api {
    pub(super) async fn answer_input(
        &self,
        who: Principal,
        request: v1::AnswerRequest,
    ) -> Result<v1::AnswerResponse, Fault> {
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        let input: InputId = validate::id("input_id", &request.input_id)?;
        let given = validate::present("answer", request.answer.clone())?;
        let (decision, payload) = checked(&given)?;
        let (spec, record) = self.stored_task(&who, task).await?;
        let (attempt, waiting) = find(&record, input).ok_or(Fault::NotFound(Thing::Input))?;
        refuse_stale(&request, attempt, waiting)?;
        refuse_unfit(&given, waiting)?;
        let already_answered = waiting.state.answer().is_some();
        let (tenant, by) = (who.tenant.clone(), actor(&who));
        let ask = move |request| Input::Answer {
            request,
            tenant,
            task,
            input,
            by,
            decision,
            payload: payload.into(),
            finished: None,
        };
        let after = match self.task_after(ask).await {
            Err(Fault::Refused(Rejection::AnswerConflict)) => {
                return Err(self.outrun(&who, task, input).await);
            }
            after => after?,
        };
        let (attempt, answered) = find(&after, input).ok_or(Fault::Internal)?;
        Ok(v1::AnswerResponse {
            input: Some(asked::shown(&spec, &after, attempt, answered)),
            already_answered,
        })
    }

    /// Who answered otherwise, and when.
    async fn outrun(&self, who: &Principal, task: TaskId, input: InputId) -> Fault {
        let Ok((_, record)) = self.stored_task(who, task).await else {
            return Fault::Refused(Rejection::AnswerConflict);
        };
        let given = find(&record, input).and_then(|(_, input)| input.state.answer());
        match given {
            Some(given) => Fault::AnsweredOtherwise {
                by: given.by.to_string(),
                at: given.at,
                decision: given.decision,
            },
            None => Fault::Refused(Rejection::AnswerConflict),
        }
    }
}

/// What the core keeps of an answer: the decision, and the words for the agent as the wire has them.
fn checked(given: &Given) -> Result<(Decision, Vec<u8>), Fault> {
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
                Decision::Allowed
            } else {
                Decision::Denied
            };
            Ok((said, decision.encode_to_vec()))
        }
        Given::Question(reply) => {
            validate::count("question.labels", reply.labels.len(), limits::ANSWER_LABELS)?;
            for (place, label) in reply.labels.iter().enumerate() {
                validate::not_blank("question.labels", label, limits::OPTION_LABEL)?;
                if reply.labels[..place].contains(label) {
                    return Err(invalid("question.labels", Why::Duplicate).into());
                }
            }
            validate::text("question.text", &reply.text, limits::ANSWER)?;
            if reply.labels.is_empty() && reply.text.trim().is_empty() {
                return Err(invalid("question.text", Why::Blank).into());
            }
            let answer = v1::QuestionAnswer {
                labels: reply.labels.clone(),
                text: reply.text.clone(),
                ..v1::QuestionAnswer::default()
            };
            Ok((Decision::Replied, answer.encode_to_vec()))
        }
    }
}

/// An answer is bound to what the answerer saw: the attempt and the exact arguments.
fn refuse_stale(
    request: &v1::AnswerRequest,
    attempt: &AttemptRecord,
    asked: &InputRecord,
) -> Result<(), Fault> {
    if !request.attempt_id.is_empty() {
        let seen: AttemptId = validate::id("attempt_id", &request.attempt_id)?;
        if seen != attempt.id {
            return Err(Fault::StaleAnswer);
        }
    }
    let seen = &request.tool_input_sha256;
    if asked.kind == InputKind::Permission && !seen.is_empty() && **seen != asked.digest {
        return Err(Fault::StaleAnswer);
    }
    Ok(())
}

/// The answer must be one of those that were offered. What is closed is not there to compare with: then the core
/// says whether it is the answer that was given.
fn refuse_unfit(given: &Given, asked: &InputRecord) -> Checked<()> {
    let open = !asked.payload.is_empty();
    match (given, asked.kind) {
        (Given::Permission(_), InputKind::Question)
        | (Given::Question(_), InputKind::Permission) => {
            let with = "the kind of the input";
            Err(invalid("answer", Why::Conflict { with }))
        }
        (Given::Permission(reply), InputKind::Permission) if open => {
            let request = v1::PermissionRequest::decode(&*asked.payload).unwrap_or_default();
            let wide = reply.allow && reply.scope() == v1::PermissionScope::Attempt;
            if wide && !request.can_allow_for_attempt {
                return Err(invalid("permission.scope", Why::OnceOnly));
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

fn refuse_unoffered(reply: &v1::QuestionReply, question: &v1::Question) -> Checked<()> {
    let offered = |label: &String| question.options.iter().any(|option| option.label == *label);
    if !reply.labels.iter().all(offered) {
        return Err(invalid("question.labels", Why::NotOffered));
    }
    if reply.labels.len() > 1 && !question.multi_select {
        let (items, limit) = (reply.labels.len(), 1);
        return Err(invalid("question.labels", Why::TooMany { items, limit }));
    }
    let free = question.options.is_empty() || question.allow_free_text;
    if !reply.text.is_empty() && !free {
        return Err(invalid("question.text", Why::NotOffered));
    }
    Ok(())
}

pub(super) fn find(record: &TaskRecord, input: InputId) -> Option<(&AttemptRecord, &InputRecord)> {
    record.attempts.iter().rev().find_map(|attempt| {
        let found = attempt.inputs.iter().find(|known| known.id == input)?;
        Some((attempt, found))
    })
}
