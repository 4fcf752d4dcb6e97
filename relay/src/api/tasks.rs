//! The clients' service: submit, look, follow, cancel. What it knows of goals is in `goals.rs`.

use std::sync::Arc;
use std::time::Duration;

use baton_core::effects::Reply;
use baton_core::id::{AttemptId, TaskId};
use baton_core::input::{Input, Submit};
use baton_core::record::TaskRecord;
use baton_core::reject::Rejection;
use baton_core::spec::TaskSpec;
use baton_proto::v1;
use baton_proto::v1::submit_many_result::Result as RowResult;
use baton_proto::v1::tasks_server::Tasks;
use prost::Message;
use sha2::{Digest, Sha256};
use tonic::{Request, Response, Status};

use super::convert::{self, View};
use super::fault::{Fault, Thing};
use super::paging::{self, Paging};
use super::streams::Answers;
use super::taking::Taken;
use super::validate::{self, Why, invalid};
use super::{Api, actor, batch, caller_trace, limits, listing, optional_reason, status, unary};
use crate::auth::Principal;
use crate::dispatcher::Refusal;
use crate::reader::{Reader, StoredTask};

/// A submission that meets full queues waits this long and tries again, a few times.
const ADMISSION_WAIT: Duration = Duration::from_millis(50);
const ADMISSION_TRIES: u32 = 5;

#[tonic::async_trait]
impl Tasks for Api {
    async fn submit(
        &self,
        mut request: Request<v1::SubmitRequest>,
    ) -> Result<Response<v1::SubmitResponse>, Status> {
        caller_trace::inherit(&mut request, std::slice::from_mut);
        unary(request, |who, request| self.accept(who, request)).await
    }

    async fn submit_many(
        &self,
        mut request: Request<v1::SubmitManyRequest>,
    ) -> Result<Response<v1::SubmitManyResponse>, Status> {
        caller_trace::inherit(&mut request, |many| &mut many.tasks);
        unary(request, |who, request| self.accept_many(who, request)).await
    }

    async fn get(
        &self,
        request: Request<v1::GetTaskRequest>,
    ) -> Result<Response<v1::GetTaskResponse>, Status> {
        unary(request, |who, request| self.show(who, request)).await
    }

    async fn list(
        &self,
        request: Request<v1::ListTasksRequest>,
    ) -> Result<Response<v1::ListTasksResponse>, Status> {
        unary(request, |who, request| self.list_tasks(who, request)).await
    }

    async fn watch(
        &self,
        request: Request<v1::WatchTaskRequest>,
    ) -> Result<Response<Answers<v1::WatchTaskResponse>>, Status> {
        unary(request, |who, request| self.watch_task(who, request)).await
    }

    async fn read_output(
        &self,
        request: Request<v1::ReadOutputRequest>,
    ) -> Result<Response<Answers<v1::ReadOutputResponse>>, Status> {
        unary(request, |who, request| self.output_of(who, request)).await
    }

    async fn cancel(
        &self,
        request: Request<v1::CancelTaskRequest>,
    ) -> Result<Response<v1::CancelTaskResponse>, Status> {
        unary(request, |who, request| self.cancel_task(who, request)).await
    }

    async fn list_checkpoints(
        &self,
        request: Request<v1::ListCheckpointsRequest>,
    ) -> Result<Response<v1::ListCheckpointsResponse>, Status> {
        unary(request, |who, request| self.checkpoints_of(who, request)).await
    }

    async fn update_progress(
        &self,
        request: Request<v1::UpdateProgressRequest>,
    ) -> Result<Response<v1::UpdateProgressResponse>, Status> {
        unary(request, |who, request| self.add_progress(who, request)).await
    }

    async fn block(
        &self,
        request: Request<v1::BlockTaskRequest>,
    ) -> Result<Response<v1::BlockTaskResponse>, Status> {
        unary(request, |who, request| self.block_task(who, request)).await
    }

    async fn resume(
        &self,
        request: Request<v1::ResumeTaskRequest>,
    ) -> Result<Response<v1::ResumeTaskResponse>, Status> {
        unary(request, |who, request| self.resume_task(who, request)).await
    }

    async fn list_blocked(
        &self,
        request: Request<v1::ListBlockedRequest>,
    ) -> Result<Response<v1::ListBlockedResponse>, Status> {
        unary(request, |who, request| self.blocked_tasks(who, request)).await
    }

    async fn get_blocked(
        &self,
        request: Request<v1::GetBlockedRequest>,
    ) -> Result<Response<v1::GetBlockedResponse>, Status> {
        unary(request, |who, request| self.blocked_task(who, request)).await
    }
}

impl Api {
    async fn accept(
        &self,
        who: Principal,
        request: v1::SubmitRequest,
    ) -> Result<v1::SubmitResponse, Fault> {
        let digest = digest(&request);
        let spec = match self.taken(&who, request, digest).await? {
            Taken::Anew(spec) => spec,
            Taken::Before(task) => return self.existing(&who, task).await,
        };
        let reply = self.hand_over(&spec, digest, Input::Submit).await;
        let (record, created) = match reply {
            Ok(Reply::Submitted { record, created }) => (record, created),
            other => return Err(unexpected(other)),
        };
        let spec = if created {
            spec
        } else {
            self.stored_spec(&spec, &record).await?
        };
        Ok(self.submitted(&spec, &record, created))
    }

    fn submitted(&self, spec: &TaskSpec, record: &TaskRecord, created: bool) -> v1::SubmitResponse {
        let task = convert::task(spec, record, &self.config, View::Newest);
        v1::SubmitResponse {
            task: Some(task),
            existed: !created,
        }
    }

    async fn existing(&self, who: &Principal, task: TaskId) -> Result<v1::SubmitResponse, Fault> {
        let tenant = who.tenant.clone();
        let stored = self
            .read(move |reader| reader.newest_task(&tenant, task))
            .await?;
        let (spec, record) = stored.ok_or(Fault::NotFound(Thing::Task))?;
        Ok(self.submitted(&spec, &record, false))
    }

    async fn accept_many(
        &self,
        who: Principal,
        request: v1::SubmitManyRequest,
    ) -> Result<v1::SubmitManyResponse, Fault> {
        validate::count("tasks", request.tasks.len(), limits::SUBMIT_MANY)?;
        if request.tasks.is_empty() {
            return Err(invalid("tasks", Why::Missing).into());
        }
        // Rows with a key may be known; each is asked on its own.
        if request
            .tasks
            .iter()
            .all(|row| row.idempotency_key.is_empty())
        {
            self.admit()?;
        }
        let rows = request
            .tasks
            .into_iter()
            .map(|row| self.accept(who.clone(), row));
        let row = |outcome: Result<v1::SubmitResponse, Fault>| v1::SubmitManyResult {
            result: Some(match outcome {
                Ok(accepted) => RowResult::Accepted(accepted),
                Err(fault) => RowResult::Error(status::detail(&fault)),
            }),
        };
        let results = batch::all(rows).await.into_iter().map(row).collect();
        Ok(v1::SubmitManyResponse { results })
    }

    /// Waits briefly where the queues are full, then lets the refusal stand.
    pub(super) async fn hand_over(
        &self,
        spec: &Arc<TaskSpec>,
        digest: [u8; 32],
        ask: impl Fn(Submit) -> Input + Clone + Send + 'static,
    ) -> Result<Reply, Refusal> {
        let kept = self.dispatcher.keep_body(&spec.prompt).await?;
        let mut tries = 1;
        loop {
            let (spec, task) = (spec.clone(), TaskId(self.ids.fresh()));
            let ask = ask.clone();
            let submit = move |request| {
                ask(Submit {
                    request,
                    task,
                    spec,
                    digest,
                    prior: Ok(None),
                })
            };
            match self.dispatcher.request_keeping(submit, kept.clone()).await {
                Err(Refusal::Rejected(Rejection::QueueFull(_))) if tries < ADMISSION_TRIES => {
                    tries += 1;
                    tokio::time::sleep(ADMISSION_WAIT).await;
                }
                other => return other,
            }
        }
    }

    /// A repeated submission is answered with what the first one fixed.
    async fn stored_spec(
        &self,
        sent: &Arc<TaskSpec>,
        record: &TaskRecord,
    ) -> Result<Arc<TaskSpec>, Fault> {
        let (tenant, task) = (record.tenant.clone(), record.task);
        let stored = self.read(move |reader| reader.spec(&tenant, task)).await?;
        Ok(stored.unwrap_or_else(|| sent.clone()))
    }

    async fn show(
        &self,
        who: Principal,
        request: v1::GetTaskRequest,
    ) -> Result<v1::GetTaskResponse, Fault> {
        let task = validate::id("task_id", &request.task_id)?;
        let (spec, record) = self.stored_task(&who, task).await?;
        let view = if request.include_spec {
            View::WithSpec
        } else {
            View::Whole
        };
        let mut task = convert::task(&spec, &record, &self.config, view);
        self.fill_output(&mut task);
        task.progress = self.progress_of(&record).await?;
        let paused = |reader: &Reader| (reader.scheduler(), reader.pauses());
        let (scheduler, pauses) = self.read(paused).await?;
        let now = self.clock.now().wall;
        convert::fill_hold(&mut task, &record, (&scheduler, &pauses), now);
        Ok(v1::GetTaskResponse { task: Some(task) })
    }

    /// What only the output log knows: how far output is durable, and how much of it was cut.
    pub(super) fn fill_output(&self, task: &mut v1::Task) {
        for attempt in &mut task.attempts {
            self.fill_attempt(attempt);
        }
    }

    pub(super) fn fill_attempt(&self, attempt: &mut v1::Attempt) {
        let id = attempt.attempt_id.parse::<AttemptId>();
        let end = id.ok().and_then(|id| self.output.end(id.0));
        if let (Some(view), Some(end)) = (attempt.output.as_mut(), end) {
            // A cut of unknown length has a length in the log, because everything there has.
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

    /// A task that the caller may see; any other one is not found like one that never was.
    pub(super) async fn stored_task(
        &self,
        who: &Principal,
        task: TaskId,
    ) -> Result<StoredTask, Fault> {
        let tenant = who.tenant.clone();
        let found = self
            .read(move |reader| reader.newest_task(&tenant, task))
            .await?;
        let seen = found.filter(|(spec, _)| who.sees(spec));
        seen.ok_or(Fault::NotFound(Thing::Task))
    }

    async fn list_tasks(
        &self,
        who: Principal,
        request: v1::ListTasksRequest,
    ) -> Result<v1::ListTasksResponse, Fault> {
        let size = paging::page_size(request.page_size)?;
        let paging = self.paging(&who, "tasks", &listing::conditions(&request));
        let before = paging.id(&request.page_token)?.map(TaskId);
        let filter = listing::Filter::new(request, &who)?;
        let tenant = who.tenant.clone();
        let page = move |reader: &Reader| {
            let found = filter.page(reader, &tenant, before, size);
            (found, reader.scheduler(), reader.pauses())
        };
        let (found, scheduler, pauses) = self.read(page).await?;
        let now = self.clock.now().wall;
        let task = |(spec, record): &StoredTask| {
            let mut task = convert::task(spec, record, &self.config, View::Newest);
            convert::fill_hold(&mut task, record, (&scheduler, &pauses), now);
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

    pub(super) fn paging(&self, who: &Principal, list: &str, conditions: &[u8]) -> Paging {
        Paging::new(self.config.incarnation.0, &who.tenant, list, conditions)
    }

    pub(super) async fn cancel_task(
        &self,
        who: Principal,
        request: v1::CancelTaskRequest,
    ) -> Result<v1::CancelTaskResponse, Fault> {
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        let reason = optional_reason(request.reason)?;
        let (tenant, by) = (who.tenant.clone(), actor(&who));
        let cancel = move |request| Input::Cancel {
            request,
            tenant,
            task,
            by,
            reason,
            finished: None,
        };
        let (record, already_finished) = match self.dispatcher.request(cancel).await {
            Ok(Reply::Task(record)) => (record, false),
            Ok(Reply::Finished(record)) => (record, true),
            other => return Err(unexpected(other)),
        };
        let task = self.shown(&record).await?;
        Ok(v1::CancelTaskResponse {
            task: Some(task),
            already_finished,
        })
    }

    /// Asks for a change of one task and waits for the task after it.
    pub(super) async fn task_after(
        &self,
        ask: impl FnOnce(baton_core::id::RequestId) -> Input + Send + 'static,
    ) -> Result<Arc<TaskRecord>, Fault> {
        match self.dispatcher.request(ask).await {
            Ok(Reply::Task(record)) => Ok(record),
            other => Err(unexpected(other)),
        }
    }

    pub(super) async fn shown(&self, record: &TaskRecord) -> Result<v1::Task, Fault> {
        let (tenant, task) = (record.tenant.clone(), record.task);
        let spec = self.read(move |reader| reader.spec(&tenant, task)).await?;
        let spec = spec.ok_or(Fault::Unreadable)?;
        let mut task = convert::task(&spec, record, &self.config, View::Whole);
        self.fill_output(&mut task);
        Ok(task)
    }
}

/// A reply of another kind than was asked for is the relay's own fault.
pub(super) fn unexpected(outcome: Result<Reply, Refusal>) -> Fault {
    match outcome {
        Err(refusal) => refusal.into(),
        Ok(reply) => {
            tracing::error!(?reply, "the core gave a reply of the wrong kind");
            Fault::Internal
        }
    }
}

/// Of the body as sent; maps are sorted on the wire, so equal bodies have equal digests. Only a key asks for it.
pub(super) fn digest(request: &v1::SubmitRequest) -> [u8; 32] {
    match &request.spec {
        Some(spec) if !request.idempotency_key.is_empty() => {
            Sha256::digest(spec.encode_to_vec()).into()
        }
        Some(_) | None => [0; 32],
    }
}
