//! Attempts whose lease an agent holds itself, without a daemon: how it gets one.
//!
//! Start and Claim are one write each: the attempt is offered, accepted and confirmed at once, for the caller is the one
//! who will do the work. The successor rule and the pauses are asked as for a daemon. What it says afterwards is judged in
//! `agent_calls.rs`.

use std::sync::Arc;

use crate::attempt::machine::MachineEvent;
use crate::core_state::{Core, CoreTurn};
use crate::fleet::heartbeat::agent_renewal_ms;
use crate::ids::{AttemptId, RequestId, TaskId};
use crate::io::command::{AgentPrincipal, FinishedTask, LeaseToken, PriorSubmission, SubmitTask};
use crate::io::effects::{AgentLeaseGrant, CommitDependency, CoreReply};
use crate::io::rejection::Rejection;
use crate::record::{AgentHolder, AttemptState, CallFingerprint, LeaseHolder, TimelineEventKind};
use crate::schedule::conversation::ConversationKey;
use crate::schedule::dispatch::new_lease;
use crate::task::live_task::{LiveTask, wall_time_at};
use crate::task::spec::TaskSpec;
use crate::time::MonotonicTime;

/// An agent that wants a lease, and by which of its calls.
pub(crate) struct AgentCaller {
    pub(crate) agent: AgentPrincipal,
    pub(crate) fingerprint: Option<Box<CallFingerprint>>,
}

impl Core {
    /// Submit and claim in one write: nobody ever sees the task waiting.
    pub(crate) fn start_task(
        &mut self,
        submit: SubmitTask,
        caller: AgentCaller,
        turn: &mut CoreTurn<'_>,
    ) {
        match self.find_prior_submission(&submit) {
            Ok(Some(prior)) => return self.restart_known_task(&submit, &prior, caller, turn),
            Ok(None) => {}
            Err(code) => return turn.refuse(submit.request, code),
        }
        let may = self.admit_task(&submit.spec);
        if let Err(code) = may.and_then(|()| self.check_start(&submit, turn.now.monotonic)) {
            return turn.refuse(submit.request, code);
        }
        let live = self.open_task(&submit, turn);
        self.grant_to_agent(live, submit.request, caller, turn);
    }

    /// The key is known: its task may have been given back since, and then it can be claimed again.
    fn restart_known_task(
        &mut self,
        submit: &SubmitTask,
        prior: &PriorSubmission,
        caller: AgentCaller,
        turn: &mut CoreTurn<'_>,
    ) {
        let request = submit.request;
        if prior.digest != submit.digest && !mutant!(ConflictIgnored) {
            return turn.refuse(request, Rejection::IdempotencyConflict);
        }
        if prior.finished.is_some() && !self.is_live(prior.task) {
            return turn.refuse(request, Rejection::AlreadyFinished);
        }
        self.claim_task(request, caller, Some(prior.task), None, turn);
    }

    /// A new task has no attempt that could run, but its conversation may have one.
    fn check_start(&self, submit: &SubmitTask, now: MonotonicTime) -> Result<(), Rejection> {
        let key = ConversationKey::from_spec(&submit.spec);
        let waits = key.as_ref().is_some_and(|key| self.queue.has_turns(key));
        let fenced = self
            .fences
            .check_lease(submit.task, key.as_ref(), now)
            .is_err();
        let paused = self.effective_pause(&submit.spec.tenant).is_some();
        if self.is_leasing_suspended() || paused || waits || fenced {
            return Err(Rejection::NotClaimable);
        }
        Ok(())
    }

    pub(crate) fn claim_task(
        &mut self,
        request: RequestId,
        caller: AgentCaller,
        task: Option<TaskId>,
        finished: Option<FinishedTask>,
        turn: &mut CoreTurn<'_>,
    ) {
        if self.repeat_grant(request, &caller, turn) {
            return;
        }
        let agent = &caller.agent;
        let Some(task) = task.or_else(|| self.first_claimable(agent, turn.now.monotonic)) else {
            return turn.reply(request, CommitDependency::Nothing, CoreReply::Granted(None));
        };
        let Some(live) = self.take_agent_task(agent, task) else {
            return turn.refuse(request, missing_agent_task(agent, finished));
        };
        match self.check_claim(&live, turn.now.monotonic) {
            Ok(()) => self.grant_to_agent(live, request, caller, turn),
            Err(code) => {
                self.put_back_task(live, turn);
                turn.refuse(request, code);
            }
        }
    }

    /// Takes a parked task over, in one write: the parked attempt is handed off, and its successor is the caller's. Of two
    /// who want it the second finds it handed off.
    pub(crate) fn pick_up_task(
        &mut self,
        request: RequestId,
        caller: AgentCaller,
        (task, seen): (TaskId, Option<AttemptId>),
        reason: Option<Arc<str>>,
        finished: Option<FinishedTask>,
        turn: &mut CoreTurn<'_>,
    ) {
        if self.repeat_grant(request, &caller, turn) {
            return;
        }
        let agent = &caller.agent;
        let Some(mut live) = self.take_agent_task(agent, task) else {
            return turn.refuse(request, missing_agent_task(agent, finished));
        };
        if let Err(code) = self.check_pick_up(&live, seen, turn.now.monotonic) {
            self.put_back_task(live, turn);
            return turn.refuse(request, code);
        }
        let by = Arc::clone(&agent.name);
        live.add_event(TimelineEventKind::PickedUp { by }, reason);
        self.start_successor(&mut live, Arc::clone(&agent.name), turn);
        self.grant_to_agent(live, request, caller, turn);
    }

    fn check_pick_up(
        &self,
        live: &LiveTask,
        seen: Option<AttemptId>,
        now: MonotonicTime,
    ) -> Result<(), Rejection> {
        if live.record().cancel.is_some() {
            return Err(Rejection::BeingCanceled);
        }
        self.check_resume(live, seen)?;
        self.check_leasable(live, now)
    }

    fn first_claimable(&self, agent: &AgentPrincipal, now: MonotonicTime) -> Option<TaskId> {
        if self.is_leasing_suspended() {
            return None;
        }
        let mut waiting = self.queue.claimable(&agent.tenant, &agent.scope);
        waiting.find(|task| {
            let live = self.tasks.get(task);
            live.is_some_and(|live| self.check_claim(live, now).is_ok())
        })
    }

    /// Takes a live task out that this agent may have; any other one does not exist for it.
    pub(crate) fn take_agent_task(
        &mut self,
        agent: &AgentPrincipal,
        task: TaskId,
    ) -> Option<Box<LiveTask>> {
        let known = self.tasks.get(&task)?;
        if !is_in_agent_scope(&known.spec, agent) {
            return None;
        }
        self.take_task(&agent.tenant, task)
    }

    fn check_claim(&self, live: &LiveTask, now: MonotonicTime) -> Result<(), Rejection> {
        if live.record().cancel.is_some() {
            return Err(Rejection::BeingCanceled);
        }
        if live.is_newest_leased() {
            return Err(Rejection::AlreadyTaken);
        }
        let waits = live.newest_attempt().state == AttemptState::Queued
            && live.record().attention.is_none();
        if !waits {
            return Err(Rejection::NotClaimable);
        }
        self.check_leasable(live, now)
    }

    /// Whether it may be leased at this moment, whoever asks: the same that placement asks before an offer.
    pub(crate) fn check_leasable(
        &self,
        live: &LiveTask,
        now: MonotonicTime,
    ) -> Result<(), Rejection> {
        let key = ConversationKey::from_spec(&live.spec);
        let stands = self.is_leasing_suspended() || self.is_paused(live);
        let behind = self.queue.is_behind_conversation(live.id());
        let fence = self.fences.check_lease(live.id(), key.as_ref(), now);
        let fenced = fence.is_err() && !mutant!(FencesNotAsked);
        if stands || behind || fenced {
            return Err(Rejection::NotClaimable);
        }
        Ok(())
    }

    /// Nothing is leased for now, to nobody.
    fn is_leasing_suspended(&self) -> bool {
        let paused = self.scheduler.paused.is_some() && !mutant!(SchedulerPauseIgnored);
        paused || self.dispatch_suspended
    }

    /// Leases the newest, queued attempt to the agent. The one place that does.
    pub(crate) fn grant_to_agent(
        &mut self,
        mut live: Box<LiveTask>,
        request: RequestId,
        AgentCaller {
            agent,
            fingerprint: mark,
        }: AgentCaller,
        turn: &mut CoreTurn<'_>,
    ) {
        let (token, lease) = new_lease(&live, true, turn);
        let holder = LeaseHolder::Agent(AgentHolder {
            token: agent.token,
            name: agent.name,
            incarnation: self.config.incarnation,
            granting_call: mark.map(|mark| *mark),
            answered_calls: Vec::new(),
        });
        live.record_mut().counters.dispatches += 1;
        self.queue.remove(live.id());
        self.raise_lease_fence(&live, &holder);
        self.apply_event(&mut live, MachineEvent::Claim { holder, lease }, None, turn);
        self.leased_attempts
            .insert(live.newest_attempt().id, live.id());
        self.agent_leases
            .insert((agent.token, live.newest_attempt().id), live.id());
        let granted_ms = live.spec.lease_ttl_ms;
        self.reply_with_grant(live, request, token, granted_ms, turn);
    }

    /// The one reply that the token is in.
    pub(crate) fn reply_with_grant(
        &mut self,
        live: Box<LiveTask>,
        request: RequestId,
        token: LeaseToken,
        granted_ms: u64,
        turn: &mut CoreTurn<'_>,
    ) {
        let (task, to, spec) = (live.id(), self.attempt_ref(&live), Arc::clone(&live.spec));
        let record = self.put_back_task(live, turn);
        let grant = AgentLeaseGrant {
            to,
            token,
            granted_ms,
            expires_at: wall_time_at(turn.now.monotonic + granted_ms, turn.now),
            renew_ms: agent_renewal_ms(spec.lease_ttl_ms),
            record,
            spec,
        };
        let reply = CoreReply::Granted(Some(Box::new(grant)));
        let after = if mutant!(GrantBeforePersist) {
            CommitDependency::Nothing
        } else {
            CommitDependency::Task(task)
        };
        turn.reply(request, after, reply);
    }
}

fn is_in_agent_scope(spec: &TaskSpec, agent: &AgentPrincipal) -> bool {
    spec.agent_scope.as_deref() == Some(&*agent.scope)
}

/// A task that is not live is finished, or none of this agent's.
pub(crate) fn missing_agent_task(
    agent: &AgentPrincipal,
    finished: Option<FinishedTask>,
) -> Rejection {
    let own = finished.filter(|finished| {
        finished.record.tenant == agent.tenant && is_in_agent_scope(&finished.spec, agent)
    });
    match own {
        Some(_) => Rejection::AlreadyFinished,
        None => Rejection::UnknownTask,
    }
}
