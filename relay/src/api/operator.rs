//! The operators' service: look inside, retry, pause, profiles, tokens, and who the relay is.

use baton_core::effects::{DeadlineView, Reply, TaskView, WaitsFor};
use baton_core::id::{RequestId, TaskId, TenantScope};
use baton_core::input::Input;
use baton_core::record::{TaskRecord, TaskState};
use baton_core::spec::TaskSpec;
use baton_core::time::Wall;
use baton_proto::v1;
use baton_proto::v1::operator_server::Operator;
use tonic::{Request, Response, Status, Streaming};

use super::convert::{self, View};
use super::fault::Fault;
use super::streams::Answers;
use super::tasks::unexpected;
use super::validate::{self, Why, invalid};
use super::{Api, actor, asked, events, optional_reason, required_reason, unary};
use crate::auth::Principal;
use crate::dispatcher::Refusal;
use crate::wire::{timestamp, words};

/// Events that Inspect shows.
const RECENT_EVENTS: usize = 50;

#[tonic::async_trait]
impl Operator for Api {
    async fn inspect(
        &self,
        request: Request<v1::InspectRequest>,
    ) -> Result<Response<v1::InspectResponse>, Status> {
        unary(request, |who, request| self.look_inside(who, request)).await
    }

    async fn retry_task(
        &self,
        request: Request<v1::RetryTaskRequest>,
    ) -> Result<Response<v1::RetryTaskResponse>, Status> {
        unary(request, |who, request| self.retry(who, request)).await
    }

    async fn pause(
        &self,
        request: Request<v1::PauseRequest>,
    ) -> Result<Response<v1::PauseResponse>, Status> {
        unary(request, |who, request| self.pause_target(who, request)).await
    }

    async fn unpause(
        &self,
        request: Request<v1::UnpauseRequest>,
    ) -> Result<Response<v1::UnpauseResponse>, Status> {
        unary(request, |who, request| self.unpause_target(who, request)).await
    }

    async fn release_inherited(
        &self,
        request: Request<v1::ReleaseInheritedRequest>,
    ) -> Result<Response<v1::ReleaseInheritedResponse>, Status> {
        unary(request, |who, request| self.end_hold(who, request)).await
    }

    async fn put_profile(
        &self,
        request: Request<v1::PutProfileRequest>,
    ) -> Result<Response<v1::PutProfileResponse>, Status> {
        unary(request, |who, request| self.keep_profile(who, request)).await
    }

    async fn list_profiles(
        &self,
        request: Request<v1::ListProfilesRequest>,
    ) -> Result<Response<v1::ListProfilesResponse>, Status> {
        unary(request, |who, _| self.list_profiles_of(who)).await
    }

    async fn delete_profile(
        &self,
        request: Request<v1::DeleteProfileRequest>,
    ) -> Result<Response<v1::DeleteProfileResponse>, Status> {
        unary(request, |who, request| self.drop_profile(who, request)).await
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        unary(request, |who, request| self.make_token(who, request)).await
    }

    async fn list_tokens(
        &self,
        request: Request<v1::ListTokensRequest>,
    ) -> Result<Response<v1::ListTokensResponse>, Status> {
        unary(request, |who, request| {
            std::future::ready(self.list_tokens_of(&who, &request))
        })
        .await
    }

    async fn revoke_token(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> Result<Response<v1::RevokeTokenResponse>, Status> {
        unary(request, |who, request| self.end_token(who, request)).await
    }

    async fn export(
        &self,
        request: Request<v1::ExportRequest>,
    ) -> Result<Response<Answers<v1::ExportResponse>>, Status> {
        unary(request, |who, request| {
            std::future::ready(self.export_all(&who, &request))
        })
        .await
    }

    async fn import(
        &self,
        request: Request<Streaming<v1::ImportRequest>>,
    ) -> Result<Response<Answers<v1::ImportResponse>>, Status> {
        unary(request, |who, chunks| self.import_all(who, chunks)).await
    }

    async fn verify(
        &self,
        request: Request<v1::VerifyRequest>,
    ) -> Result<Response<Answers<v1::VerifyResponse>>, Status> {
        unary(request, |who, request| {
            std::future::ready(self.verify_all(&who, &request))
        })
        .await
    }

    async fn relay_info(
        &self,
        request: Request<v1::RelayInfoRequest>,
    ) -> Result<Response<v1::RelayInfoResponse>, Status> {
        unary(request, |who, _| std::future::ready(Ok(self.info(&who)))).await
    }
}

impl Api {
    async fn look_inside(
        &self,
        who: Principal,
        request: v1::InspectRequest,
    ) -> Result<v1::InspectResponse, Fault> {
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        let tenant = who.tenant.clone();
        let ask = move |request| Input::Inspect {
            request,
            tenant,
            task,
        };
        match self.dispatcher.request(ask).await {
            Ok(Reply::Inspected(view)) => Ok(self.inspected(&view)),
            // The core holds live tasks only; a finished one is read from the store.
            Err(Refusal::Rejected(_)) => {
                let (spec, record) = self.stored_task(&who.tenant, task).await?;
                Ok(self.inspected(&TaskView {
                    record,
                    spec,
                    deadlines: Vec::new(),
                    waits_for: None,
                    waits_ms: None,
                    unmet: None,
                }))
            }
            other => Err(unexpected(other)),
        }
    }

    fn inspected(&self, view: &TaskView) -> v1::InspectResponse {
        let (spec, record): (&TaskSpec, &TaskRecord) = (&view.spec, &view.record);
        let newest = record.newest();
        let attempt_id = newest
            .map(|attempt| attempt.id.to_string())
            .unwrap_or_default();
        let open = newest.filter(|attempt| attempt.state.end().is_none());
        let mut task = convert::task(spec, record, &self.config, View::Whole);
        self.fill_output(&mut task);
        if let Some(waits) = view.waits_for {
            task.waits_for = waits_for(waits).into();
            let now = self.clock.now().wall;
            let until = |left_ms: u64| timestamp(Wall(now.0.saturating_add(left_ms)));
            task.waits_until = view.waits_ms.map(until);
        }
        let (next_action, text) = next_action(record, view.waits_for);
        let next_action_text = match (view.waits_for, &view.unmet) {
            (Some(WaitsFor::Daemon), Some(need)) => {
                format!("no connected daemon {need}; start one that does, or cancel the task")
            }
            _told_by_its_state => text.to_owned(),
        };
        let events = events::after(spec, record, 0);
        let recent = events.len().saturating_sub(RECENT_EVENTS);
        v1::InspectResponse {
            task: Some(task),
            current_attempt_id: open
                .map(|attempt| attempt.id.to_string())
                .unwrap_or_default(),
            timers: view
                .deadlines
                .iter()
                .map(|timer| armed(timer, &attempt_id))
                .collect(),
            inputs: asked::open_of(spec, record),
            recent_events: events.into_iter().skip(recent).collect(),
            diagnostics: Vec::new(),
            next_action: next_action.into(),
            next_action_text,
            fence_remaining_ms: view.waits_ms.filter(|_| is_fenced(view.waits_for)),
        }
    }

    async fn retry(
        &self,
        who: Principal,
        request: v1::RetryTaskRequest,
    ) -> Result<v1::RetryTaskResponse, Fault> {
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        let reason = optional_reason(request.reason)?;
        self.admit()?;
        let (_, record) = self.stored_task(&who.tenant, task).await?;
        if !request.allow_unsafe && may_have_had_effects(&record) {
            return Err(Fault::UnsafeRetry);
        }
        let (tenant, by) = (who.tenant.clone(), actor(&who));
        let ask = move |request| Input::Retry {
            request,
            tenant,
            task,
            by,
            reason,
            finished: None,
        };
        let record = self.task_after(ask).await?;
        let newest = record.newest().map(|attempt| attempt.id.to_string());
        Ok(v1::RetryTaskResponse {
            task: Some(self.shown(&record).await?),
            attempt_id: newest.unwrap_or_default(),
        })
    }

    async fn pause_target(
        &self,
        who: Principal,
        request: v1::PauseRequest,
    ) -> Result<v1::PauseResponse, Fault> {
        use v1::pause_request::Target;
        let reason = required_reason(&request.reason)?;
        let by = actor(&who);
        match validate::present("target", request.target)? {
            Target::TaskId(id) => {
                let task: TaskId = validate::id("task_id", &id)?;
                let already_paused = self
                    .stored_task(&who.tenant, task)
                    .await?
                    .1
                    .paused
                    .is_some();
                let tenant = who.tenant.clone();
                self.change(move |request| Input::PauseTask {
                    request,
                    tenant,
                    task,
                    by,
                    reason,
                })
                .await?;
                Ok(v1::PauseResponse { already_paused })
            }
            Target::Tenant(_) => Err(TENANT_PAUSE),
            Target::Scheduler(all) => {
                everything(&who, all)?;
                self.change(move |request| Input::PauseScheduler {
                    request,
                    by,
                    reason,
                })
                .await?;
                Ok(v1::PauseResponse {
                    already_paused: false,
                })
            }
        }
    }

    async fn unpause_target(
        &self,
        who: Principal,
        request: v1::UnpauseRequest,
    ) -> Result<v1::UnpauseResponse, Fault> {
        use v1::unpause_request::Target;
        optional_reason(request.reason)?;
        let by = actor(&who);
        let outcome = match validate::present("target", request.target)? {
            Target::TaskId(id) => {
                let task: TaskId = validate::id("task_id", &id)?;
                let tenant = who.tenant.clone();
                self.change(move |request| Input::UnpauseTask {
                    request,
                    tenant,
                    task,
                    by,
                })
                .await
            }
            Target::Tenant(_) => Err(TENANT_PAUSE),
            Target::Scheduler(all) => {
                everything(&who, all)?;
                self.change(move |request| Input::UnpauseScheduler { request, by })
                    .await
            }
        };
        // Idempotent: what is not paused is as it should be.
        let was_paused = match outcome {
            Ok(()) => true,
            Err(Fault::Refused(baton_core::reject::Rejection::NotPaused)) => false,
            Err(fault) => return Err(fault),
        };
        Ok(v1::UnpauseResponse { was_paused })
    }

    /// All tenants' work is held alike, so nobody of one tenant alone may let it go.
    async fn end_hold(
        &self,
        who: Principal,
        request: v1::ReleaseInheritedRequest,
    ) -> Result<v1::ReleaseInheritedResponse, Fault> {
        let reason = required_reason(&request.reason)?;
        everything(&who, true)?;
        let (by, why) = (actor(&who), reason.clone());
        let ask = move |request| Input::ReleaseInherited {
            request,
            by,
            reason,
        };
        match self.dispatcher.request(ask).await {
            Ok(Reply::Released { tasks }) => {
                tracing::warn!(by = %who.name, reason = %why, tasks, "inherited tasks were released");
                Ok(v1::ReleaseInheritedResponse { released: tasks })
            }
            other => Err(unexpected(other)),
        }
    }

    async fn change(
        &self,
        ask: impl FnOnce(RequestId) -> Input + Send + 'static,
    ) -> Result<(), Fault> {
        match self.dispatcher.request(ask).await {
            Ok(Reply::Done | Reply::Task(_)) => Ok(()),
            other => Err(unexpected(other)),
        }
    }
}

const TENANT_PAUSE: Fault = Fault::NotBuilt {
    what: "pausing a tenant",
};

/// All dispatching belongs to nobody's tenant alone.
fn everything(who: &Principal, all: bool) -> Result<(), Fault> {
    if !all {
        return Err(invalid("scheduler", Why::Blank).into());
    }
    all_tenants(who)
}

/// What concerns every tenant is for credentials that reach every tenant.
pub(super) fn all_tenants(who: &Principal) -> Result<(), Fault> {
    match &who.scope {
        TenantScope::One(_) => Err(Fault::ForeignTenant),
        TenantScope::All => Ok(()),
    }
}

fn may_have_had_effects(record: &TaskRecord) -> bool {
    record.newest().is_some_and(|attempt| !attempt.retry_safe)
}

fn armed(deadline: &DeadlineView, attempt_id: &str) -> v1::ArmedTimer {
    let input = deadline.input.map(|input| input.to_string());
    let subject = deadline.tool.as_ref().map(ToString::to_string).or(input);
    v1::ArmedTimer {
        kind: words::timer(deadline.timer).into(),
        attempt_id: attempt_id.to_owned(),
        limit_ms: 0,
        remaining_ms: deadline.remaining_ms,
        paused: deadline.at.is_none(),
        subject: subject.unwrap_or_default(),
        fires_at: deadline.at.map(timestamp),
    }
}

fn waits_for(waits: WaitsFor) -> v1::WaitsFor {
    match waits {
        WaitsFor::Daemon => v1::WaitsFor::Daemon,
        WaitsFor::Agent => v1::WaitsFor::Agent,
        WaitsFor::Backoff => v1::WaitsFor::Backoff,
        WaitsFor::Fence => v1::WaitsFor::Fence,
        WaitsFor::Conversation => v1::WaitsFor::Conversation,
        WaitsFor::Pause => v1::WaitsFor::Pause,
        WaitsFor::Person => v1::WaitsFor::Person,
        WaitsFor::Inheritance => v1::WaitsFor::Inheritance,
        WaitsFor::Space => v1::WaitsFor::Space,
    }
}

/// Whether an earlier attempt of it may still run, be it one that this relay does not know.
fn is_fenced(waits: Option<WaitsFor>) -> bool {
    matches!(waits, Some(WaitsFor::Fence | WaitsFor::Inheritance))
}

fn next_action(record: &TaskRecord, waits: Option<WaitsFor>) -> (v1::NextAction, &'static str) {
    use v1::NextAction;
    match (record.state, waits) {
        (_, Some(WaitsFor::Daemon)) => (
            NextAction::WaitingForDaemon,
            "every daemon that may take it is busy, draining or resting; wait, or start another",
        ),
        (_, Some(WaitsFor::Agent)) => (
            NextAction::Dispatchable,
            "it waits for an agent of its scope to claim it",
        ),
        (_, Some(WaitsFor::Backoff | WaitsFor::Fence | WaitsFor::Conversation)) => (
            NextAction::WaitingForTime,
            "nothing to do: it goes on by itself",
        ),
        (_, Some(WaitsFor::Inheritance)) => (
            NextAction::WaitingForTime,
            "it was inherited and may still run on machines of before; it goes on by itself, or at once with \
             `baton release-inherited` when those are down",
        ),
        (_, Some(WaitsFor::Space)) => (
            NextAction::WaitingForTime,
            "the relay's disk is nearly full; it goes on by itself when there is room (`baton info` shows how much is \
             missing)",
        ),
        (_, Some(WaitsFor::Pause)) => (NextAction::UnpauseRequired, "unpause it"),
        (TaskState::Running, Some(WaitsFor::Person)) => {
            (NextAction::WaitingForInput, "answer what is asked")
        }
        (_, Some(WaitsFor::Person)) | (TaskState::NeedsAttention, None) => (
            NextAction::ResumeRequired,
            "look at why it stopped, then retry or cancel it",
        ),
        (TaskState::Running, None) => (NextAction::Running, "nothing to do: it runs"),
        (TaskState::Pending | TaskState::Queued, None) => (
            NextAction::Dispatchable,
            "nothing to do: it will be dispatched",
        ),
        (TaskState::Failed | TaskState::TimedOut | TaskState::Lost, None) => (
            NextAction::RetryPossible,
            "it ended without a result; it can be retried",
        ),
        (TaskState::Completed | TaskState::Canceled, None) => {
            (NextAction::Terminal, "nothing to do: it is finished")
        }
    }
}
