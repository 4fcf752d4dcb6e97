//! Repeated calls of agents. An agent has no stream and no outbox: after a broken connection it
//! cannot know whether its call arrived. It therefore gives the call an id and repeats it. A
//! call that was already carried out gets its answer again and is not carried out twice.
//!
//! If the repeated call was granted a lease, the reply contains a new token: the first token
//! was kept in memory only and may never have arrived. The old token is no longer valid. The
//! attempt stays the same, so no fence is needed.

use crate::agent::lease_call::{is_lease_over, renew_agent_lease};
use crate::agent::lease_grant::{AgentCaller, granted_lease};
use crate::attempt::lease_index::LeaseIndex;
use crate::core_state::CoreOwners;
use crate::fleet::frame_check::token_hash;
use crate::ids::{AttemptId, TaskId};
use crate::io::command::CommandReply;
use crate::io::effects::AgentLeaseGrant;
use crate::io::rejection::Rejection;
use crate::io::session_input::LeaseToken;
use crate::record::{AgentHolder, AnsweredCall, CallFingerprint, LeaseHolder};
use crate::task::live_task::LiveTask;
use crate::task::live_tasks::LiveTasks;
use crate::turn::CoreTurn;

/// Calls that an attempt record keeps. Agents make one call at a time or a few at once.
pub(crate) const MAX_ANSWERED_CALLS: usize = 4;

/// Finds the call with this fingerprint if it was carried out before. One id belongs to one
/// call: the same id with another digest is a conflict.
pub(crate) fn find_answered_call<'a>(
    holder: &'a AgentHolder,
    fingerprint: Option<&CallFingerprint>,
) -> Result<Option<&'a AnsweredCall>, Rejection> {
    let Some(fingerprint) = fingerprint else {
        return Ok(None);
    };
    let known = holder
        .answered_calls
        .iter()
        .find(|call| call.fingerprint.id == fingerprint.id);
    match known {
        Some(call) if call.fingerprint != *fingerprint => Err(Rejection::IdempotencyConflict),
        known => Ok(known),
    }
}

/// Stores the answered call in the same record as its effects.
pub(crate) fn store_answered_call(live: &mut LiveTask, attempt: AttemptId, call: AnsweredCall) {
    let attempts = &mut live.record_mut().attempts;
    let named = attempts.iter_mut().find(|known| known.id == attempt);
    if let Some(LeaseHolder::Agent(holder)) = named.and_then(|named| named.holder.as_mut()) {
        let excess = holder
            .answered_calls
            .len()
            .saturating_sub(MAX_ANSWERED_CALLS - 1);
        holder.answered_calls.drain(..excess);
        holder.answered_calls.push(call);
    }
}

/// Answers a call that was granted a lease before and still holds it; none for every other one.
pub(crate) fn repeat_grant(
    core: &mut CoreOwners<'_>,
    caller: &AgentCaller,
    turn: &mut CoreTurn<'_>,
) -> Result<Option<CommandReply<Box<AgentLeaseGrant>>>, Rejection> {
    let Some(task) = find_earlier_grant(core.tasks, core.leases, caller, turn)? else {
        return Ok(None);
    };
    let Some(mut live) = core.tasks.take_for_agent(&caller.agent, task) else {
        return Ok(None);
    };
    let token = LeaseToken(turn.id_source.new_secret());
    if let Some(lease) = &mut live.newest_attempt_mut().lease {
        lease.token_hash = token_hash(&token);
    }
    let (granted_ms, _) = renew_agent_lease(&mut live, turn);
    Ok(Some(granted_lease(core, live, token, granted_ms, turn)))
}

fn find_earlier_grant(
    tasks: &LiveTasks,
    leases: &LeaseIndex,
    caller: &AgentCaller,
    turn: &CoreTurn<'_>,
) -> Result<Option<TaskId>, Rejection> {
    let Some(fingerprint) = &caller.fingerprint else {
        return Ok(None);
    };
    let mut granted = leases
        .tasks_of_agent(caller.agent.token)
        .filter_map(|task| {
            let live = tasks.get(task)?;
            let holder = live.newest_attempt().agent_holder()?;
            let by = holder.granting_call.as_ref()?;
            (by.id == fingerprint.id).then_some((live, holder, by))
        });
    match granted.next() {
        Some((_, _, by)) if *by != **fingerprint => Err(Rejection::IdempotencyConflict),
        Some((live, holder, _)) => {
            let current = holder.incarnation == turn.config.incarnation;
            let stands = current && !is_lease_over(live, turn.now.monotonic);
            Ok(stands.then(|| live.id()))
        }
        None => Ok(None),
    }
}
