//! Calls of an agent about a lease that it holds. They follow the same rules as a daemon's
//! frames, without a stream.
//!
//! Order of the checks: the attempt exists and belongs to this credential; the incarnation is
//! current; the token matches; the attempt is leased; the lease has not expired (a lease that
//! reaches its limit has expired); then the call's own rule. The first check that fails
//! determines the rejection code, and nothing is written. The shape of the request was checked
//! before any lookup. A repeated call (`repeated_call.rs`) is recognised right after the token
//! check and gets its earlier answer, even if the lease has ended since.

use std::sync::Arc;

use crate::agent::attempt_verb::AgentVerb;
use crate::agent::repeated_call;
use crate::attempt::attempt_owners::AttemptOwners;
use crate::attempt::machine::MachineEvent;
use crate::attempt::timers::TimerKey;
use crate::core_state::CoreOwners;
use crate::fleet::frame::record_cancel_delivered;
use crate::fleet::frame_check::matches_token;
use crate::ids::{AttemptId, Incarnation, TaskId};
use crate::io::command::{AgentPrincipal, Command, CommandOutcome, CommandReply};
use crate::io::rejection::Rejection;
use crate::io::session_input::LeaseToken;
use crate::io::stored_lookup::{FinishedTask, StoredNeeds, StoredRecords};
use crate::record::{
    AgentHolder, AnsweredCall, AttemptRecord, AttemptState, CallFingerprint, FailureCode,
    TaskRecord, TaskState,
};
use crate::task::live_task::{LiveTask, wall_time_at};
use crate::time::{MonotonicTime, WallTime};
use crate::turn::CoreTurn;

/// The lease that a call refers to, with the token that proves possession. Without a stream,
/// the token is the only proof.
#[derive(Clone, Debug)]
pub struct AgentLeaseProof {
    pub agent: AgentPrincipal,
    pub task: TaskId,
    pub attempt: AttemptId,
    pub token: LeaseToken,
}

/// Renews a lease. A repeated renewal is harmless, so it needs no fingerprint.
#[derive(Debug)]
pub struct RenewAgentLease {
    pub lease: AgentLeaseProof,
}

#[derive(Debug)]
pub struct RenewedLease {
    pub granted_ms: u64,
    pub expires_at: WallTime,
    /// A cancel was requested: the agent must stop and then confirm it.
    pub cancel_requested: bool,
}

impl Command for RenewAgentLease {
    type Reply = RenewedLease;

    fn stored_needs(&self) -> StoredNeeds {
        StoredNeeds::task(&self.lease.agent.tenant, self.lease.task)
    }

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<RenewedLease> {
        let lease = &self.lease;
        let Some(mut live) = core.tasks.take(&lease.agent.tenant, lease.task) else {
            let finished = own_finished_task(lease, stored.finished)?;
            let found = find_lease(&finished.record, lease, turn.config.incarnation)?;
            found.check_leased()?;
            return Err(not_leased_reason(found.attempt, finished.record.state));
        };
        let renewed = core.attempt().check_and_renew(&mut live, lease, turn);
        core.put_back_task(live, turn);
        let (granted_ms, cancel_requested) = renewed?;
        let reply = RenewedLease {
            granted_ms,
            expires_at: wall_time_at(turn.now.monotonic + granted_ms, turn.now),
            cancel_requested,
        };
        // A cancel may be reported only when it is durable. A plain renewal does not wait for
        // the disk.
        Ok(if cancel_requested {
            CommandReply::after_task(lease.task, reply)
        } else {
            CommandReply::immediate(reply)
        })
    }
}

/// Any other call about a lease that the caller holds.
#[derive(Debug)]
pub struct AgentLeaseCall<V> {
    pub lease: AgentLeaseProof,
    /// Present if the caller may have to repeat the call.
    pub fingerprint: Option<CallFingerprint>,
    pub verb: V,
}

#[derive(Debug)]
pub enum AgentCallReply<D> {
    Done {
        record: Arc<TaskRecord>,
        done: D,
    },
    /// The call was carried out before and is not carried out again. Holds the current task
    /// record and the number of the checkpoint that the call wrote.
    Repeated {
        record: Arc<TaskRecord>,
        checkpoint: Option<u64>,
    },
}

impl<V: AgentVerb> Command for AgentLeaseCall<V> {
    type Reply = AgentCallReply<V::Done>;

    fn stored_needs(&self) -> StoredNeeds {
        let (tenant, task) = (&self.lease.agent.tenant, self.lease.task);
        if self.verb.updates_progress() {
            StoredNeeds::task_and_progress(tenant, task)
        } else {
            StoredNeeds::task(tenant, task)
        }
    }

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let task = self.lease.task;
        let Some(mut live) = core.tasks.take(&self.lease.agent.tenant, task) else {
            let reply = self.run_on_finished_task(stored, turn.config.incarnation)?;
            return Ok(CommandReply::after_task(task, reply));
        };
        let answer = self.run_on_live_task(&mut core.attempt(), &mut live, stored, turn);
        let record = core.put_back_task(live, turn);
        let reply = match answer? {
            CallAnswer::Done(done) => AgentCallReply::Done { record, done },
            CallAnswer::Repeated(AnsweredCall { checkpoint, .. }) => {
                AgentCallReply::Repeated { record, checkpoint }
            }
        };
        Ok(CommandReply::after_task(task, reply))
    }
}

/// The answer to an accepted call, before the task is put back.
enum CallAnswer<D> {
    Done(D),
    Repeated(AnsweredCall),
}

impl<V: AgentVerb> AgentLeaseCall<V> {
    /// Answers a call on a finished task: only a call that was already carried out succeeds.
    fn run_on_finished_task(
        self,
        stored: StoredRecords,
        incarnation: Incarnation,
    ) -> Result<AgentCallReply<V::Done>, Rejection> {
        let FinishedTask { record, .. } = own_finished_task(&self.lease, stored.finished)?;
        let found = find_lease(&record, &self.lease, incarnation)?;
        if let Some(answered) = self.find_answered_call(&found)? {
            let checkpoint = answered.checkpoint;
            return Ok(AgentCallReply::Repeated { record, checkpoint });
        }
        found.check_leased()?;
        match self.verb.already_done(found.attempt) {
            Some(done) => Ok(AgentCallReply::Done { record, done }),
            None => Err(not_leased_reason(found.attempt, record.state)),
        }
    }

    fn run_on_live_task(
        self,
        owners: &mut AttemptOwners<'_>,
        live: &mut LiveTask,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> Result<CallAnswer<V::Done>, Rejection> {
        let found = find_lease(live.record(), &self.lease, turn.config.incarnation)?;
        if let Some(answered) = self.find_answered_call(&found)? {
            return Ok(CallAnswer::Repeated(answered));
        }
        found.check_leased()?;
        let index = found.index;
        if !owners.is_current_lease(live, &self.lease, turn)? {
            let attempt = &live.record().attempts[index];
            let done = self.verb.already_done(attempt);
            let late = not_leased_reason(attempt, live.record().state);
            return done.map(CallAnswer::Done).ok_or(late);
        }
        let done = self
            .verb
            .apply(owners, live, &self.lease.agent, stored.progress, turn)?;
        if let Some(fingerprint) = self.fingerprint {
            let checkpoint = V::checkpoint_number(&done);
            let answered = AnsweredCall {
                fingerprint,
                checkpoint,
            };
            repeated_call::store_answered_call(live, self.lease.attempt, answered);
        }
        Ok(CallAnswer::Done(done))
    }

    fn find_answered_call(
        &self,
        found: &FoundLease<'_>,
    ) -> Result<Option<AnsweredCall>, Rejection> {
        let known = repeated_call::find_answered_call(found.holder, self.fingerprint.as_ref())?;
        Ok(known.cloned())
    }
}

impl AttemptOwners<'_> {
    fn check_and_renew(
        &mut self,
        live: &mut LiveTask,
        lease: &AgentLeaseProof,
        turn: &mut CoreTurn<'_>,
    ) -> Result<(u64, bool), Rejection> {
        let found = find_lease(live.record(), lease, turn.config.incarnation)?;
        found.check_leased()?;
        let index = found.index;
        if !self.is_current_lease(live, lease, turn)? {
            let attempt = &live.record().attempts[index];
            return Err(not_leased_reason(attempt, live.record().state));
        }
        Ok(renew_agent_lease(live, turn))
    }

    /// Whether the named attempt is the current lease. Expires the lease here if its time is
    /// over.
    fn is_current_lease(
        &mut self,
        live: &mut LiveTask,
        lease: &AgentLeaseProof,
        turn: &mut CoreTurn<'_>,
    ) -> Result<bool, Rejection> {
        let named = live.newest_attempt().id == lease.attempt || mutant!(AgentUnfenced);
        let current = named && live.is_newest_leased();
        if current && is_lease_over(live, turn.now.monotonic) {
            // The lease expired before this call arrived. The next timer sweep would end it
            // anyway.
            let expired = MachineEvent::TimerExpired(TimerKey::Lease);
            self.apply_event(live, expired, None, turn);
            return Err(Rejection::LeaseExpired);
        }
        Ok(current)
    }
}

/// Returns the granted time and whether a cancel is pending. During a cancel the lease is
/// not renewed, so that an agent that never confirms cannot delay the cancel for ever.
pub(crate) fn renew_agent_lease(live: &mut LiveTask, turn: &CoreTurn<'_>) -> (u64, bool) {
    let now = turn.now.monotonic;
    let told = matches!(live.newest_attempt().state, AttemptState::CleaningUp { .. })
        && !mutant!(CancelUntold);
    if told {
        let granted_ms = live.timers.left_ms(&TimerKey::Lease, now).unwrap_or(0);
        record_cancel_delivered(live, turn.now.wall);
        return (granted_ms, told);
    }
    let granted_ms = live.spec.lease_ttl_ms;
    live.renew_lease(now + granted_ms, turn.config, now);
    (granted_ms, told)
}

/// The attempt that a call names, and its holder.
struct FoundLease<'a> {
    index: usize,
    attempt: &'a AttemptRecord,
    holder: &'a AgentHolder,
}

impl FoundLease<'_> {
    /// A parked attempt no longer has a lease.
    fn check_leased(&self) -> Result<(), Rejection> {
        if self.attempt.lease.is_some() {
            Ok(())
        } else {
            Err(Rejection::NotLeased)
        }
    }
}

fn own_finished_task(
    lease: &AgentLeaseProof,
    finished: Option<FinishedTask>,
) -> Result<FinishedTask, Rejection> {
    let own = finished.filter(|finished| finished.record.tenant == lease.agent.tenant);
    own.ok_or(Rejection::UnknownTask)
}

/// Checks that the attempt exists and belongs to this credential, then the token. An attempt of
/// another agent is reported as unknown.
fn find_lease<'a>(
    record: &'a TaskRecord,
    lease: &AgentLeaseProof,
    incarnation: Incarnation,
) -> Result<FoundLease<'a>, Rejection> {
    let attempts = &record.attempts;
    let index = attempts.iter().position(|known| known.id == lease.attempt);
    let index = index.ok_or(Rejection::UnknownAttempt)?;
    let attempt = &attempts[index];
    let holder = attempt.agent_holder();
    let own =
        holder.filter(|holder| holder.token == lease.agent.token || mutant!(StolenLeaseTaken));
    let holder = own.ok_or(Rejection::UnknownAttempt)?;
    if holder.incarnation != incarnation && !mutant!(IncarnationIgnored) {
        return Err(Rejection::StaleIncarnation);
    }
    let leased = attempt.lease.is_some();
    if leased && !matches_token(attempt, &lease.token) && !mutant!(AgentTokenIgnored) {
        return Err(Rejection::BadProof);
    }
    Ok(FoundLease {
        index,
        attempt,
        holder,
    })
}

pub(crate) fn is_lease_over(live: &LiveTask, now: MonotonicTime) -> bool {
    live.lease_ends_at().is_none_or(|ends| ends <= now) && !mutant!(ExpiredAgentHeard)
}

/// The reason why a call is too late. The code is the same whether this call or the timer sweep
/// noticed the expired lease.
fn not_leased_reason(attempt: &AttemptRecord, state: TaskState) -> Rejection {
    let end = attempt.state.end();
    if end.is_some_and(|end| end.failure_code == Some(FailureCode::LeaseExpired)) {
        Rejection::LeaseExpired
    } else if state.is_terminal() {
        Rejection::TaskTerminal
    } else {
        Rejection::NotLeased
    }
}
