//! The service of agents that hold a lease themselves: how they get one. What they say afterwards is in `held.rs`.
//!
//! The agent's scope and tenant come from its credential. The raw lease token is in one reply and in no log: nothing here
//! prints a reply.

use std::sync::Arc;

use baton_core::effects::{Grant, Reply};
use baton_core::id::{AttemptId, TaskId};
use baton_core::input::{Agent, Input};
use baton_core::record::{CallMark, TaskRecord};
use baton_core::reject::Rejection;
use baton_proto::v1;
use baton_proto::v1::agents_server::Agents;
use tonic::{Request, Response, Status};

use super::convert::{self, View};
use super::fault::Fault;
use super::held::mark;
use super::taking::Taken;
use super::tasks::{digest, unexpected};
use super::validate::{self, Checked, Why, invalid};
use super::{Api, caller_trace, limits, optional_reason, unary};
use crate::auth::{AuthFault, Principal, Role};
use crate::dispatcher::Refusal;
use crate::reader::Reader;
use crate::wire::{self, goal, timestamp};
use baton_core::Shelf;

#[tonic::async_trait]
impl Agents for Api {
    async fn start(
        &self,
        request: Request<v1::StartRequest>,
    ) -> Result<Response<v1::StartResponse>, Status> {
        let call = mark(&request.get_ref().request_id, request.get_ref());
        let mut request = request.map(|sent| v1::SubmitRequest {
            spec: sent.spec,
            idempotency_key: sent.idempotency_key,
            traceparent: sent.traceparent,
        });
        caller_trace::inherit(&mut request, std::slice::from_mut);
        unary(request, |who, request| self.start_task(who, request, call)).await
    }

    async fn claim(
        &self,
        request: Request<v1::ClaimRequest>,
    ) -> Result<Response<v1::ClaimResponse>, Status> {
        unary(request, |who, request| self.claim_task(who, request)).await
    }

    async fn pick_up(
        &self,
        request: Request<v1::PickUpRequest>,
    ) -> Result<Response<v1::PickUpResponse>, Status> {
        unary(request, |who, request| self.pick_up_task(who, request)).await
    }

    async fn checkpoint(
        &self,
        request: Request<v1::AgentCheckpointRequest>,
    ) -> Result<Response<v1::AgentCheckpointResponse>, Status> {
        unary(request, |who, request| self.checkpoint_held(who, request)).await
    }

    async fn progress(
        &self,
        request: Request<v1::AgentProgressRequest>,
    ) -> Result<Response<v1::AgentProgressResponse>, Status> {
        unary(request, |who, request| self.progress_held(who, request)).await
    }

    async fn block(
        &self,
        request: Request<v1::AgentBlockRequest>,
    ) -> Result<Response<v1::AgentBlockResponse>, Status> {
        unary(request, |who, request| self.block_held(who, request)).await
    }

    async fn renew(
        &self,
        request: Request<v1::RenewRequest>,
    ) -> Result<Response<v1::RenewResponse>, Status> {
        unary(request, |who, request| self.renew_held(who, request)).await
    }

    async fn release(
        &self,
        request: Request<v1::AgentReleaseRequest>,
    ) -> Result<Response<v1::AgentReleaseResponse>, Status> {
        unary(request, |who, request| self.release_held(who, request)).await
    }

    async fn complete(
        &self,
        request: Request<v1::AgentCompleteRequest>,
    ) -> Result<Response<v1::AgentCompleteResponse>, Status> {
        unary(request, |who, request| self.complete_held(who, request)).await
    }

    async fn fail(
        &self,
        request: Request<v1::AgentFailRequest>,
    ) -> Result<Response<v1::AgentFailResponse>, Status> {
        unary(request, |who, request| self.fail_held(who, request)).await
    }

    async fn cancel(
        &self,
        request: Request<v1::AgentCancelRequest>,
    ) -> Result<Response<v1::AgentCancelResponse>, Status> {
        unary(request, |who, request| self.cancel_held(who, request)).await
    }
}

impl Api {
    async fn start_task(
        &self,
        who: Principal,
        mut request: v1::SubmitRequest,
        call: Checked<Option<CallMark>>,
    ) -> Result<v1::StartResponse, Fault> {
        let agent = agent(&who)?;
        let key = &request.idempotency_key;
        validate::not_blank("idempotency_key", key, limits::IDEMPOTENCY_KEY)?;
        let mark = call?.map(Box::new);
        fill_in(&mut request, &agent)?;
        let digest = digest(&request);
        let spec = match self.taken(&who, request, digest).await? {
            Taken::Anew(spec) => spec,
            Taken::Before(task) => {
                let grant = self.claimed(&who, agent, mark, Some(task)).await?;
                return Ok(v1::StartResponse { grant });
            }
        };
        let start = move |submit| Input::Start {
            submit,
            agent: agent.clone(),
            mark: mark.clone(),
        };
        let outcome = self.hand_over(&spec, digest, start).await;
        let key = spec.idempotency_key.clone();
        match outcome {
            Ok(Reply::Granted(Some(grant))) => Ok(v1::StartResponse {
                grant: Some(self.grant(&grant).await?),
            }),
            Err(Refusal::Rejected(Rejection::AlreadyTaken)) => {
                Err(self.started_by(&who, key.unwrap_or_default()).await)
            }
            other => Err(unexpected(other)),
        }
    }

    async fn claim_task(
        &self,
        who: Principal,
        request: v1::ClaimRequest,
    ) -> Result<v1::ClaimResponse, Fault> {
        let agent = agent(&who)?;
        let task: Option<TaskId> = match request.task_id.as_str() {
            "" => None,
            id => Some(validate::id("task_id", id)?),
        };
        let mark = mark(&request.request_id, &request)?.map(Box::new);
        let grant = self.claimed(&who, agent, mark, task).await?;
        Ok(v1::ClaimResponse { grant })
    }

    async fn claimed(
        &self,
        who: &Principal,
        agent: Agent,
        mark: Option<Box<CallMark>>,
        task: Option<TaskId>,
    ) -> Result<Option<v1::AgentGrant>, Fault> {
        let claim = move |request| Input::Claim {
            request,
            agent,
            mark,
            task,
            finished: None,
        };
        match self.dispatcher.request(claim).await {
            Ok(Reply::Granted(None)) => Ok(None),
            Ok(Reply::Granted(Some(grant))) => Ok(Some(self.grant(&grant).await?)),
            Err(Refusal::Rejected(Rejection::AlreadyTaken)) => Err(self.taken_by(who, task).await),
            other => Err(unexpected(other)),
        }
    }

    async fn pick_up_task(
        &self,
        who: Principal,
        request: v1::PickUpRequest,
    ) -> Result<v1::PickUpResponse, Fault> {
        let call = mark(&request.request_id, &request);
        let reason = optional_reason(request.reason)?;
        let agent = agent(&who)?;
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        let attempt: Option<AttemptId> = match request.attempt_id.as_str() {
            "" => None,
            id => Some(validate::id("attempt_id", id)?),
        };
        let mark = call?.map(Box::new);
        let pick_up = move |request| Input::PickUp {
            request,
            agent,
            mark,
            task,
            attempt,
            reason,
            finished: None,
        };
        match self.dispatcher.request(pick_up).await {
            Ok(Reply::Granted(Some(grant))) => Ok(v1::PickUpResponse {
                grant: Some(self.grant(&grant).await?),
            }),
            Err(Refusal::Rejected(Rejection::HandedOff)) => {
                Err(self.who_was_first(&who, task, attempt).await)
            }
            other => Err(unexpected(other)),
        }
    }

    /// Who has the task that this caller wanted.
    pub(super) async fn taken_by(&self, who: &Principal, task: Option<TaskId>) -> Fault {
        let taken = Fault::Refused(Rejection::AlreadyTaken);
        let Some(task) = task else {
            return taken;
        };
        match self.stored_task(who, task).await {
            Ok((_, record)) => holder(&record).map_or(taken, |by| Fault::TakenBy { by }),
            Err(_) => taken,
        }
    }

    /// The same for a key: the first claim of its task is live.
    async fn started_by(&self, who: &Principal, key: String) -> Fault {
        let tenant = who.tenant.clone();
        let known = self
            .read(move |reader| reader.idempotency(&tenant, &key))
            .await;
        let known = known.ok().and_then(Result::ok).flatten();
        let task = known.map(|known| known.task);
        self.taken_by(who, task).await
    }

    /// The lease, the task, and what earlier attempts left.
    async fn grant(&self, grant: &Grant) -> Result<v1::AgentGrant, Fault> {
        let record = &grant.record;
        let mut task = convert::task(&grant.spec, record, &self.config, View::WithSpec);
        task.progress = self.progress_of(record).await?;
        let (tenant, id, newest) = (record.tenant.clone(), record.task, record.checkpoints);
        let left = move |reader: &Reader| reader.checkpoint(&tenant, id, newest);
        let checkpoint = self.read(left).await?;
        let attempt = record.newest();
        let said = attempt.and_then(|attempt| attempt.resume.as_deref());
        let previous = attempt.and_then(|attempt| attempt.previous);
        let resume = previous.map(|previous| goal::resume(previous, said, checkpoint.as_deref()));
        Ok(v1::AgentGrant {
            r#ref: Some(wire::attempt_ref(&grant.to, self.config.incarnation)),
            token: Some(v1::LeaseToken {
                value: bytes::Bytes::copy_from_slice(&grant.token.0),
            }),
            granted_ms: grant.granted_ms,
            expires_at: Some(timestamp(grant.expires_at)),
            renew_ms: grant.renew_ms,
            task: Some(task),
            resume,
        })
    }
}

/// The agent behind a credential. One of another role never gets past the permission table.
pub(super) fn agent(who: &Principal) -> Result<Agent, Fault> {
    let role = who.role;
    let scope = who.agent_scope.clone();
    let may = &[Role::Agent][..];
    let scope = scope.ok_or(AuthFault::Forbidden { role, may })?;
    Ok(Agent {
        token: who.token,
        name: Arc::clone(&who.name),
        tenant: who.tenant.clone(),
        scope,
    })
}

/// What goes without saying: the agent starts work for itself.
fn fill_in(request: &mut v1::SubmitRequest, agent: &Agent) -> Result<(), Fault> {
    let Some(spec) = &mut request.spec else {
        return Err(invalid("spec", Why::Missing).into());
    };
    if !spec.agent_scope.is_empty() && *spec.agent_scope != *agent.scope {
        let with = "the scope of the token";
        return Err(invalid("spec.agent_scope", Why::Conflict { with }).into());
    }
    agent.scope.as_ref().clone_into(&mut spec.agent_scope);
    spec.agent_held = true;
    if spec.agent.is_empty() {
        agent.scope.as_ref().clone_into(&mut spec.agent);
    }
    Ok(())
}

fn holder(record: &TaskRecord) -> Option<String> {
    let held = record.newest().filter(|newest| newest.state.is_leased())?;
    held.holder.as_ref().map(|holder| holder.name().to_string())
}
