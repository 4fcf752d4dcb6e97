//! What an agent says about a lease that it holds itself. Everything that can be said about the shape of a call is said
//! before anything is looked up; the core judges the rest in one order for all of them.

use std::sync::Arc;

use baton_core::effects::Reply;
use baton_core::id::{AttemptId, TaskId};
use baton_core::input::{Completed, Errored, HeldCall, HeldVerb, Input, LeaseToken, Termination};
use baton_core::record::{FailureCode, TaskRecord};
use baton_proto::v1;

use super::agents::agent;
use super::fault::Fault;
use super::tasks::unexpected;
use super::validate::{self, Checked, Why, invalid};
use super::{Api, limits, optional_reason};
use crate::auth::Principal;
use crate::session::{artifact, usage};
use crate::wire::timestamp;

/// The code of a failure that the agent did not name.
const AGENT_REPORTED: &str = "agent_reported";

/// A lease as a call names it, checked for shape.
#[derive(Debug)]
pub(super) struct Named {
    task: TaskId,
    attempt: AttemptId,
    proof: LeaseToken,
}

impl Api {
    pub(super) async fn renew_held(
        &self,
        who: Principal,
        request: v1::RenewRequest,
    ) -> Result<v1::RenewResponse, Fault> {
        let lease = named(request.lease)?;
        match self.held(&who, lease, HeldVerb::Renew).await? {
            Reply::Renewed {
                granted_ms,
                expires_at,
                cancel_requested,
            } => Ok(v1::RenewResponse {
                granted_ms,
                expires_at: Some(timestamp(expires_at)),
                cancel_requested,
            }),
            other => Err(unexpected(Ok(other))),
        }
    }

    pub(super) async fn release_held(
        &self,
        who: Principal,
        request: v1::AgentReleaseRequest,
    ) -> Result<v1::AgentReleaseResponse, Fault> {
        let reason = optional_reason(request.reason)?;
        let lease = named(request.lease)?;
        let verb = HeldVerb::Release { reason };
        let task = Some(self.held_task(&who, lease, verb).await?);
        Ok(v1::AgentReleaseResponse { task })
    }

    pub(super) async fn complete_held(
        &self,
        who: Principal,
        request: v1::AgentCompleteRequest,
    ) -> Result<v1::AgentCompleteResponse, Fault> {
        let completed = completed(&request)?;
        let lease = named(request.lease)?;
        let verb = HeldVerb::Complete(completed);
        let task = Some(self.held_task(&who, lease, verb).await?);
        Ok(v1::AgentCompleteResponse { task })
    }

    pub(super) async fn fail_held(
        &self,
        who: Principal,
        request: v1::AgentFailRequest,
    ) -> Result<v1::AgentFailResponse, Fault> {
        let errored = errored(&request)?;
        let lease = named(request.lease)?;
        let verb = HeldVerb::Fail(errored);
        let task = Some(self.held_task(&who, lease, verb).await?);
        Ok(v1::AgentFailResponse { task })
    }

    pub(super) async fn cancel_held(
        &self,
        who: Principal,
        request: v1::AgentCancelRequest,
    ) -> Result<v1::AgentCancelResponse, Fault> {
        let reason = optional_reason(request.reason)?;
        let lease = named(request.lease)?;
        let verb = HeldVerb::Cancel { reason };
        let task = Some(self.held_task(&who, lease, verb).await?);
        Ok(v1::AgentCancelResponse { task })
    }

    async fn held_task(
        &self,
        who: &Principal,
        lease: Named,
        verb: HeldVerb,
    ) -> Result<v1::Task, Fault> {
        let record = self.task_held(who, lease, verb).await?;
        self.shown(&record).await
    }

    pub(super) async fn task_held(
        &self,
        who: &Principal,
        lease: Named,
        verb: HeldVerb,
    ) -> Result<Arc<TaskRecord>, Fault> {
        match self.held(who, lease, verb).await? {
            Reply::Task(record) => Ok(record),
            other => Err(unexpected(Ok(other))),
        }
    }

    pub(super) async fn held(
        &self,
        who: &Principal,
        lease: Named,
        verb: HeldVerb,
    ) -> Result<Reply, Fault> {
        let agent = agent(who)?;
        let call = move |request| {
            Input::Held(Box::new(HeldCall {
                request,
                agent,
                task: lease.task,
                attempt: lease.attempt,
                proof: lease.proof,
                verb,
                finished: None,
            }))
        };
        Ok(self.dispatcher.request_held(call).await?)
    }
}

pub(super) fn named(lease: Option<v1::AgentLease>) -> Checked<Named> {
    let lease = validate::present("lease", lease)?;
    let token = validate::present("lease.token", lease.token)?;
    Ok(Named {
        task: validate::id("lease.task_id", &lease.task_id)?,
        attempt: validate::id("lease.attempt_id", &lease.attempt_id)?,
        // One of the wrong size is a wrong one; the zeroes prove nothing.
        proof: LeaseToken(token.value.as_ref().try_into().unwrap_or([0; 32])),
    })
}

fn completed(request: &v1::AgentCompleteRequest) -> Checked<Completed> {
    if request.result.len() > limits::RESULT {
        let limit = limits::Size::Bytes(limits::RESULT);
        return Err(invalid("result", Why::TooLong { limit }));
    }
    validate::count("artifacts", request.artifacts.len(), limits::ARTIFACTS)?;
    let result = Some(&request.result[..]).filter(|result| !result.is_empty());
    Ok(Completed {
        result: result.map(Arc::from),
        usage: usage(request.usage.as_ref()),
        artifacts: request.artifacts.iter().map(artifact).collect(),
        in_lease: true,
        ..Completed::default()
    })
}

fn errored(request: &v1::AgentFailRequest) -> Checked<Errored> {
    validate::not_blank("message", &request.message, limits::MESSAGE)?;
    validate::text("user_message", &request.user_message, limits::MESSAGE)?;
    let code = match request.failure_code.as_str() {
        "" => AGENT_REPORTED,
        code => {
            validate::name("failure_code", code, limits::FAILURE_CODE)?;
            code
        }
    };
    let user_message = Some(request.user_message.as_str()).filter(|words| !words.is_empty());
    Ok(Errored {
        code: FailureCode::parse(code),
        retryable_hint: request.retryable_hint,
        message: Some(request.message.as_str().into()),
        user_message: user_message.map(Arc::from),
        usage: usage(request.usage.as_ref()),
        agent_session_id: None,
        final_offset: 0,
        termination: Termination::default(),
        in_lease: true,
    })
}
