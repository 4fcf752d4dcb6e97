//! The `Tasks` service: submit, get, list, watch, read output and cancel. Calls about goals are in
//! `goal.rs`.

pub(crate) mod goal;
pub(crate) mod list;
pub(crate) mod output;
pub(crate) mod submit;
pub(crate) mod watch;

use std::sync::Arc;
use std::time::Duration;

use baton_core::commands::{CancelTask, SubmitTask, SubmittedTask};
use baton_core::ids::{AttemptId, TaskId};
use baton_core::io::command::Command;
use baton_core::io::rejection::Rejection;
use baton_core::record::TaskRecord;
use baton_core::task::spec::TaskSpec;
use baton_proto::v1;
use baton_proto::v1::submit_many_result::Result as RowResult;
use baton_proto::v1::tasks_server::Tasks;
use prost::Message;
use sha2::{Digest, Sha256};
use tonic::{Request, Response, Status};

use super::error::fault::{ApiFault, EntityKind};
use super::error::status;
use super::request::paging;
use super::request::paging::PageTokenCodec;
use super::request::streams::ResponseStream;
use super::request::validate;
use super::request::validate::{InvalidReason, invalid_field};
use super::request::{batch, caller_trace, limits};
use super::wire::task;
use super::wire::task::TaskDetail;
use super::{Api, actor, optional_reason, run_unary};
use crate::auth::Principal;
use crate::dispatcher::RequestRefusal;
use crate::reader::{RecordReader, StoredTask};
use submit::CheckedSubmission;

/// A submission that finds the queue full waits this long before each of a few more tries.
const ADMISSION_WAIT: Duration = Duration::from_millis(50);
const ADMISSION_TRIES: u32 = 5;

#[tonic::async_trait]
impl Tasks for Api {
    async fn submit(
        &self,
        mut request: Request<v1::SubmitRequest>,
    ) -> Result<Response<v1::SubmitResponse>, Status> {
        caller_trace::inherit_traceparent(&mut request, std::slice::from_mut);
        run_unary(request, |who, request| self.submit_task(who, request)).await
    }

    async fn submit_many(
        &self,
        mut request: Request<v1::SubmitManyRequest>,
    ) -> Result<Response<v1::SubmitManyResponse>, Status> {
        caller_trace::inherit_traceparent(&mut request, |many| &mut many.tasks);
        run_unary(request, |who, request| self.submit_batch(who, request)).await
    }

    async fn get(
        &self,
        request: Request<v1::GetTaskRequest>,
    ) -> Result<Response<v1::GetTaskResponse>, Status> {
        run_unary(request, |who, request| self.handle_get_task(who, request)).await
    }

    async fn list(
        &self,
        request: Request<v1::ListTasksRequest>,
    ) -> Result<Response<v1::ListTasksResponse>, Status> {
        run_unary(request, |who, request| self.list_tasks(who, request)).await
    }

    async fn watch(
        &self,
        request: Request<v1::WatchTaskRequest>,
    ) -> Result<Response<ResponseStream<v1::WatchTaskResponse>>, Status> {
        run_unary(request, |who, request| self.watch_task(who, request)).await
    }

    async fn read_output(
        &self,
        request: Request<v1::ReadOutputRequest>,
    ) -> Result<Response<ResponseStream<v1::ReadOutputResponse>>, Status> {
        run_unary(request, |who, request| {
            self.handle_read_output(who, request)
        })
        .await
    }

    async fn cancel(
        &self,
        request: Request<v1::CancelTaskRequest>,
    ) -> Result<Response<v1::CancelTaskResponse>, Status> {
        run_unary(request, |who, request| self.cancel_task(who, request)).await
    }

    async fn list_checkpoints(
        &self,
        request: Request<v1::ListCheckpointsRequest>,
    ) -> Result<Response<v1::ListCheckpointsResponse>, Status> {
        run_unary(request, |who, request| {
            self.handle_list_checkpoints(who, request)
        })
        .await
    }

    async fn update_progress(
        &self,
        request: Request<v1::UpdateProgressRequest>,
    ) -> Result<Response<v1::UpdateProgressResponse>, Status> {
        run_unary(request, |who, request| {
            self.handle_update_progress(who, request)
        })
        .await
    }

    async fn block(
        &self,
        request: Request<v1::BlockTaskRequest>,
    ) -> Result<Response<v1::BlockTaskResponse>, Status> {
        run_unary(request, |who, request| self.block_task(who, request)).await
    }

    async fn resume(
        &self,
        request: Request<v1::ResumeTaskRequest>,
    ) -> Result<Response<v1::ResumeTaskResponse>, Status> {
        run_unary(request, |who, request| self.resume_task(who, request)).await
    }

    async fn list_blocked(
        &self,
        request: Request<v1::ListBlockedRequest>,
    ) -> Result<Response<v1::ListBlockedResponse>, Status> {
        run_unary(request, |who, request| {
            self.handle_list_blocked(who, request)
        })
        .await
    }

    async fn get_blocked(
        &self,
        request: Request<v1::GetBlockedRequest>,
    ) -> Result<Response<v1::GetBlockedResponse>, Status> {
        run_unary(request, |who, request| {
            self.handle_get_blocked(who, request)
        })
        .await
    }
}

impl Api {
    async fn submit_task(
        &self,
        who: Principal,
        request: v1::SubmitRequest,
    ) -> Result<v1::SubmitResponse, ApiFault> {
        let digest = submission_digest(&request);
        let spec = match self.check_submission(&who, request, digest).await? {
            CheckedSubmission::New(spec) => spec,
            CheckedSubmission::Existing(task) => {
                return self.existing_task_response(&who, task).await;
            }
        };
        let submitted = self.submit_with_retry(&spec, digest, |submit| submit);
        let SubmittedTask { record, created } = submitted.await?;
        let spec = if created {
            spec
        } else {
            self.stored_spec(&spec, &record).await?
        };
        Ok(self.submit_response(&spec, &record, created))
    }

    fn submit_response(
        &self,
        spec: &TaskSpec,
        record: &TaskRecord,
        created: bool,
    ) -> v1::SubmitResponse {
        let task = task::task_message(spec, record, &self.config, TaskDetail::NewestAttempt);
        v1::SubmitResponse {
            task: Some(task),
            existed: !created,
        }
    }

    async fn existing_task_response(
        &self,
        who: &Principal,
        task: TaskId,
    ) -> Result<v1::SubmitResponse, ApiFault> {
        let tenant = who.tenant.clone();
        let stored = self
            .read_store(move |reader| reader.newest_task(&tenant, task))
            .await?;
        let (spec, record) = stored.ok_or(ApiFault::NotFound(EntityKind::Task))?;
        Ok(self.submit_response(&spec, &record, false))
    }

    async fn submit_batch(
        &self,
        who: Principal,
        request: v1::SubmitManyRequest,
    ) -> Result<v1::SubmitManyResponse, ApiFault> {
        validate::count("tasks", request.tasks.len(), limits::SUBMIT_MANY_ROWS)?;
        if request.tasks.is_empty() {
            return Err(invalid_field("tasks", InvalidReason::Missing).into());
        }
        // A row with an idempotency key may be a repeat, which is accepted even if the disk is
        // full. `check_submission` decides that for each row.
        if request
            .tasks
            .iter()
            .all(|row| row.idempotency_key.is_empty())
        {
            self.check_disk_space()?;
        }
        let rows = request
            .tasks
            .into_iter()
            .map(|row| self.submit_task(who.clone(), row));
        let row = |outcome: Result<v1::SubmitResponse, ApiFault>| v1::SubmitManyResult {
            result: Some(match outcome {
                Ok(accepted) => RowResult::Accepted(accepted),
                Err(fault) => RowResult::Error(status::detail(&fault)),
            }),
        };
        let results = batch::join_in_order(rows)
            .await
            .into_iter()
            .map(row)
            .collect();
        Ok(v1::SubmitManyResponse { results })
    }

    /// Retries a few times while the queue is full, then returns the refusal.
    pub(super) async fn submit_with_retry<C: Command>(
        &self,
        spec: &Arc<TaskSpec>,
        digest: [u8; 32],
        command: impl Fn(SubmitTask) -> C,
    ) -> Result<C::Reply, RequestRefusal> {
        let body_pin = self.dispatcher.store_body(&spec.prompt).await?;
        let mut tries = 1;
        loop {
            let (spec, task) = (spec.clone(), TaskId(self.ids.next_id()));
            let submit = command(SubmitTask { task, spec, digest });
            match self
                .dispatcher
                .request_with_body(submit, body_pin.clone())
                .await
            {
                Err(RequestRefusal::Rejected(Rejection::QueueFull(_)))
                    if tries < ADMISSION_TRIES =>
                {
                    tries += 1;
                    tokio::time::sleep(ADMISSION_WAIT).await;
                }
                other => return other,
            }
        }
    }

    /// The stored spec of a repeated submission: its reply shows what the first one defined.
    async fn stored_spec(
        &self,
        sent: &Arc<TaskSpec>,
        record: &TaskRecord,
    ) -> Result<Arc<TaskSpec>, ApiFault> {
        let (tenant, task) = (record.tenant.clone(), record.task);
        let stored = self
            .read_store(move |reader| reader.spec(&tenant, task))
            .await?;
        Ok(stored.unwrap_or_else(|| sent.clone()))
    }

    async fn handle_get_task(
        &self,
        who: Principal,
        request: v1::GetTaskRequest,
    ) -> Result<v1::GetTaskResponse, ApiFault> {
        let task = validate::id("task_id", &request.task_id)?;
        let (spec, record) = self.stored_task(&who, task).await?;
        let view = if request.include_spec {
            TaskDetail::WithSpec
        } else {
            TaskDetail::AllAttempts
        };
        let mut task = task::task_message(&spec, &record, &self.config, view);
        self.fill_output(&mut task);
        task.progress = self.progress_of(&record).await?;
        let paused = |reader: &RecordReader| (reader.scheduler(), reader.pauses());
        let (scheduler, pauses) = self.read_store(paused).await?;
        let now = self.clock.now().wall;
        task::fill_wait_reason(&mut task, &record, &scheduler, &pauses, now);
        Ok(v1::GetTaskResponse { task: Some(task) })
    }

    /// Fills in the fields that only the output log has: the durable offset and the cut bytes.
    pub(super) fn fill_output(&self, task: &mut v1::Task) {
        for attempt in &mut task.attempts {
            self.fill_attempt(attempt);
        }
    }

    pub(super) fn fill_attempt(&self, attempt: &mut v1::Attempt) {
        let id = attempt.attempt_id.parse::<AttemptId>();
        let end = id.ok().and_then(|id| self.output.end(id.0));
        if let (Some(view), Some(end)) = (attempt.output.as_mut(), end) {
            // In the log, a cut of unknown length has a placeholder length (`open_bytes`), which
            // must not count as output.
            let known = end.durable - end.open_bytes;
            view.ends_open = end.open_bytes > 0;
            view.bytes = if view.ends_open {
                known
            } else {
                view.bytes.max(known)
            };
            view.cut_bytes = end.cut_bytes - end.open_bytes;
            view.durable_offset = end.durable;
        }
    }

    /// A task that the caller may see. Any other task gets the same fault as one that does not
    /// exist.
    pub(super) async fn stored_task(
        &self,
        who: &Principal,
        task: TaskId,
    ) -> Result<StoredTask, ApiFault> {
        let tenant = who.tenant.clone();
        let stored = self
            .read_store(move |reader| reader.newest_task(&tenant, task))
            .await?;
        let visible = stored.filter(|(spec, _)| who.can_see(spec));
        visible.ok_or(ApiFault::NotFound(EntityKind::Task))
    }

    async fn list_tasks(
        &self,
        who: Principal,
        request: v1::ListTasksRequest,
    ) -> Result<v1::ListTasksResponse, ApiFault> {
        let size = paging::page_size(request.page_size)?;
        let paging = self.page_tokens(&who, "tasks", &list::filter_bytes(&request));
        let before = paging.position_id(&request.page_token)?.map(TaskId);
        let filter = list::TaskFilter::new(request, &who)?;
        let tenant = who.tenant.clone();
        let page = move |reader: &RecordReader| {
            let found = filter.page(reader, &tenant, before, size);
            (found, reader.scheduler(), reader.pauses())
        };
        let (found, scheduler, pauses) = self.read_store(page).await?;
        let now = self.clock.now().wall;
        let task = |(spec, record): &StoredTask| {
            let mut task =
                task::task_message(spec, record, &self.config, TaskDetail::NewestAttempt);
            task::fill_wait_reason(&mut task, record, &scheduler, &pauses, now);
            task
        };
        Ok(v1::ListTasksResponse {
            tasks: found.tasks.iter().map(task).collect(),
            next_page_token: found
                .next
                .map(|id| paging.token(id.0.as_bytes()))
                .unwrap_or_default(),
            skipped: found.unreadable,
        })
    }

    pub(super) fn page_tokens(
        &self,
        who: &Principal,
        list: &str,
        conditions: &[u8],
    ) -> PageTokenCodec {
        PageTokenCodec::new(self.config.incarnation.0, &who.tenant, list, conditions)
    }

    pub(super) async fn cancel_task(
        &self,
        who: Principal,
        request: v1::CancelTaskRequest,
    ) -> Result<v1::CancelTaskResponse, ApiFault> {
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        let reason = optional_reason(request.reason)?;
        let (tenant, by) = (who.tenant.clone(), actor(&who));
        let cancel = CancelTask {
            tenant,
            task,
            by,
            reason,
        };
        let canceled = self.dispatcher.request(cancel).await?;
        let task = self.current_task_message(&canceled.record).await?;
        Ok(v1::CancelTaskResponse {
            task: Some(task),
            already_finished: canceled.already_finished,
        })
    }

    pub(super) async fn current_task_message(
        &self,
        record: &TaskRecord,
    ) -> Result<v1::Task, ApiFault> {
        let (tenant, task) = (record.tenant.clone(), record.task);
        let spec = self
            .read_store(move |reader| reader.spec(&tenant, task))
            .await?;
        let spec = spec.ok_or(ApiFault::Unreadable)?;
        let mut task = task::task_message(&spec, record, &self.config, TaskDetail::AllAttempts);
        self.fill_output(&mut task);
        Ok(task)
    }
}

/// The digest of the spec as sent; zeroes without an idempotency key, which alone needs it. Maps
/// are encoded in sorted order, so equal specs have equal digests.
pub(super) fn submission_digest(request: &v1::SubmitRequest) -> [u8; 32] {
    match &request.spec {
        Some(spec) if !request.idempotency_key.is_empty() => {
            Sha256::digest(spec.encode_to_vec()).into()
        }
        Some(_) | None => [0; 32],
    }
}
