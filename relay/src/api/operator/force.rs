//! Operator commands on tasks: one task at a time, or one command on many. The reason is checked
//! before any lookup. The core decides what a command may do.

use std::collections::BTreeSet;
use std::sync::Arc;

use baton_core::goal::completion_contract;
use baton_core::ids::{AttemptId, TaskId};
use baton_core::io::rejection::Rejection;
use baton_core::operator::task_operation::{OperateTask, TaskOperation};
use baton_proto::v1::bulk_force_result::Result as RowResult;
use baton_proto::{codes, v1};

use crate::api::error::fault::ApiFault;
use crate::api::error::status;
use crate::api::request::validate;
use crate::api::request::validate::{InvalidReason, ValidationResult, invalid_field};
use crate::api::request::{batch, limits};
use crate::api::{Api, actor, required_reason};
use crate::auth::Principal;

impl Api {
    pub(crate) async fn handle_force_release(
        &self,
        who: Principal,
        request: v1::ForceReleaseRequest,
    ) -> Result<v1::ForceReleaseResponse, ApiFault> {
        let reason = required_reason(&request.reason)?;
        let task = validate::id("task_id", &request.task_id)?;
        let attempt = expected_attempt(&request.attempt_id)?;
        let verb = TaskOperation::ForceRelease { attempt };
        let task = self.operate_task(&who, task, reason, verb).await?;
        Ok(v1::ForceReleaseResponse { task: Some(task) })
    }

    pub(crate) async fn handle_force_fail(
        &self,
        who: Principal,
        request: v1::ForceFailRequest,
    ) -> Result<v1::ForceFailResponse, ApiFault> {
        let reason = required_reason(&request.reason)?;
        let task = validate::id("task_id", &request.task_id)?;
        let attempt = expected_attempt(&request.attempt_id)?;
        let verb = TaskOperation::ForceFail { attempt };
        let task = self.operate_task(&who, task, reason, verb).await?;
        Ok(v1::ForceFailResponse { task: Some(task) })
    }

    pub(crate) async fn handle_retry_task(
        &self,
        who: Principal,
        request: v1::RetryTaskRequest,
    ) -> Result<v1::RetryTaskResponse, ApiFault> {
        let reason = required_reason(&request.reason)?;
        let task = validate::id("task_id", &request.task_id)?;
        let allow_unsafe = request.allow_unsafe;
        self.check_disk_space()?;
        let verb = TaskOperation::Retry { allow_unsafe };
        let task = self.operate_task(&who, task, reason, verb).await?;
        let newest = task.attempts.last();
        let attempt_id = newest.map(|attempt| attempt.attempt_id.clone());
        Ok(v1::RetryTaskResponse {
            task: Some(task),
            attempt_id: attempt_id.unwrap_or_default(),
        })
    }

    pub(crate) async fn handle_complete_task(
        &self,
        who: Principal,
        request: v1::CompleteTaskRequest,
    ) -> Result<v1::CompleteTaskResponse, ApiFault> {
        let reason = required_reason(&request.reason)?;
        let task = validate::id("task_id", &request.task_id)?;
        if request.result.len() > codes::MAX_RESULT_BYTES {
            let limit = limits::TextLimit::Bytes(codes::MAX_RESULT_BYTES);
            return Err(invalid_field("result", InvalidReason::TooLong { limit }).into());
        }
        let verb = TaskOperation::Complete {
            overridden: request.r#override,
            result: (!request.result.is_empty()).then(|| Arc::from(&request.result[..])),
        };
        match self.operate_task(&who, task, reason, verb).await {
            Err(ApiFault::Refused(Rejection::ContractUnmet)) => {
                let (spec, record) = self.stored_task(&who, task).await?;
                let newest = record.newest_attempt().ok_or(ApiFault::Internal)?;
                Err(ApiFault::MissingFiles(
                    completion_contract::unmet_task_requirements(&spec, newest),
                ))
            }
            task => Ok(v1::CompleteTaskResponse { task: Some(task?) }),
        }
    }

    /// Runs the command on all tasks at once. Each row succeeds or fails on its own.
    pub(crate) async fn handle_bulk_force(
        &self,
        who: Principal,
        request: v1::BulkForceRequest,
    ) -> Result<v1::BulkForceResponse, ApiFault> {
        let reason = required_reason(&request.reason)?;
        let verb = validate::enumeration("verb", request.verb)?;
        if verb == v1::ForceVerb::Unspecified {
            return Err(invalid_field("verb", InvalidReason::Missing).into());
        }
        check_distinct("task_ids", &request.task_ids)?;
        if verb == v1::ForceVerb::Retry {
            self.check_disk_space()?;
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
        let results = batch::join_in_order(rows).await;
        Ok(v1::BulkForceResponse { results })
    }

    async fn force_row(
        &self,
        who: &Principal,
        task_id: &str,
        reason: &Arc<str>,
        verb: v1::ForceVerb,
        allow_unsafe: bool,
    ) -> Result<v1::Task, ApiFault> {
        let task: TaskId = validate::id("task_id", task_id)?;
        let verb = match verb {
            v1::ForceVerb::Unspecified => {
                return Err(invalid_field("verb", InvalidReason::Missing).into());
            }
            v1::ForceVerb::Cancel => {
                let request = v1::CancelTaskRequest {
                    task_id: task_id.to_owned(),
                    reason: reason.to_string(),
                };
                let answer = self.cancel_task(who.clone(), request).await?;
                return answer.task.ok_or(ApiFault::Internal);
            }
            v1::ForceVerb::Release => TaskOperation::ForceRelease { attempt: None },
            v1::ForceVerb::Fail => TaskOperation::ForceFail { attempt: None },
            v1::ForceVerb::Retry => TaskOperation::Retry { allow_unsafe },
        };
        self.operate_task(who, task, Arc::clone(reason), verb).await
    }

    async fn operate_task(
        &self,
        who: &Principal,
        task: TaskId,
        reason: Arc<str>,
        verb: TaskOperation,
    ) -> Result<v1::Task, ApiFault> {
        let operate = operate_command(who, task, reason, verb);
        let operated = self.dispatcher.request(operate).await?;
        self.current_task_message(&operated.record).await
    }
}

/// The core's command, logged. The core writes the audit record; the log line shows operators of
/// the relay what was requested, without the result.
pub(crate) fn operate_command(
    who: &Principal,
    task: TaskId,
    reason: Arc<str>,
    verb: TaskOperation,
) -> OperateTask {
    let (tenant, by) = (who.tenant.clone(), actor(who));
    tracing::info!(task_id = %task, by = %by.name, %reason, verb = verb.name(), "operator command on a task");
    OperateTask {
        tenant,
        task,
        by,
        reason,
        operation: verb,
    }
}

/// The attempt that the caller expects to be current, if the request names one.
fn expected_attempt(attempt_id: &str) -> ValidationResult<Option<AttemptId>> {
    if attempt_id.is_empty() {
        return Ok(None);
    }
    validate::id("attempt_id", attempt_id).map(Some)
}

fn check_distinct(field: &str, ids: &[String]) -> ValidationResult<()> {
    if ids.is_empty() {
        return Err(invalid_field(field, InvalidReason::Missing));
    }
    validate::count(field, ids.len(), limits::BULK_FORCE_ROWS)?;
    let distinct: BTreeSet<&String> = ids.iter().collect();
    if distinct.len() < ids.len() {
        return Err(invalid_field(field, InvalidReason::Duplicate));
    }
    Ok(())
}
