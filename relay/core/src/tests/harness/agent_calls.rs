//! Helpers that send calls of agents which hold their own leases.

use std::sync::Arc;

use uuid::Uuid;

use super::CoreHarness;
use super::frames::{digest, spec};
use crate::ids::{AttemptId, TaskId, TokenId};
use crate::io::command::{
    AgentLeaseCall, AgentLeaseVerb, AgentPrincipal, CompletedBody, CoreCommand, ErroredBody,
    LeaseToken, PriorSubmission, ProcessTermination, SubmitTask,
};
use crate::io::effects::{AgentLeaseGrant, CoreReply};
use crate::io::rejection::Rejection;
use crate::record::{FailureCode, TaskRecord, TokenUsage};
use crate::samples;
use crate::task::spec::TaskSpec;
use crate::time::IdSource;

/// Agent `n` of the scope `reviewers`.
pub(in crate::tests) fn agent(n: u128) -> AgentPrincipal {
    AgentPrincipal {
        token: TokenId(Uuid::from_u128(n)),
        name: format!("agent-{n}").into(),
        tenant: samples::tenant("acme"),
        scope: "reviewers".into(),
    }
}

/// A task that only agents of the scope `reviewers` may claim.
pub(in crate::tests) fn agent_task_spec() -> TaskSpec {
    TaskSpec {
        agent_scope: Some("reviewers".into()),
        agent_held: true,
        ..spec()
    }
}

/// A lease from the view of the agent that holds it.
#[derive(Clone, Debug)]
pub(in crate::tests) struct AgentLeaseHandle {
    pub(in crate::tests) agent: AgentPrincipal,
    pub(in crate::tests) task: TaskId,
    pub(in crate::tests) attempt: AttemptId,
    pub(in crate::tests) token: LeaseToken,
}

impl AgentLeaseHandle {
    fn of(agent: &AgentPrincipal, grant: &AgentLeaseGrant) -> Self {
        Self {
            agent: agent.clone(),
            task: grant.to.task,
            attempt: grant.to.attempt,
            token: grant.token.clone(),
        }
    }
}

impl CoreHarness {
    pub(in crate::tests) fn start(
        &mut self,
        agent: &AgentPrincipal,
        spec: TaskSpec,
        key: &str,
    ) -> Result<AgentLeaseHandle, Rejection> {
        let spec = TaskSpec {
            idempotency_key: Some(key.into()),
            ..spec
        };
        let (request, task, digest) = (self.request(), TaskId(self.ids.new_id()), digest(&spec));
        let known = self.store.keys.get(&(spec.tenant.clone(), key.to_owned()));
        let prior = known.map(|known| PriorSubmission {
            task: known.task,
            digest: known.digest,
            finished: self.store.done.get(&known.task).cloned(),
        });
        let submit = SubmitTask {
            request,
            task,
            spec: Arc::new(spec),
            digest,
            prior_submission: Ok(prior),
        };
        let mark = self.mark.clone().map(Box::new);
        self.send_input(CoreCommand::Start {
            submit,
            agent: agent.clone(),
            fingerprint: mark,
        });
        let hand = self.granted(agent, request)?;
        Ok(hand.expect("a start is granted or refused"))
    }

    pub(in crate::tests) fn claim(
        &mut self,
        agent: &AgentPrincipal,
        task: Option<TaskId>,
    ) -> Result<Option<AgentLeaseHandle>, Rejection> {
        let request = self.request();
        let finished = task.and_then(|task| self.store.finished(task));
        self.send_input(CoreCommand::Claim {
            request,
            agent: agent.clone(),
            fingerprint: self.mark.clone().map(Box::new),
            task,
            finished,
        });
        self.granted(agent, request)
    }

    pub(in crate::tests) fn pick_up(
        &mut self,
        agent: &AgentPrincipal,
        task: TaskId,
        seen: Option<AttemptId>,
    ) -> Result<AgentLeaseHandle, Rejection> {
        let (request, finished) = (self.request(), self.store.finished(task));
        self.send_input(CoreCommand::PickUp {
            request,
            agent: agent.clone(),
            fingerprint: self.mark.clone().map(Box::new),
            task,
            attempt: seen,
            reason: None,
            finished,
        });
        let hand = self.granted(agent, request)?;
        Ok(hand.expect("a pick-up is granted or refused"))
    }

    /// Submits a task for agents and lets this agent claim it.
    pub(in crate::tests) fn claimed_task(&mut self, agent: &AgentPrincipal) -> AgentLeaseHandle {
        let task = self.submit(agent_task_spec());
        let hand = self.claim(agent, Some(task)).expect("the task is queued");
        hand.expect("a named task is granted or refused")
    }

    pub(in crate::tests) fn granted(
        &mut self,
        agent: &AgentPrincipal,
        request: crate::ids::RequestId,
    ) -> Result<Option<AgentLeaseHandle>, Rejection> {
        match self.reply(request)? {
            CoreReply::Granted(grant) => Ok(grant.map(|grant| AgentLeaseHandle::of(agent, &grant))),
            other => panic!("not a grant: {other:?}"),
        }
    }

    pub(in crate::tests) fn call_as_agent(
        &mut self,
        hand: &AgentLeaseHandle,
        verb: AgentLeaseVerb,
    ) -> Result<CoreReply, Rejection> {
        let request = self.request();
        let finished = self.store.finished(hand.task);
        self.send_input(CoreCommand::AgentLeaseCall(Box::new(AgentLeaseCall {
            request,
            agent: hand.agent.clone(),
            task: hand.task,
            attempt: hand.attempt,
            proof: hand.token.clone(),
            fingerprint: self.mark.clone(),
            verb,
            stored_progress: self.store.stored_progress(hand.task),
            finished,
        })));
        self.reply(request)
    }

    pub(in crate::tests) fn renew(
        &mut self,
        hand: &AgentLeaseHandle,
    ) -> Result<(u64, bool), Rejection> {
        match self.call_as_agent(hand, AgentLeaseVerb::Renew)? {
            CoreReply::Renewed {
                granted_ms,
                cancel_requested,
                ..
            } => Ok((granted_ms, cancel_requested)),
            other => panic!("not a renewal: {other:?}"),
        }
    }

    pub(in crate::tests) fn end_by_agent(
        &mut self,
        hand: &AgentLeaseHandle,
        verb: AgentLeaseVerb,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        match self.call_as_agent(hand, verb)? {
            CoreReply::Task(record) => Ok(record),
            other => panic!("not a task: {other:?}"),
        }
    }

    pub(in crate::tests) fn complete_by_agent(
        &mut self,
        hand: &AgentLeaseHandle,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        self.end_by_agent(hand, complete_verb(b"done"))
    }
}

pub(in crate::tests) fn complete_verb(result: &[u8]) -> AgentLeaseVerb {
    let completed = CompletedBody {
        result: Some(Arc::from(result)),
        ended_in_lease: true,
        ..CompletedBody::default()
    };
    AgentLeaseVerb::Complete(completed, None)
}

pub(in crate::tests) fn fail(code: FailureCode) -> AgentLeaseVerb {
    AgentLeaseVerb::Fail(ErroredBody {
        code,
        retryable_hint: None,
        message: Some("it did not work".into()),
        user_message: None,
        usage: TokenUsage::default(),
        agent_session_id: None,
        final_offset: 0,
        termination: ProcessTermination::default(),
        ended_in_lease: true,
    })
}
