//! Operators' verbs on tasks: one at a time, or one verb on many. The reason is checked before anything is looked up; what a
//! verb may do is the core's to say.

use std::collections::BTreeSet;
use std::sync::Arc;

use baton_core::contract;
use baton_core::force::{Operate, Verb};
use baton_core::id::{AttemptId, TaskId};
use baton_core::input::Input;
use baton_core::reject::Rejection;
use baton_proto::v1::bulk_force_result::Result as RowResult;
use baton_proto::{codes, v1};

use super::fault::Fault;
use super::validate::{self, Checked, Why, invalid};
use super::{Api, actor, batch, limits, required_reason, status};
use crate::auth::Principal;

impl Api {
    pub(super) async fn release_by_force(
        &self,
        who: Principal,
        request: v1::ForceReleaseRequest,
    ) -> Result<v1::ForceReleaseResponse, Fault> {
        let reason = required_reason(&request.reason)?;
        let task = validate::id("task_id", &request.task_id)?;
        let attempt = seen(&request.attempt_id)?;
        let verb = Verb::ForceRelease { attempt };
        let task = self.operated(&who, task, reason, verb).await?;
        Ok(v1::ForceReleaseResponse { task: Some(task) })
    }

    pub(super) async fn fail_by_force(
        &self,
        who: Principal,
        request: v1::ForceFailRequest,
    ) -> Result<v1::ForceFailResponse, Fault> {
        let reason = required_reason(&request.reason)?;
        let task = validate::id("task_id", &request.task_id)?;
        let attempt = seen(&request.attempt_id)?;
        let verb = Verb::ForceFail { attempt };
        let task = self.operated(&who, task, reason, verb).await?;
        Ok(v1::ForceFailResponse { task: Some(task) })
    }

    pub(super) async fn retry(
        &self,
        who: Principal,
        request: v1::RetryTaskRequest,
    ) -> Result<v1::RetryTaskResponse, Fault> {
        let reason = required_reason(&request.reason)?;
        let task = validate::id("task_id", &request.task_id)?;
        let allow_unsafe = request.allow_unsafe;
        self.admit()?;
        let verb = Verb::Retry { allow_unsafe };
        let task = self.operated(&who, task, reason, verb).await?;
        let newest = task.attempts.last();
        let attempt_id = newest.map(|attempt| attempt.attempt_id.clone());
        Ok(v1::RetryTaskResponse {
            task: Some(task),
            attempt_id: attempt_id.unwrap_or_default(),
        })
    }

    pub(super) async fn complete_by_hand(
        &self,
        who: Principal,
        request: v1::CompleteTaskRequest,
    ) -> Result<v1::CompleteTaskResponse, Fault> {
        let reason = required_reason(&request.reason)?;
        let task = validate::id("task_id", &request.task_id)?;
        if request.result.len() > codes::RESULT_BYTES {
            let limit = limits::Size::Bytes(codes::RESULT_BYTES);
            return Err(invalid("result", Why::TooLong { limit }).into());
        }
        let verb = Verb::Complete {
            overridden: request.r#override,
            result: (!request.result.is_empty()).then(|| Arc::from(&request.result[..])),
        };
        match self.operated(&who, task, reason, verb).await {
            Err(Fault::Refused(Rejection::ContractUnmet)) => {
                let (spec, record) = self.stored_task(&who, task).await?;
                let newest = record.newest().ok_or(Fault::Internal)?;
                Err(Fault::Unmet(contract::unmet(&spec, newest)))
            }
            task => Ok(v1::CompleteTaskResponse { task: Some(task?) }),
        }
    }

    /// Each row on its own, all of them in one go; what is wrong with one says nothing about the others.
    pub(super) async fn force_many(
        &self,
        who: Principal,
        request: v1::BulkForceRequest,
    ) -> Result<v1::BulkForceResponse, Fault> {
        let reason = required_reason(&request.reason)?;
        let verb = validate::enumeration("verb", request.verb)?;
        if verb == v1::ForceVerb::Unspecified {
            return Err(invalid("verb", Why::Missing).into());
        }
        different("task_ids", &request.task_ids)?;
        if verb == v1::ForceVerb::Retry {
            self.admit()?;
        }
        let (who, reason) = (&who, &reason);
        let rows = request.task_ids.into_iter().map(|task_id| async move {
            let outcome = self
                .force_row(who, &task_id, reason, verb, request.allow_unsafe)
                .await;
            let result = match outcome {
                Ok(task) => RowResult::Task(task),
                Err(fault) => RowResult::Error(status::detail(&fault)),
            };
            v1::BulkForceResult {
                task_id,
                result: Some(result),
            }
        });
        let results = batch::all(rows).await;
        Ok(v1::BulkForceResponse { results })
    }

    async fn force_row(
        &self,
        who: &Principal,
        task_id: &str,
        reason: &Arc<str>,
        verb: v1::ForceVerb,
        allow_unsafe: bool,
    ) -> Result<v1::Task, Fault> {
        let task: TaskId = validate::id("task_id", task_id)?;
        let verb = match verb {
            v1::ForceVerb::Unspecified => return Err(invalid("verb", Why::Missing).into()),
            v1::ForceVerb::Cancel => {
                let request = v1::CancelTaskRequest {
                    task_id: task_id.to_owned(),
                    reason: reason.to_string(),
                };
                let answer = self.cancel_task(who.clone(), request).await?;
                return answer.task.ok_or(Fault::Internal);
            }
            v1::ForceVerb::Release => Verb::ForceRelease { attempt: None },
            v1::ForceVerb::Fail => Verb::ForceFail { attempt: None },
            v1::ForceVerb::Retry => Verb::Retry { allow_unsafe },
        };
        self.operated(who, task, Arc::clone(reason), verb).await
    }

    async fn operated(
        &self,
        who: &Principal,
        task: TaskId,
        reason: Arc<str>,
        verb: Verb,
    ) -> Result<v1::Task, Fault> {
        let record = self.task_after(operate(who, task, reason, verb)).await?;
        self.shown(&record).await
    }
}

/// The same for everybody who has a verb. The audit is the core's; the log tells the relay's keeper what was asked, without results.
pub(super) fn operate(
    who: &Principal,
    task: TaskId,
    reason: Arc<str>,
    verb: Verb,
) -> impl FnOnce(baton_core::id::RequestId) -> Input + Send + 'static {
    let (tenant, by) = (who.tenant.clone(), actor(who));
    tracing::info!(task_id = %task, by = %by.name, %reason, verb = verb.name(), "an operator's verb");
    move |request| {
        Input::Operate(Box::new(Operate {
            request,
            tenant,
            task,
            by,
            reason,
            verb,
            finished: None,
        }))
    }
}

/// The attempt that the caller saw, if they say so.
fn seen(attempt_id: &str) -> Checked<Option<AttemptId>> {
    if attempt_id.is_empty() {
        return Ok(None);
    }
    validate::id("attempt_id", attempt_id).map(Some)
}

fn different(field: &str, ids: &[String]) -> Checked<()> {
    if ids.is_empty() {
        return Err(invalid(field, Why::Missing));
    }
    validate::count(field, ids.len(), limits::BULK_FORCE)?;
    let once: BTreeSet<&String> = ids.iter().collect();
    if once.len() < ids.len() {
        return Err(invalid(field, Why::Duplicate));
    }
    Ok(())
}
