//! What agents say that hold their leases themselves, in shorthand.

use std::sync::Arc;

use uuid::Uuid;

use super::World;
use super::bodies::{digest, spec};
use crate::effects::{Grant, Reply};
use crate::id::{AttemptId, TaskId, TokenId};
use crate::input::{
    Agent, Completed, Errored, HeldCall, HeldVerb, Input, LeaseToken, Prior, Submit, Termination,
};
use crate::record::{FailureCode, TaskRecord, Usage};
use crate::reject::Rejection;
use crate::samples;
use crate::spec::TaskSpec;
use crate::time::Mint;

/// Agent `n` of the scope `reviewers`.
pub(in crate::tests) fn agent(n: u128) -> Agent {
    Agent {
        token: TokenId(Uuid::from_u128(n)),
        name: format!("agent-{n}").into(),
        tenant: samples::tenant("acme"),
        scope: "reviewers".into(),
    }
}

/// Waits for agents of that scope only.
pub(in crate::tests) fn for_agents() -> TaskSpec {
    TaskSpec {
        agent_scope: Some("reviewers".into()),
        agent_held: true,
        ..spec()
    }
}

/// A lease as the agent that holds it knows it.
#[derive(Clone, Debug)]
pub(in crate::tests) struct Hand {
    pub(in crate::tests) agent: Agent,
    pub(in crate::tests) task: TaskId,
    pub(in crate::tests) attempt: AttemptId,
    pub(in crate::tests) token: LeaseToken,
}

impl Hand {
    fn of(agent: &Agent, grant: &Grant) -> Self {
        Self {
            agent: agent.clone(),
            task: grant.to.task,
            attempt: grant.to.attempt,
            token: grant.token.clone(),
        }
    }
}

impl World {
    pub(in crate::tests) fn start(
        &mut self,
        agent: &Agent,
        spec: TaskSpec,
        key: &str,
    ) -> Result<Hand, Rejection> {
        let spec = TaskSpec {
            idempotency_key: Some(key.into()),
            ..spec
        };
        let (request, task, digest) = (self.request(), TaskId(self.mint.id()), digest(&spec));
        let known = self.store.keys.get(&(spec.tenant.clone(), key.to_owned()));
        let prior = known.map(|known| Prior {
            task: known.task,
            digest: known.digest,
            finished: self.store.done.get(&known.task).cloned(),
        });
        let submit = Submit {
            request,
            task,
            spec: Arc::new(spec),
            digest,
            prior: Ok(prior),
        };
        let mark = self.mark.clone().map(Box::new);
        self.say(Input::Start {
            submit,
            agent: agent.clone(),
            mark,
        });
        let hand = self.granted(agent, request)?;
        Ok(hand.expect("a start is granted or refused"))
    }

    pub(in crate::tests) fn claim(
        &mut self,
        agent: &Agent,
        task: Option<TaskId>,
    ) -> Result<Option<Hand>, Rejection> {
        let request = self.request();
        let finished = task.and_then(|task| self.store.finished(task));
        self.say(Input::Claim {
            request,
            agent: agent.clone(),
            mark: self.mark.clone().map(Box::new),
            task,
            finished,
        });
        self.granted(agent, request)
    }

    pub(in crate::tests) fn pick_up(
        &mut self,
        agent: &Agent,
        task: TaskId,
        seen: Option<AttemptId>,
    ) -> Result<Hand, Rejection> {
        let (request, finished) = (self.request(), self.store.finished(task));
        self.say(Input::PickUp {
            request,
            agent: agent.clone(),
            mark: self.mark.clone().map(Box::new),
            task,
            attempt: seen,
            reason: None,
            finished,
        });
        let hand = self.granted(agent, request)?;
        Ok(hand.expect("a pick-up is granted or refused"))
    }

    /// Submitted for agents and claimed by this one.
    pub(in crate::tests) fn held(&mut self, agent: &Agent) -> Hand {
        let task = self.submit(for_agents());
        let hand = self.claim(agent, Some(task)).expect("it waits");
        hand.expect("it was named")
    }

    pub(in crate::tests) fn granted(
        &mut self,
        agent: &Agent,
        request: crate::id::RequestId,
    ) -> Result<Option<Hand>, Rejection> {
        match self.reply(request)? {
            Reply::Granted(grant) => Ok(grant.map(|grant| Hand::of(agent, &grant))),
            other => panic!("not a grant: {other:?}"),
        }
    }

    pub(in crate::tests) fn call(
        &mut self,
        hand: &Hand,
        verb: HeldVerb,
    ) -> Result<Reply, Rejection> {
        let request = self.request();
        let finished = self.store.finished(hand.task);
        self.say(Input::Held(Box::new(HeldCall {
            request,
            agent: hand.agent.clone(),
            task: hand.task,
            attempt: hand.attempt,
            proof: hand.token.clone(),
            mark: self.mark.clone(),
            verb,
            known: self.store.known(hand.task),
            finished,
        })));
        self.reply(request)
    }

    pub(in crate::tests) fn renew(&mut self, hand: &Hand) -> Result<(u64, bool), Rejection> {
        match self.call(hand, HeldVerb::Renew)? {
            Reply::Renewed {
                granted_ms,
                cancel_requested,
                ..
            } => Ok((granted_ms, cancel_requested)),
            other => panic!("not a renewal: {other:?}"),
        }
    }

    pub(in crate::tests) fn ends(
        &mut self,
        hand: &Hand,
        verb: HeldVerb,
    ) -> Result<Arc<TaskRecord>, Rejection> {
        match self.call(hand, verb)? {
            Reply::Task(record) => Ok(record),
            other => panic!("not a task: {other:?}"),
        }
    }

    pub(in crate::tests) fn complete(&mut self, hand: &Hand) -> Result<Arc<TaskRecord>, Rejection> {
        self.ends(hand, complete(b"done"))
    }
}

pub(in crate::tests) fn complete(result: &[u8]) -> HeldVerb {
    let completed = Completed {
        result: Some(Arc::from(result)),
        in_lease: true,
        ..Completed::default()
    };
    HeldVerb::Complete(completed, None)
}

pub(in crate::tests) fn fail(code: FailureCode) -> HeldVerb {
    HeldVerb::Fail(Errored {
        code,
        retryable_hint: None,
        message: Some("it did not work".into()),
        user_message: None,
        usage: Usage::default(),
        agent_session_id: None,
        final_offset: 0,
        termination: Termination::default(),
        in_lease: true,
    })
}
