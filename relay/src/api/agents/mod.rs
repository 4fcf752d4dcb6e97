//! The `Agents` service, for agents that hold a lease themselves: how they get a task and its
//! lease. The calls under a lease are in `lease_call.rs`.
//!
//! The agent's scope and tenant come from its credential. The raw lease token is in one reply
//! and must never be logged, so this module logs no reply.

pub(crate) mod lease_call;

use std::sync::Arc;

use baton_core::commands::{AgentCaller, ClaimTask, PickUpTask, StartTask};
use baton_core::ids::{AttemptId, TaskId};
use baton_core::io::command::AgentPrincipal;
use baton_core::io::effects::AgentLeaseGrant;
use baton_core::io::rejection::Rejection;
use baton_core::record::{CallFingerprint, TaskRecord};
use baton_proto::v1;
use baton_proto::v1::agents_server::Agents;
use tonic::{Request, Response, Status};

use super::error::fault::ApiFault;
use super::request::validate;
use super::request::validate::{InvalidReason, ValidationResult, invalid_field};
use super::request::{caller_trace, limits};
use super::tasks::submission_digest;
use super::tasks::submit::CheckedSubmission;
use super::wire::task;
use super::wire::task::TaskDetail;
use super::{Api, optional_reason, run_unary};
use crate::api::wire;
use crate::api::wire::{goal, timestamp};
use crate::auth::{AuthFault, Principal, Role};
use crate::dispatcher::RequestRefusal;
use crate::reader::RecordReader;
use baton_core::StoredTasks;
use lease_call::call_fingerprint;

#[tonic::async_trait]
impl Agents for Api {
    async fn start(
        &self,
        request: Request<v1::StartRequest>,
    ) -> Result<Response<v1::StartResponse>, Status> {
        let fingerprint = call_fingerprint(&request.get_ref().request_id, request.get_ref());
        let mut request = request.map(|sent| v1::SubmitRequest {
            spec: sent.spec,
            idempotency_key: sent.idempotency_key,
            traceparent: sent.traceparent,
        });
        caller_trace::inherit_traceparent(&mut request, std::slice::from_mut);
        run_unary(request, |who, request| {
            self.start_task(who, request, fingerprint)
        })
        .await
    }

    async fn claim(
        &self,
        request: Request<v1::ClaimRequest>,
    ) -> Result<Response<v1::ClaimResponse>, Status> {
        run_unary(request, |who, request| self.claim_task(who, request)).await
    }

    async fn pick_up(
        &self,
        request: Request<v1::PickUpRequest>,
    ) -> Result<Response<v1::PickUpResponse>, Status> {
        run_unary(request, |who, request| self.pick_up_task(who, request)).await
    }

    async fn checkpoint(
        &self,
        request: Request<v1::AgentCheckpointRequest>,
    ) -> Result<Response<v1::AgentCheckpointResponse>, Status> {
        run_unary(request, |who, request| self.write_checkpoint(who, request)).await
    }

    async fn progress(
        &self,
        request: Request<v1::AgentProgressRequest>,
    ) -> Result<Response<v1::AgentProgressResponse>, Status> {
        run_unary(request, |who, request| {
            self.update_attempt_progress(who, request)
        })
        .await
    }

    async fn block(
        &self,
        request: Request<v1::AgentBlockRequest>,
    ) -> Result<Response<v1::AgentBlockResponse>, Status> {
        run_unary(request, |who, request| self.block_attempt(who, request)).await
    }

    async fn renew(
        &self,
        request: Request<v1::RenewRequest>,
    ) -> Result<Response<v1::RenewResponse>, Status> {
        run_unary(request, |who, request| self.renew_lease(who, request)).await
    }

    async fn release(
        &self,
        request: Request<v1::AgentReleaseRequest>,
    ) -> Result<Response<v1::AgentReleaseResponse>, Status> {
        run_unary(request, |who, request| self.release_lease(who, request)).await
    }

    async fn complete(
        &self,
        request: Request<v1::AgentCompleteRequest>,
    ) -> Result<Response<v1::AgentCompleteResponse>, Status> {
        run_unary(request, |who, request| self.complete_attempt(who, request)).await
    }

    async fn fail(
        &self,
        request: Request<v1::AgentFailRequest>,
    ) -> Result<Response<v1::AgentFailResponse>, Status> {
        run_unary(request, |who, request| self.fail_attempt(who, request)).await
    }

    async fn cancel(
        &self,
        request: Request<v1::AgentCancelRequest>,
    ) -> Result<Response<v1::AgentCancelResponse>, Status> {
        run_unary(request, |who, request| self.cancel_attempt(who, request)).await
    }
}

impl Api {
    async fn start_task(
        &self,
        who: Principal,
        mut request: v1::SubmitRequest,
        fingerprint: ValidationResult<Option<CallFingerprint>>,
    ) -> Result<v1::StartResponse, ApiFault> {
        let agent = agent_of(&who)?;
        let key = &request.idempotency_key;
        validate::not_blank("idempotency_key", key, limits::IDEMPOTENCY_KEY)?;
        let fingerprint = fingerprint?.map(Box::new);
        fill_defaults(&mut request, &agent)?;
        let digest = submission_digest(&request);
        let spec = match self.check_submission(&who, request, digest).await? {
            CheckedSubmission::New(spec) => spec,
            CheckedSubmission::Existing(task) => {
                let grant = self
                    .claim_for_agent(&who, agent, fingerprint, Some(task))
                    .await?;
                return Ok(v1::StartResponse { grant });
            }
        };
        let start = |submit| StartTask {
            submit,
            caller: AgentCaller {
                agent: agent.clone(),
                fingerprint: fingerprint.clone(),
            },
        };
        let outcome = self.submit_with_retry(&spec, digest, start).await;
        let key = spec.idempotency_key.clone();
        match outcome {
            Ok(grant) => Ok(v1::StartResponse {
                grant: Some(self.grant_message(&grant).await?),
            }),
            Err(RequestRefusal::Rejected(Rejection::AlreadyTaken)) => {
                Err(self.started_by_fault(&who, key.unwrap_or_default()).await)
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    async fn claim_task(
        &self,
        who: Principal,
        request: v1::ClaimRequest,
    ) -> Result<v1::ClaimResponse, ApiFault> {
        let agent = agent_of(&who)?;
        let task: Option<TaskId> = match request.task_id.as_str() {
            "" => None,
            id => Some(validate::id("task_id", id)?),
        };
        let fingerprint = call_fingerprint(&request.request_id, &request)?.map(Box::new);
        let grant = self.claim_for_agent(&who, agent, fingerprint, task).await?;
        Ok(v1::ClaimResponse { grant })
    }

    async fn claim_for_agent(
        &self,
        who: &Principal,
        agent: AgentPrincipal,
        fingerprint: Option<Box<CallFingerprint>>,
        task: Option<TaskId>,
    ) -> Result<Option<v1::AgentGrant>, ApiFault> {
        let caller = AgentCaller { agent, fingerprint };
        match self.dispatcher.request(ClaimTask { caller, task }).await {
            Ok(None) => Ok(None),
            Ok(Some(grant)) => Ok(Some(self.grant_message(&grant).await?)),
            Err(RequestRefusal::Rejected(Rejection::AlreadyTaken)) => {
                Err(self.taken_by_fault(who, task).await)
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    async fn pick_up_task(
        &self,
        who: Principal,
        request: v1::PickUpRequest,
    ) -> Result<v1::PickUpResponse, ApiFault> {
        let fingerprint = call_fingerprint(&request.request_id, &request);
        let reason = optional_reason(request.reason)?;
        let agent = agent_of(&who)?;
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        let attempt: Option<AttemptId> = match request.attempt_id.as_str() {
            "" => None,
            id => Some(validate::id("attempt_id", id)?),
        };
        let caller = AgentCaller {
            agent,
            fingerprint: fingerprint?.map(Box::new),
        };
        let pick_up = PickUpTask {
            caller,
            task,
            attempt,
            reason,
        };
        match self.dispatcher.request(pick_up).await {
            Ok(grant) => Ok(v1::PickUpResponse {
                grant: Some(self.grant_message(&grant).await?),
            }),
            Err(RequestRefusal::Rejected(Rejection::HandedOff)) => {
                Err(self.resumed_by_fault(&who, task, attempt).await)
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// The fault for a task that another holder has, with the holder's name if it is known.
    pub(super) async fn taken_by_fault(&self, who: &Principal, task: Option<TaskId>) -> ApiFault {
        let taken = ApiFault::Refused(Rejection::AlreadyTaken);
        let Some(task) = task else {
            return taken;
        };
        match self.stored_task(who, task).await {
            Ok((_, record)) => holder_name(&record).map_or(taken, |by| ApiFault::TakenBy { by }),
            Err(_) => taken,
        }
    }

    /// The same for an idempotency key whose task is already held.
    async fn started_by_fault(&self, who: &Principal, key: String) -> ApiFault {
        let tenant = who.tenant.clone();
        let known = self
            .read_store(move |reader| reader.idempotency(&tenant, &key))
            .await;
        let known = known.ok().and_then(Result::ok).flatten();
        let task = known.map(|known| known.task);
        self.taken_by_fault(who, task).await
    }

    /// The lease, the task, and the resume context from earlier attempts.
    async fn grant_message(&self, grant: &AgentLeaseGrant) -> Result<v1::AgentGrant, ApiFault> {
        let record = &grant.record;
        let mut task = task::task_message(&grant.spec, record, &self.config, TaskDetail::WithSpec);
        task.progress = self.progress_of(record).await?;
        let (tenant, id, newest) = (record.tenant.clone(), record.task, record.checkpoint_count);
        let read = move |reader: &RecordReader| reader.checkpoint(&tenant, id, newest);
        let checkpoint = self.read_store(read).await?;
        let attempt = record.newest_attempt();
        let instructions = attempt.and_then(|attempt| attempt.resume.as_deref());
        let previous = attempt.and_then(|attempt| attempt.previous);
        let resume = previous
            .map(|previous| goal::resume_context(previous, instructions, checkpoint.as_deref()));
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

/// The agent of a credential. The permission table has refused all other roles before.
pub(super) fn agent_of(who: &Principal) -> Result<AgentPrincipal, ApiFault> {
    let role = who.role;
    let scope = who.agent_scope.clone();
    let may = &[Role::Agent][..];
    let scope = scope.ok_or(AuthFault::Forbidden { role, may })?;
    Ok(AgentPrincipal {
        token: who.token,
        name: Arc::clone(&who.name),
        tenant: who.tenant.clone(),
        scope,
    })
}

/// Fills in that the agent starts the task for itself: its scope, `agent_held` and its name.
fn fill_defaults(request: &mut v1::SubmitRequest, agent: &AgentPrincipal) -> Result<(), ApiFault> {
    let Some(spec) = &mut request.spec else {
        return Err(invalid_field("spec", InvalidReason::Missing).into());
    };
    if !spec.agent_scope.is_empty() && *spec.agent_scope != *agent.scope {
        let with = "the scope of the token";
        return Err(invalid_field("spec.agent_scope", InvalidReason::Conflict { with }).into());
    }
    agent.scope.as_ref().clone_into(&mut spec.agent_scope);
    spec.agent_held = true;
    if spec.agent.is_empty() {
        agent.scope.as_ref().clone_into(&mut spec.agent);
    }
    Ok(())
}

fn holder_name(record: &TaskRecord) -> Option<String> {
    let held = record
        .newest_attempt()
        .filter(|newest| newest.state.is_leased())?;
    held.holder.as_ref().map(|holder| holder.name().to_string())
}
