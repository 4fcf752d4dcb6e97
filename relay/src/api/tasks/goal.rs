//! Calls about a task's goal: progress, checkpoints, the list of parked tasks, block and resume.
//!
//! Reasons are checked first, before ids are parsed.

use std::cmp::Reverse;
use std::sync::Arc;

use baton_core::StoredTasks;
use baton_core::commands::{
    BlockTask, BlockedTask, ListParkedTasks, ResumeTask, UpdateProgress, UpdatedProgress,
};
use baton_core::goal::parked_tasks::ParkedListCursor;
use baton_core::goal::progress::{BlockDraft, SanitizedText};
use baton_core::ids::{AttemptId, TaskId};
use baton_core::io::rejection::Rejection;
use baton_core::record::{
    AttemptRecord, AttentionCause, ProgressRecord, ResumeInstructions, TaskRecord,
};
use baton_core::task::spec::TaskSpec;
use baton_core::time::WallTime;
use baton_proto::v1;
use uuid::Uuid;

use crate::api::error::fault::ApiFault;
use crate::api::request::limits;
use crate::api::request::limits::TextLimit;
use crate::api::request::paging;
use crate::api::request::validate;
use crate::api::request::validate::{InvalidReason, ValidationResult, invalid_field};
use crate::api::wire::goal;
use crate::api::wire::task;
use crate::api::{Api, actor, required_reason};
use crate::auth::Principal;
use crate::dispatcher::RequestRefusal;
use crate::reader::RecordReader;

/// A parked task with its stored progress.
type ParkedTaskRow = (Arc<TaskRecord>, Arc<TaskSpec>, Option<Arc<ProgressRecord>>);

impl Api {
    pub(crate) async fn handle_update_progress(
        &self,
        who: Principal,
        request: v1::UpdateProgressRequest,
    ) -> Result<v1::UpdateProgressResponse, ApiFault> {
        let update = validate::present("update", request.update)?;
        check_update(&update)?;
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        self.check_disk_space()?;
        let update = SanitizedText::new(goal::progress_from_wire(update));
        let tenant = who.tenant.clone();
        let add = UpdateProgress {
            tenant,
            task,
            update: Box::new(update),
        };
        let updated = self.dispatcher.request_goal_update(add, who.token).await?;
        let UpdatedProgress { record, progress } = updated;
        let task = self.task_after_progress(&record, Some(progress)).await?;
        Ok(v1::UpdateProgressResponse { task: Some(task) })
    }

    pub(crate) async fn block_task(
        &self,
        who: Principal,
        request: v1::BlockTaskRequest,
    ) -> Result<v1::BlockTaskResponse, ApiFault> {
        let reason = required_reason(&request.reason)?;
        let hint = validate::optional("resume_hint", request.resume_hint, limits::REASON)?;
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        let block = SanitizedText::new(BlockDraft {
            reason,
            hint: hint.map(Into::into),
            checkpoint: None,
        });
        let (tenant, by) = (who.tenant.clone(), actor(&who));
        let block = BlockTask {
            tenant,
            task,
            by,
            block: Box::new(block),
        };
        let BlockedTask { record, progress } = self.dispatcher.request(block).await?;
        let task = self.task_after_progress(&record, progress).await?;
        Ok(v1::BlockTaskResponse { task: Some(task) })
    }

    /// The task's message after a goal update. Unreadable progress is left out.
    async fn task_after_progress(
        &self,
        record: &TaskRecord,
        progress: Option<Arc<ProgressRecord>>,
    ) -> Result<v1::Task, ApiFault> {
        let mut task = self.current_task_message(record).await?;
        if let Some(progress) = progress {
            task.progress = Some(goal::progress(&progress, record.checkpoint_count));
        }
        Ok(task)
    }

    pub(crate) async fn resume_task(
        &self,
        who: Principal,
        request: v1::ResumeTaskRequest,
    ) -> Result<v1::ResumeTaskResponse, ApiFault> {
        let resume = Box::new(resume_request(&who, &request)?);
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        let attempt: Option<AttemptId> = match &*request.attempt_id {
            "" => None,
            attempt => Some(validate::id("attempt_id", attempt)?),
        };
        let tenant = who.tenant.clone();
        let resume = ResumeTask {
            tenant,
            task,
            resume,
            attempt,
        };
        let record = match self.dispatcher.request(resume).await {
            Ok(record) => record,
            Err(RequestRefusal::Rejected(Rejection::HandedOff)) => {
                return Err(self.resumed_by_fault(&who, task, attempt).await);
            }
            Err(refusal) => return Err(refusal.into()),
        };
        let task = self.current_task_message(&record).await?;
        Ok(v1::ResumeTaskResponse {
            task: Some(task),
            attempt_id: record
                .newest_attempt()
                .map(|newest| newest.id.to_string())
                .unwrap_or_default(),
        })
    }

    /// The fault for an attempt that another caller resumed or picked up, with that caller's
    /// name. If it happened more than once, the attempt that this caller saw decides.
    pub(crate) async fn resumed_by_fault(
        &self,
        who: &Principal,
        task: TaskId,
        seen: Option<AttemptId>,
    ) -> ApiFault {
        let Ok((_, record)) = self.stored_task(who, task).await else {
            return ApiFault::Refused(Rejection::HandedOff);
        };
        let matches = |attempt: &&AttemptRecord| seen.is_none_or(|seen| attempt.id == seen);
        let attempts = record.attempts.iter().rev().filter(matches);
        let mut takers = attempts.filter_map(|attempt| attempt.handed_off_to.as_deref());
        match takers.next().map(str::to_owned) {
            Some(by) => ApiFault::ResumedBy { by },
            None => ApiFault::Refused(Rejection::HandedOff),
        }
    }

    pub(crate) async fn handle_list_blocked(
        &self,
        who: Principal,
        request: v1::ListBlockedRequest,
    ) -> Result<v1::ListBlockedResponse, ApiFault> {
        let scope = validate::optional("agent_scope", request.agent_scope, limits::NAME)?;
        // An agent sees only the tasks that it may pick up.
        let agent_scope: Option<Arc<str>> = who.agent_scope.clone().or(scope.map(Into::into));
        let (default, max) = (limits::BLOCKED_PAGE_DEFAULT, limits::PAGE_MAX);
        let size = paging::page_size_within(request.page_size, default, max)?;
        let causes = parse_causes(&request.causes)?;
        let mut conditions: Vec<u8> = request
            .causes
            .iter()
            .flat_map(|cause| cause.to_be_bytes())
            .collect();
        conditions.extend_from_slice(agent_scope.as_deref().unwrap_or_default().as_bytes());
        let paging = self.page_tokens(&who, "blocked", &conditions);
        let after = paging.position(&request.page_token)?;
        let after = after
            .map(|position| parse_parked_position(&position))
            .transpose()?;
        let tenant = who.tenant.clone();
        // One row more than the page shows whether there is a next page.
        let list = ListParkedTasks {
            tenant,
            causes,
            agent_scope,
            after,
            limit: size + 1,
        };
        let found = self.dispatcher.request(list).await?;
        let rows = self
            .read_store(move |reader| load_progress(found, reader))
            .await?;
        let now = self.clock.now().wall;
        let rows = rows.iter().map(|row| {
            (
                parked_position(&row.0),
                Some(blocked_task_message(row, now)),
            )
        });
        let (tasks, last) = paging::cut_page(rows, size);
        let next = last.flatten().map(|position| paging.token(&position));
        Ok(v1::ListBlockedResponse {
            tasks,
            next_page_token: next.unwrap_or_default(),
        })
    }

    pub(crate) async fn handle_get_blocked(
        &self,
        who: Principal,
        request: v1::GetBlockedRequest,
    ) -> Result<v1::GetBlockedResponse, ApiFault> {
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        let (spec, record) = self.stored_task(&who, task).await?;
        if record.attention.is_none() {
            return Err(ApiFault::Refused(Rejection::NotParked));
        }
        let (tenant, newest) = (who.tenant.clone(), record.checkpoint_count);
        let read = move |reader: &RecordReader| {
            let progress = reader.progress(&tenant, task).ok().flatten();
            (progress, reader.checkpoint(&tenant, task, newest))
        };
        let (progress, checkpoint) = self.read_store(read).await?;
        let mut task_message = self.current_task_message(&record).await?;
        task_message.progress = progress
            .as_deref()
            .map(|progress| goal::progress(progress, newest));
        let now = self.clock.now().wall;
        Ok(v1::GetBlockedResponse {
            blocked: Some(blocked_task_message(&(record, spec, progress), now)),
            task: Some(task_message),
            checkpoint: checkpoint.as_deref().map(goal::checkpoint),
        })
    }

    pub(crate) async fn handle_list_checkpoints(
        &self,
        who: Principal,
        request: v1::ListCheckpointsRequest,
    ) -> Result<v1::ListCheckpointsResponse, ApiFault> {
        let max = u32::try_from(baton_core::goal::progress::MAX_CHECKPOINTS).unwrap_or(u32::MAX);
        let size = paging::page_size_within(request.page_size, max, max)?;
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        let paging = self.page_tokens(&who, "checkpoints", task.0.as_bytes());
        let before = match paging.position(&request.page_token)? {
            Some(number) => Some(parse_number(&number)?),
            None => None,
        };
        let (_, record) = self.stored_task(&who, task).await?;
        let (tenant, total) = (who.tenant.clone(), record.checkpoint_count);
        // A checkpoint may be stored before its task record; only those counted in the record are
        // listed.
        let upto = before.map_or(total, |before| total.min(before.saturating_sub(1)));
        let list = move |reader: &RecordReader| reader.checkpoints(&tenant, task, upto, size + 1);
        let found = self.read_store(list).await?;
        let rows = found.iter();
        let rows = rows.map(|record| (record.number, Some(goal::checkpoint(record))));
        let (checkpoints, last) = paging::cut_page(rows, size);
        Ok(v1::ListCheckpointsResponse {
            checkpoints,
            next_page_token: last
                .map(|number| paging.token(&number.to_be_bytes()))
                .unwrap_or_default(),
            total,
        })
    }

    /// The stored progress of a task; none before its first update.
    pub(crate) async fn progress_of(
        &self,
        record: &TaskRecord,
    ) -> Result<Option<v1::Progress>, ApiFault> {
        let (tenant, task) = (record.tenant.clone(), record.task);
        let progress = self
            .read_store(move |reader| reader.progress(&tenant, task))
            .await?
            .ok()
            .flatten();
        Ok(progress.map(|progress| goal::progress(&progress, record.checkpoint_count)))
    }
}

fn load_progress(
    found: Vec<(Arc<TaskRecord>, Arc<TaskSpec>)>,
    reader: &RecordReader,
) -> Vec<ParkedTaskRow> {
    let row = |(record, spec): (Arc<TaskRecord>, Arc<TaskSpec>)| {
        // An unreadable progress record is counted; the row is still listed.
        let progress = reader.progress(&record.tenant, record.task).ok().flatten();
        (record, spec, progress)
    };
    found.into_iter().map(row).collect()
}

fn blocked_task_message(
    (record, spec, progress): &ParkedTaskRow,
    now: WallTime,
) -> v1::BlockedTask {
    let attention = record.attention.as_ref();
    v1::BlockedTask {
        task_id: record.task.to_string(),
        attempt_id: record
            .newest_attempt()
            .map(|newest| newest.id.to_string())
            .unwrap_or_default(),
        goal: spec.goal.clone(),
        attention: attention.map(|attention| task::attention_message(record, attention)),
        summary: progress
            .as_ref()
            .map(|progress| progress.summary.to_string())
            .unwrap_or_default(),
        age_ms: attention.map_or(0, |attention| now.0.saturating_sub(attention.since.0)),
        agent: spec.agent.clone(),
        agent_scope: spec.agent_scope.clone().unwrap_or_default(),
    }
}

fn resume_request(
    who: &Principal,
    request: &v1::ResumeTaskRequest,
) -> Result<ResumeInstructions, ApiFault> {
    let reason = required_reason(&request.reason)?;
    validate::text(
        "instructions",
        &request.instructions,
        limits::RESUME_INSTRUCTIONS,
    )?;
    let field = "answers";
    validate::count(field, request.answers.len(), limits::RESUME_ANSWERS)?;
    let sizes = request.answers.iter();
    let sizes = sizes.map(|answer| answer.question.len() + answer.answer.len());
    validate::total(field, sizes, limits::RESUME_ANSWERS_BYTES)?;
    let limit = TextLimit::Bytes(limits::RESUME_ANSWERS_BYTES);
    for answer in &request.answers {
        validate::text(field, &answer.question, limit)?;
        validate::not_blank(field, &answer.answer, limit)?;
    }
    let pair =
        |sent: &v1::ResumeAnswer| (sent.question.as_str().into(), sent.answer.as_str().into());
    Ok(ResumeInstructions {
        by: Arc::clone(&who.name),
        reason,
        instructions: request.instructions.as_str().into(),
        answers: request.answers.iter().map(pair).collect(),
    })
}

pub(crate) fn check_update(update: &v1::ProgressUpdate) -> ValidationResult<()> {
    let v1::ProgressUpdate {
        summary,
        completed_items,
        failed_items,
        cursor,
        evidence,
    } = update;
    let has_text = summary.is_some() || cursor.is_some();
    if !has_text && completed_items.is_empty() && failed_items.is_empty() && evidence.is_empty() {
        return Err(invalid_field("update", InvalidReason::Missing));
    }
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    validate::text("update.summary", &text(summary), limits::SUMMARY)?;
    validate::text("update.cursor", &text(cursor), limits::CURSOR)?;
    validate::count(
        "update.completed_items",
        completed_items.len(),
        limits::MAX_ITEMS,
    )?;
    for item in completed_items {
        validate::not_blank("update.completed_items", item, limits::ITEM)?;
    }
    validate::count("update.failed_items", failed_items.len(), limits::MAX_ITEMS)?;
    for failed in failed_items {
        validate::not_blank("update.failed_items.item", &failed.item, limits::ITEM)?;
        validate::text(
            "update.failed_items.reason",
            &failed.reason,
            limits::ITEM_REASON,
        )?;
    }
    check_evidence("update.evidence", evidence)
}

/// For progress updates and for checkpoints.
pub(crate) fn check_evidence(field: &str, evidence: &[v1::Evidence]) -> ValidationResult<()> {
    validate::count(field, evidence.len(), limits::MAX_EVIDENCE)?;
    for one in evidence {
        validate::text(&format!("{field}.kind"), &one.kind, limits::EVIDENCE_KIND)?;
        validate::not_blank(&format!("{field}.ref"), &one.r#ref, limits::EVIDENCE_REF)?;
        let summary = format!("{field}.summary");
        validate::text(&summary, &one.summary, limits::EVIDENCE_SUMMARY)?;
    }
    Ok(())
}

fn parse_causes(numbers: &[i32]) -> ValidationResult<Vec<AttentionCause>> {
    validate::count("causes", numbers.len(), limits::MAX_FILTER_STATES)?;
    let one = |number: &i32| {
        let cause: v1::AttentionCause = validate::enumeration("causes", *number)?;
        match cause {
            v1::AttentionCause::Unspecified => Err(invalid_field(
                "causes",
                InvalidReason::UnknownEnumValue { number: *number },
            )),
            v1::AttentionCause::Blocked => Ok(AttentionCause::Blocked),
            v1::AttentionCause::Starved => Ok(AttentionCause::Starved),
            v1::AttentionCause::UnsafeLoss => Ok(AttentionCause::UnsafeLoss),
            v1::AttentionCause::Poison => Ok(AttentionCause::Poison),
            v1::AttentionCause::InputTimeout => Ok(AttentionCause::InputTimeout),
            v1::AttentionCause::ReceiptsMissing => Ok(AttentionCause::ReceiptsMissing),
        }
    };
    numbers.iter().map(one).collect()
}

/// The position of a parked task in the list: the time it was parked, then its id.
fn parked_position(record: &TaskRecord) -> Option<Vec<u8>> {
    let since = record.attention.as_ref()?.since;
    let mut position = since.0.to_be_bytes().to_vec();
    position.extend_from_slice(record.task.0.as_bytes());
    Some(position)
}

fn parse_parked_position(position: &[u8]) -> ValidationResult<ParkedListCursor> {
    let parsed = position.split_first_chunk::<8>().and_then(|(since, task)| {
        let task = Uuid::from_slice(task).ok()?;
        Some((Reverse(WallTime(u64::from_be_bytes(*since))), TaskId(task)))
    });
    parsed.ok_or_else(paging::bad_token)
}

fn parse_number(position: &[u8]) -> ValidationResult<u64> {
    let number: Option<[u8; 8]> = position.try_into().ok();
    number.map(u64::from_be_bytes).ok_or_else(paging::bad_token)
}
