//! Helpers that send calls of agents which hold their own leases.

use std::sync::Arc;

use uuid::Uuid;

use super::CoreHarness;
use super::frames::{digest, spec};
use crate::commands::{
    AgentCallReply, AgentCaller, AgentLeaseCall, AgentLeaseProof, AgentVerb, BlockAttempt,
    ClaimTask, EndAttempt, PickUpTask, RenewAgentLease, ReportAttemptProgress, StartTask,
    SubmitTask, WriteAttemptCheckpoint,
};
use crate::goal::progress::GoalReport;
use crate::ids::{AttemptId, TaskId, TokenId};
use crate::io::command::AgentPrincipal;
use crate::io::effects::AgentLeaseGrant;
use crate::io::rejection::Rejection;
use crate::io::session_input::{CompletedBody, ErroredBody, LeaseToken, ProcessTermination};
use crate::record::{CheckpointRecord, FailureCode, TaskRecord, TokenUsage};
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

    fn proof(&self) -> AgentLeaseProof {
        AgentLeaseProof {
            agent: self.agent.clone(),
            task: self.task,
            attempt: self.attempt,
            token: self.token.clone(),
        }
    }
}

/// What an agent may call for, as one type.
#[derive(Clone, Debug)]
pub(in crate::tests) enum AgentLeaseVerb {
    Renew,
    Goal(GoalReport),
    End(EndAttempt),
}

/// What it is answered, as one type.
#[derive(Debug)]
pub(in crate::tests) enum AgentAnswer {
    Task(Arc<TaskRecord>),
    Renewed,
    Progressed,
    Checkpointed {
        checkpoint: Arc<CheckpointRecord>,
    },
    Repeated {
        record: Arc<TaskRecord>,
        checkpoint: Option<u64>,
    },
}

impl AgentAnswer {
    fn from_reply<D>(
        reply: AgentCallReply<D>,
        done: impl FnOnce(Arc<TaskRecord>, D) -> Self,
    ) -> Self {
        match reply {
            AgentCallReply::Done { record, done: of } => done(record, of),
            AgentCallReply::Repeated { record, checkpoint } => {
                AgentAnswer::Repeated { record, checkpoint }
            }
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
        let (task, digest) = (TaskId(self.ids.new_id()), digest(&spec));
        let submit = SubmitTask {
            task,
            spec: Arc::new(spec),
            digest,
        };
        let caller = self.caller(agent);
        let grant = self.send(StartTask { submit, caller })?;
        Ok(AgentLeaseHandle::of(agent, &grant))
    }

    fn caller(&self, agent: &AgentPrincipal) -> AgentCaller {
        AgentCaller {
            agent: agent.clone(),
            fingerprint: self.mark.clone().map(Box::new),
        }
    }

    pub(in crate::tests) fn claim(
        &mut self,
        agent: &AgentPrincipal,
        task: Option<TaskId>,
    ) -> Result<Option<AgentLeaseHandle>, Rejection> {
        let caller = self.caller(agent);
        let grant = self.send(ClaimTask { caller, task })?;
        Ok(grant.map(|grant| AgentLeaseHandle::of(agent, &grant)))
    }

    pub(in crate::tests) fn pick_up(
        &mut self,
        agent: &AgentPrincipal,
        task: TaskId,
        seen: Option<AttemptId>,
    ) -> Result<AgentLeaseHandle, Rejection> {
        let caller = self.caller(agent);
        let grant = self.send(PickUpTask {
            caller,
            task,
            attempt: seen,
            reason: None,
        })?;
        Ok(AgentLeaseHandle::of(agent, &grant))
    }

    /// Submits a task for agents and lets this agent claim it.
    pub(in crate::tests) fn claimed_task(&mut self, agent: &AgentPrincipal) -> AgentLeaseHandle {
        let task = self.submit(agent_task_spec());
        let hand = self.claim(agent, Some(task)).expect("the task is queued");
        hand.expect("a named task is granted or refused")
    }

    pub(in crate::tests) fn call_as_agent(
        &mut self,
        hand: &AgentLeaseHandle,
        verb: AgentLeaseVerb,
    ) -> Result<AgentAnswer, Rejection> {
        match verb {
            AgentLeaseVerb::Renew => {
                self.renew(hand)?;
                Ok(AgentAnswer::Renewed)
            }
            AgentLeaseVerb::Goal(GoalReport::Progress(update)) => {
                let called = self.call_with(hand, ReportAttemptProgress(update))?;
                Ok(AgentAnswer::from_reply(called, |_, _| {
                    AgentAnswer::Progressed
                }))
            }
            AgentLeaseVerb::Goal(GoalReport::Checkpoint(draft)) => {
                let called = self.call_with(hand, WriteAttemptCheckpoint(draft))?;
                Ok(AgentAnswer::from_reply(called, |_, checkpoint| {
                    AgentAnswer::Checkpointed { checkpoint }
                }))
            }
            AgentLeaseVerb::Goal(GoalReport::Block(block)) => {
                let called = self.call_with(hand, BlockAttempt(block))?;
                Ok(AgentAnswer::from_reply(called, |_, outcome| {
                    let checkpoint = outcome.checkpoint.expect("a block writes one");
                    AgentAnswer::Checkpointed { checkpoint }
                }))
            }
            AgentLeaseVerb::End(end) => {
                let called = self.call_with(hand, end)?;
                Ok(AgentAnswer::from_reply(called, |record, ()| {
                    AgentAnswer::Task(record)
                }))
            }
        }
    }

    fn call_with<V: AgentVerb>(
        &mut self,
        hand: &AgentLeaseHandle,
        verb: V,
    ) -> Result<AgentCallReply<V::Done>, Rejection> {
        let fingerprint = self.mark.clone();
        self.send(AgentLeaseCall {
            lease: hand.proof(),
            fingerprint,
            verb,
        })
    }

    pub(in crate::tests) fn renew(
        &mut self,
        hand: &AgentLeaseHandle,
    ) -> Result<(u64, bool), Rejection> {
        let lease = hand.proof();
        let renewed = self.send(RenewAgentLease { lease })?;
        Ok((renewed.granted_ms, renewed.cancel_requested))
    }

    pub(in crate::tests) fn end_by_agent(
        &mut self,
        hand: &AgentLeaseHandle,
        verb: AgentLeaseVerb,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        match self.call_as_agent(hand, verb)? {
            AgentAnswer::Task(record) => Ok(record),
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
    AgentLeaseVerb::End(EndAttempt::Complete(completed, None))
}

pub(in crate::tests) fn fail(code: FailureCode) -> AgentLeaseVerb {
    AgentLeaseVerb::End(EndAttempt::Fail(ErroredBody {
        code,
        retryable_hint: None,
        message: Some("it did not work".into()),
        user_message: None,
        usage: TokenUsage::default(),
        agent_session_id: None,
        final_offset: 0,
        termination: ProcessTermination::default(),
        ended_in_lease: true,
    }))
}
