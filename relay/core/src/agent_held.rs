//! Attempts whose lease an agent holds itself, without a daemon: how it gets one.
//!
//! Start and Claim are one write each: the attempt is offered, accepted and confirmed at once, for the caller is the one
//! who will do the work. The successor rule and the pauses are asked as for a daemon. What it says afterwards is judged in
//! `agent_calls.rs`.

use std::sync::Arc;

use crate::attempt::Event;
use crate::conversation::ConversationKey;
use crate::core::{Core, Turn};
use crate::dispatch::fresh_lease;
use crate::effects::{After, Grant, Reply};
use crate::heartbeats::renew_every_ms;
use crate::id::{AttemptId, RequestId, TaskId};
use crate::input::{Agent, Finished, LeaseToken, Prior, Submit};
use crate::live::{Live, wall_of};
use crate::record::{AgentHolder, CallMark, EventKind, Holder, State};
use crate::reject::Rejection;
use crate::spec::TaskSpec;
use crate::time::Moment;

/// An agent that wants a lease, and by which of its calls.
pub(crate) struct Caller {
    pub(crate) agent: Agent,
    pub(crate) mark: Option<Box<CallMark>>,
}

impl Core {
    /// Submit and claim in one write: nobody ever sees the task waiting.
    pub(crate) fn start(&mut self, submit: Submit, caller: Caller, turn: &mut Turn<'_>) {
        match self.prior(&submit) {
            Ok(Some(prior)) => return self.start_again(&submit, &prior, caller, turn),
            Ok(None) => {}
            Err(code) => return turn.refuse(submit.request, code),
        }
        let may = self.admit(&submit.spec);
        if let Err(code) = may.and_then(|()| self.check_start(&submit, turn.now.at)) {
            return turn.refuse(submit.request, code);
        }
        let live = self.open_task(&submit, turn);
        self.grant(live, submit.request, caller, turn);
    }

    /// The key is known: its task may have been given back since, and then it can be claimed again.
    fn start_again(&mut self, submit: &Submit, prior: &Prior, caller: Caller, turn: &mut Turn<'_>) {
        let request = submit.request;
        if prior.digest != submit.digest && !mutant!(ConflictIgnored) {
            return turn.refuse(request, Rejection::IdempotencyConflict);
        }
        if prior.finished.is_some() && !self.is_live(prior.task) {
            return turn.refuse(request, Rejection::AlreadyFinished);
        }
        self.claim(request, caller, Some(prior.task), None, turn);
    }

    /// A new task has no attempt that could run, but its conversation may have one.
    fn check_start(&self, submit: &Submit, now: Moment) -> Result<(), Rejection> {
        let key = ConversationKey::of(&submit.spec);
        let waits = key.as_ref().is_some_and(|key| self.queue.has_turns(key));
        let fenced = self
            .fences
            .may_lease(submit.task, key.as_ref(), now)
            .is_err();
        let paused = self.pause_of(&submit.spec.tenant).is_some();
        if self.claims_stand_still() || paused || waits || fenced {
            return Err(Rejection::NotClaimable);
        }
        Ok(())
    }

    pub(crate) fn claim(
        &mut self,
        request: RequestId,
        caller: Caller,
        task: Option<TaskId>,
        finished: Option<Finished>,
        turn: &mut Turn<'_>,
    ) {
        if self.grant_again(request, &caller, turn) {
            return;
        }
        let agent = &caller.agent;
        let Some(task) = task.or_else(|| self.first_claimable(agent, turn.now.at)) else {
            return turn.reply(request, After::Nothing, Reply::Granted(None));
        };
        let Some(live) = self.take_for(agent, task) else {
            return turn.refuse(request, missing(agent, finished));
        };
        match self.check_claim(&live, turn.now.at) {
            Ok(()) => self.grant(live, request, caller, turn),
            Err(code) => {
                self.keep(live, turn);
                turn.refuse(request, code);
            }
        }
    }

    /// Takes a parked task over, in one write: the parked attempt is handed off, and its successor is the caller's. Of two
    /// who want it the second finds it handed off.
    pub(crate) fn pick_up(
        &mut self,
        request: RequestId,
        caller: Caller,
        (task, seen): (TaskId, Option<AttemptId>),
        reason: Option<Arc<str>>,
        finished: Option<Finished>,
        turn: &mut Turn<'_>,
    ) {
        if self.grant_again(request, &caller, turn) {
            return;
        }
        let agent = &caller.agent;
        let Some(mut live) = self.take_for(agent, task) else {
            return turn.refuse(request, missing(agent, finished));
        };
        if let Err(code) = self.check_pick_up(&live, seen, turn.now.at) {
            self.keep(live, turn);
            return turn.refuse(request, code);
        }
        let by = Arc::clone(&agent.name);
        live.note(EventKind::PickedUp { by }, reason);
        self.send_on(&mut live, Arc::clone(&agent.name), turn);
        self.grant(live, request, caller, turn);
    }

    fn check_pick_up(
        &self,
        live: &Live,
        seen: Option<AttemptId>,
        now: Moment,
    ) -> Result<(), Rejection> {
        if live.record().cancel.is_some() {
            return Err(Rejection::BeingCanceled);
        }
        self.check_resume(live, seen)?;
        self.check_free(live, now)
    }

    fn first_claimable(&self, agent: &Agent, now: Moment) -> Option<TaskId> {
        if self.claims_stand_still() {
            return None;
        }
        let mut waiting = self.queue.claimable(&agent.tenant, &agent.scope);
        waiting.find(|task| {
            let live = self.tasks.get(task);
            live.is_some_and(|live| self.check_claim(live, now).is_ok())
        })
    }

    /// Takes a live task out that this agent may have; any other one does not exist for it.
    pub(crate) fn take_for(&mut self, agent: &Agent, task: TaskId) -> Option<Box<Live>> {
        let known = self.tasks.get(&task)?;
        if !is_of_scope(&known.spec, agent) {
            return None;
        }
        self.take(&agent.tenant, task)
    }

    fn check_claim(&self, live: &Live, now: Moment) -> Result<(), Rejection> {
        if live.record().cancel.is_some() {
            return Err(Rejection::BeingCanceled);
        }
        if live.is_newest_leased() {
            return Err(Rejection::AlreadyTaken);
        }
        let waits = live.newest().state == State::Queued && live.record().attention.is_none();
        if !waits {
            return Err(Rejection::NotClaimable);
        }
        self.check_free(live, now)
    }

    /// Whether it may be leased at this moment, whoever asks: the same that placement asks before an offer.
    pub(crate) fn check_free(&self, live: &Live, now: Moment) -> Result<(), Rejection> {
        let key = ConversationKey::of(&live.spec);
        let stands = self.claims_stand_still() || self.is_paused(live);
        let behind = self.queue.is_behind(live.id());
        let fence = self.fences.may_lease(live.id(), key.as_ref(), now);
        let fenced = fence.is_err() && !mutant!(FencesNotAsked);
        if stands || behind || fenced {
            return Err(Rejection::NotClaimable);
        }
        Ok(())
    }

    /// Nothing is leased for now, to nobody.
    fn claims_stand_still(&self) -> bool {
        let paused = self.scheduler.paused.is_some() && !mutant!(SchedulerPauseIgnored);
        paused || self.dispatch_held
    }

    /// Leases the newest, queued attempt to the agent. The one place that does.
    pub(crate) fn grant(
        &mut self,
        mut live: Box<Live>,
        request: RequestId,
        Caller { agent, mark }: Caller,
        turn: &mut Turn<'_>,
    ) {
        let (token, lease) = fresh_lease(&live, true, turn);
        let holder = Holder::Agent(AgentHolder {
            token: agent.token,
            name: agent.name,
            incarnation: self.config.incarnation,
            granted_by: mark.map(|mark| *mark),
            calls: Vec::new(),
        });
        live.record_mut().counters.dispatches += 1;
        self.queue.remove(live.id());
        self.guard(&live, &holder);
        self.apply(&mut live, Event::Claim { holder, lease }, None, turn);
        self.attempts.insert(live.newest().id, live.id());
        self.held.insert((agent.token, live.newest().id), live.id());
        let granted_ms = live.spec.lease_ttl_ms;
        self.tell_grant(live, request, token, granted_ms, turn);
    }

    /// The one reply that the token is in.
    pub(crate) fn tell_grant(
        &mut self,
        live: Box<Live>,
        request: RequestId,
        token: LeaseToken,
        granted_ms: u64,
        turn: &mut Turn<'_>,
    ) {
        let (task, to, spec) = (live.id(), self.attempt_ref(&live), Arc::clone(&live.spec));
        let record = self.keep(live, turn);
        let grant = Grant {
            to,
            token,
            granted_ms,
            expires_at: wall_of(turn.now.at + granted_ms, turn.now),
            renew_ms: renew_every_ms(spec.lease_ttl_ms),
            record,
            spec,
        };
        let reply = Reply::Granted(Some(Box::new(grant)));
        let after = if mutant!(GrantBeforePersist) {
            After::Nothing
        } else {
            After::Task(task)
        };
        turn.reply(request, after, reply);
    }
}

fn is_of_scope(spec: &TaskSpec, agent: &Agent) -> bool {
    spec.agent_scope.as_deref() == Some(&*agent.scope)
}

/// A task that is not live is finished, or none of this agent's.
pub(crate) fn missing(agent: &Agent, finished: Option<Finished>) -> Rejection {
    let own = finished.filter(|finished| {
        finished.record.tenant == agent.tenant && is_of_scope(&finished.spec, agent)
    });
    match own {
        Some(_) => Rejection::AlreadyFinished,
        None => Rejection::UnknownTask,
    }
}
