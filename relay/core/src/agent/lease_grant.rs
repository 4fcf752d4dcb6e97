//! Commands that give an agent a lease without a daemon: start, claim and pick up.
//!
//! Start and claim are one write each: the attempt is offered, accepted and confirmed at once,
//! because the caller does the work itself. The successor rule and the pauses apply as for a
//! daemon. Calls under the lease are in `lease_call.rs`.

use std::sync::Arc;

use crate::agent::repeated_call::repeat_grant;
use crate::attempt::machine::MachineEvent;
use crate::core_state::CoreOwners;
use crate::fleet::heartbeat::agent_renewal_ms;
use crate::goal::hand_off::check_resume;
use crate::ids::{AttemptId, TaskId};
use crate::io::command::{AgentPrincipal, Command, CommandOutcome, CommandReply};
use crate::io::effects::{AgentLeaseGrant, CommitDependency};
use crate::io::rejection::Rejection;
use crate::io::session_input::LeaseToken;
use crate::io::stored_lookup::{FinishedTask, PriorSubmission, StoredNeeds, StoredRecords};
use crate::record::{AgentHolder, CallFingerprint, LeaseHolder, TimelineEventKind};
use crate::schedule::Schedule;
use crate::schedule::dispatch::{attempt_ref, new_lease};
use crate::task::live_task::{LiveTask, wall_time_at};
use crate::task::spec::TaskSpec;
use crate::task::submit::{SubmitTask, admit_task, find_prior_submission, open_task};
use crate::turn::CoreTurn;

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
        core: &mut CoreOwners<'_>,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let Self { submit, caller } = self;
        if let Some(prior) =
            find_prior_submission(core.tasks, &submit.spec, stored.prior_submission)?
        {
            return restart_known_task(core, &submit, &prior, caller, turn);
        }
        admit_task(core, &submit.spec, turn)?;
        core.schedule
            .check_start(submit.task, &submit.spec, turn.now.monotonic)?;
        let live = open_task(core.tasks, core.schedule, &submit, turn);
        Ok(grant_to_agent(core, live, caller, turn))
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
        core: &mut CoreOwners<'_>,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let Self { caller, task } = self;
        if let Some(grant) = repeat_grant(core, &caller, turn)? {
            return Ok(grant.map(Some));
        }
        let now = turn.now.monotonic;
        let first = || {
            core.schedule
                .first_claimable(core.tasks, &caller.agent, now)
        };
        let Some(task) = task.or_else(first) else {
            return Ok(CommandReply::immediate(None));
        };
        let grant = claim_named_task(core, caller, task, stored.finished, turn)?;
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
        core: &mut CoreOwners<'_>,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        if let Some(grant) = repeat_grant(core, &self.caller, turn)? {
            return Ok(grant);
        }
        let agent = &self.caller.agent;
        let Some(mut live) = core.tasks.take_for_agent(agent, self.task) else {
            return Err(missing_agent_task(agent, stored.finished));
        };
        if let Err(code) = check_pick_up(core.schedule, &live, self.attempt, turn) {
            core.put_back_task(live, turn);
            return Err(code);
        }
        let by = Arc::clone(&agent.name);
        live.add_event(TimelineEventKind::PickedUp { by }, self.reason);
        core.attempt()
            .start_successor(&mut live, Arc::clone(&agent.name), turn);
        Ok(grant_to_agent(core, live, self.caller, turn))
    }
}

/// The key is known: its task may have been released since, and then it can be claimed again.
fn restart_known_task(
    core: &mut CoreOwners<'_>,
    submit: &SubmitTask,
    prior: &PriorSubmission,
    caller: AgentCaller,
    turn: &mut CoreTurn<'_>,
) -> CommandOutcome<Box<AgentLeaseGrant>> {
    if prior.digest != submit.digest && !mutant!(ConflictIgnored) {
        return Err(Rejection::IdempotencyConflict);
    }
    if prior.finished.is_some() && !core.tasks.is_live(prior.task) {
        return Err(Rejection::AlreadyFinished);
    }
    match repeat_grant(core, &caller, turn)? {
        Some(grant) => Ok(grant),
        None => claim_named_task(core, caller, prior.task, None, turn),
    }
}

fn claim_named_task(
    core: &mut CoreOwners<'_>,
    caller: AgentCaller,
    task: TaskId,
    finished: Option<FinishedTask>,
    turn: &mut CoreTurn<'_>,
) -> CommandOutcome<Box<AgentLeaseGrant>> {
    let agent = &caller.agent;
    let Some(live) = core.tasks.take_for_agent(agent, task) else {
        return Err(missing_agent_task(agent, finished));
    };
    match core.schedule.check_claim(&live, turn.now.monotonic) {
        Ok(()) => Ok(grant_to_agent(core, live, caller, turn)),
        Err(code) => {
            core.put_back_task(live, turn);
            Err(code)
        }
    }
}

fn check_pick_up(
    schedule: &Schedule,
    live: &LiveTask,
    seen: Option<AttemptId>,
    turn: &CoreTurn<'_>,
) -> Result<(), Rejection> {
    if live.record().cancel.is_some() {
        return Err(Rejection::BeingCanceled);
    }
    check_resume(live, seen, turn.config)?;
    schedule.check_leasable(live, turn.now.monotonic)
}

/// Leases the newest, queued attempt to the agent. The one place that does.
fn grant_to_agent(
    core: &mut CoreOwners<'_>,
    mut live: Box<LiveTask>,
    AgentCaller { agent, fingerprint }: AgentCaller,
    turn: &mut CoreTurn<'_>,
) -> CommandReply<Box<AgentLeaseGrant>> {
    let (token, lease) = new_lease(&live, true, turn);
    let holder = LeaseHolder::Agent(AgentHolder {
        token: agent.token,
        name: agent.name,
        incarnation: turn.config.incarnation,
        granting_call: fingerprint.map(|fingerprint| *fingerprint),
        answered_calls: Vec::new(),
    });
    live.record_mut().counters.dispatches += 1;
    core.schedule.dequeue(live.id());
    core.schedule.raise_lease_fence(&live, &holder);
    let claim = MachineEvent::Claim { holder, lease };
    core.attempt().apply_event(&mut live, claim, None, turn);
    core.leases
        .insert_agent_lease(agent.token, live.newest_attempt().id, live.id());
    let granted_ms = live.spec.lease_ttl_ms;
    granted_lease(core, live, token, granted_ms, turn)
}

/// The only reply that contains the token.
pub(crate) fn granted_lease(
    core: &mut CoreOwners<'_>,
    live: Box<LiveTask>,
    token: LeaseToken,
    granted_ms: u64,
    turn: &mut CoreTurn<'_>,
) -> CommandReply<Box<AgentLeaseGrant>> {
    let (task, to, spec) = (live.id(), attempt_ref(&live), Arc::clone(&live.spec));
    let record = core.put_back_task(live, turn);
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

impl AgentPrincipal {
    /// Whether agents of its scope may have such tasks.
    pub(crate) fn may_have(&self, spec: &TaskSpec) -> bool {
        spec.agent_scope.as_deref() == Some(&*self.scope)
    }
}

/// The rejection for a task that is not live: finished, or not in this agent's scope.
pub(crate) fn missing_agent_task(
    agent: &AgentPrincipal,
    finished: Option<FinishedTask>,
) -> Rejection {
    let own = finished.filter(|finished| {
        finished.record.tenant == agent.tenant && agent.may_have(&finished.spec)
    });
    match own {
        Some(_) => Rejection::AlreadyFinished,
        None => Rejection::UnknownTask,
    }
}
