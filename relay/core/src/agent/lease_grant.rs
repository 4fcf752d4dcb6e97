//! Commands that give an agent a lease without a daemon: start, claim and pick up.
//!
//! Start and claim are one write each: the attempt is offered, accepted and confirmed at once,
//! because the caller does the work itself. The successor rule and the pauses apply as for a
//! daemon. Calls under the lease are in `lease_call.rs`.

use std::sync::Arc;

use crate::attempt::machine::MachineEvent;
use crate::core_state::{Core, CoreTurn};
use crate::fleet::heartbeat::agent_renewal_ms;
use crate::ids::{AttemptId, TaskId};
use crate::io::command::{AgentPrincipal, Command, CommandOutcome, CommandReply};
use crate::io::effects::{AgentLeaseGrant, CommitDependency};
use crate::io::rejection::Rejection;
use crate::io::session_input::LeaseToken;
use crate::io::stored_lookup::{FinishedTask, PriorSubmission, StoredNeeds, StoredRecords};
use crate::record::{AgentHolder, AttemptState, CallFingerprint, LeaseHolder, TimelineEventKind};
use crate::schedule::conversation::ConversationKey;
use crate::schedule::dispatch::new_lease;
use crate::task::live_task::{LiveTask, wall_time_at};
use crate::task::spec::TaskSpec;
use crate::task::submit::SubmitTask;
use crate::time::MonotonicTime;

/// An agent that asks for a lease, and the fingerprint of its call.
#[derive(Debug)]
pub struct AgentCaller {
    pub agent: AgentPrincipal,
    /// Present if the caller may have to repeat the call.
    pub fingerprint: Option<Box<CallFingerprint>>,
}

/// Submits and claims a task in one write, so the task is never visible as queued. It needs an
/// idempotency key: without one, a lost reply would leave a lease that the agent cannot find
/// again.
#[derive(Debug)]
pub struct StartTask {
    pub submit: SubmitTask,
    pub caller: AgentCaller,
}

impl Command for StartTask {
    type Reply = Box<AgentLeaseGrant>;

    fn stored_needs(&self) -> StoredNeeds {
        StoredNeeds::submission(&self.submit.spec)
    }

    fn run(
        self,
        core: &mut Core,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let Self { submit, caller } = self;
        if let Some(prior) = core.find_prior_submission(&submit.spec, stored.prior_submission)? {
            return core.restart_known_task(&submit, &prior, caller, turn);
        }
        core.admit_task(&submit.spec)?;
        core.check_start(&submit, turn.now.monotonic)?;
        let live = core.open_task(&submit, turn);
        Ok(core.grant_to_agent(live, caller, turn))
    }
}

/// Claims a queued task: the named one, or the first one in the agent's scope. The reply is
/// `None` if there is none.
#[derive(Debug)]
pub struct ClaimTask {
    pub caller: AgentCaller,
    pub task: Option<TaskId>,
}

impl Command for ClaimTask {
    type Reply = Option<Box<AgentLeaseGrant>>;

    fn stored_needs(&self) -> StoredNeeds {
        let tenant = &self.caller.agent.tenant;
        let task = self.task.map(|task| StoredNeeds::task(tenant, task));
        task.unwrap_or_default()
    }

    fn run(
        self,
        core: &mut Core,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let Self { caller, task } = self;
        if let Some(grant) = core.repeat_grant(&caller, turn)? {
            return Ok(grant.map(Some));
        }
        let first = || core.first_claimable(&caller.agent, turn.now.monotonic);
        let Some(task) = task.or_else(first) else {
            return Ok(CommandReply::immediate(None));
        };
        let grant = core.claim_named_task(caller, task, stored.finished, turn)?;
        Ok(grant.map(Some))
    }
}

/// Takes over a parked task in one write: the parked attempt is handed off, and attempt N+1 is
/// leased to the caller. The second of two callers is refused because the task is already
/// handed off.
#[derive(Debug)]
pub struct PickUpTask {
    pub caller: AgentCaller,
    pub task: TaskId,
    /// The parked attempt that the caller saw.
    pub attempt: Option<AttemptId>,
    pub reason: Option<Arc<str>>,
}

impl Command for PickUpTask {
    type Reply = Box<AgentLeaseGrant>;

    fn stored_needs(&self) -> StoredNeeds {
        StoredNeeds::task(&self.caller.agent.tenant, self.task)
    }

    fn run(
        self,
        core: &mut Core,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        if let Some(grant) = core.repeat_grant(&self.caller, turn)? {
            return Ok(grant);
        }
        let agent = &self.caller.agent;
        let Some(mut live) = core.take_agent_task(agent, self.task) else {
            return Err(missing_agent_task(agent, stored.finished));
        };
        if let Err(code) = core.check_pick_up(&live, self.attempt, turn.now.monotonic) {
            core.put_back_task(live, turn);
            return Err(code);
        }
        let by = Arc::clone(&agent.name);
        live.add_event(TimelineEventKind::PickedUp { by }, self.reason);
        core.start_successor(&mut live, Arc::clone(&agent.name), turn);
        Ok(core.grant_to_agent(live, self.caller, turn))
    }
}

impl Core {
    /// Starts a task whose idempotency key exists. The task may have been released since, so it
    /// can be claimed again.
    fn restart_known_task(
        &mut self,
        submit: &SubmitTask,
        prior: &PriorSubmission,
        caller: AgentCaller,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Box<AgentLeaseGrant>> {
        if prior.digest != submit.digest && !mutant!(ConflictIgnored) {
            return Err(Rejection::IdempotencyConflict);
        }
        if prior.finished.is_some() && !self.is_live(prior.task) {
            return Err(Rejection::AlreadyFinished);
        }
        match self.repeat_grant(&caller, turn)? {
            Some(grant) => Ok(grant),
            None => self.claim_named_task(caller, prior.task, None, turn),
        }
    }

    /// Checks whether a new task may be leased now. Its conversation may have an earlier turn
    /// that still runs.
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

    fn claim_named_task(
        &mut self,
        caller: AgentCaller,
        task: TaskId,
        finished: Option<FinishedTask>,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Box<AgentLeaseGrant>> {
        let agent = &caller.agent;
        let Some(live) = self.take_agent_task(agent, task) else {
            return Err(missing_agent_task(agent, finished));
        };
        match self.check_claim(&live, turn.now.monotonic) {
            Ok(()) => Ok(self.grant_to_agent(live, caller, turn)),
            Err(code) => {
                self.put_back_task(live, turn);
                Err(code)
            }
        }
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

    /// Takes out a live task in this agent's scope. Any other task is treated as missing.
    pub(crate) fn take_agent_task(
        &mut self,
        agent: &AgentPrincipal,
        task: TaskId,
    ) -> Option<Box<LiveTask>> {
        let live = self.tasks.get(&task)?;
        if !is_in_agent_scope(&live.spec, agent) {
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

    /// Whether the task may be leased now. Placement checks the same before an offer to a
    /// daemon.
    pub(crate) fn check_leasable(
        &self,
        live: &LiveTask,
        now: MonotonicTime,
    ) -> Result<(), Rejection> {
        let key = ConversationKey::from_spec(&live.spec);
        let paused = self.is_leasing_suspended() || self.is_paused(live);
        let behind = self.queue.is_behind_conversation(live.id());
        let fence = self.fences.check_lease(live.id(), key.as_ref(), now);
        let fenced = fence.is_err() && !mutant!(FencesNotAsked);
        if paused || behind || fenced {
            return Err(Rejection::NotClaimable);
        }
        Ok(())
    }

    /// Whether all leasing is suspended, by a scheduler pause or a full disk.
    fn is_leasing_suspended(&self) -> bool {
        let paused = self.scheduler.paused.is_some() && !mutant!(SchedulerPauseIgnored);
        paused || self.dispatch_suspended
    }

    /// Leases the newest, queued attempt to the agent. No other function does this.
    pub(crate) fn grant_to_agent(
        &mut self,
        mut live: Box<LiveTask>,
        AgentCaller { agent, fingerprint }: AgentCaller,
        turn: &mut CoreTurn<'_>,
    ) -> CommandReply<Box<AgentLeaseGrant>> {
        let (token, lease) = new_lease(&live, true, turn);
        let holder = LeaseHolder::Agent(AgentHolder {
            token: agent.token,
            name: agent.name,
            incarnation: self.config.incarnation,
            granting_call: fingerprint.map(|fingerprint| *fingerprint),
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
        self.granted_lease(live, token, granted_ms, turn)
    }

    /// The only reply that contains the token.
    pub(crate) fn granted_lease(
        &mut self,
        live: Box<LiveTask>,
        token: LeaseToken,
        granted_ms: u64,
        turn: &mut CoreTurn<'_>,
    ) -> CommandReply<Box<AgentLeaseGrant>> {
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
        CommandReply {
            depends_on: CommitDependency::Task(task).unless_broken(mutant!(GrantBeforePersist)),
            reply: Box::new(grant),
        }
    }
}

fn is_in_agent_scope(spec: &TaskSpec, agent: &AgentPrincipal) -> bool {
    spec.agent_scope.as_deref() == Some(&*agent.scope)
}

/// The rejection for a task that is not live: finished, or not in this agent's scope.
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
