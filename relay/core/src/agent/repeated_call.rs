//! Calls of agents that come again. An agent has no stream and no outbox: when a connection breaks it cannot know whether its
//! call was heard, so it gives the call an id and says it once more. What was obeyed is then answered and not obeyed again.
//!
//! A lease that was granted to a call is granted again with a new token, for the first one is in memory only and may never
//! have arrived; whoever has that one proves nothing any more. It stays the same attempt, so nothing of it is fenced.

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

/// Calls that an attempt remembers: agents make one after the other, or a few at once.
pub(crate) const MAX_ANSWERED_CALLS: usize = 4;

/// The call with this mark, if it was obeyed before. One id stands for one call.
pub(crate) fn find_answered_call<'a>(
    holder: &'a AgentHolder,
    mark: Option<&CallFingerprint>,
) -> Result<Option<&'a AnsweredCall>, Rejection> {
    let Some(mark) = mark else {
        return Ok(None);
    };
    let known = holder
        .answered_calls
        .iter()
        .find(|call| call.fingerprint.id == mark.id);
    match known {
        Some(call) if call.fingerprint != *mark => Err(Rejection::IdempotencyConflict),
        known => Ok(known),
    }
}

/// Kept with what the call wrote, in the same record.
pub(crate) fn store_answered_call(live: &mut LiveTask, attempt: AttemptId, call: AnsweredCall) {
    let attempts = &mut live.record_mut().attempts;
    let named = attempts.iter_mut().find(|known| known.id == attempt);
    if let Some(LeaseHolder::Agent(holder)) = named.and_then(|named| named.holder.as_mut()) {
        let full = holder
            .answered_calls
            .len()
            .saturating_sub(MAX_ANSWERED_CALLS - 1);
        holder.answered_calls.drain(..full);
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
    let Some(mark) = &caller.fingerprint else {
        return Ok(None);
    };
    let mut granted = leases
        .tasks_of_agent(caller.agent.token)
        .filter_map(|task| {
            let live = tasks.get(task)?;
            let holder = live.newest_attempt().agent_holder()?;
            let by = holder.granting_call.as_ref()?;
            (by.id == mark.id).then_some((live, holder, by))
        });
    match granted.next() {
        Some((_, _, by)) if *by != **mark => Err(Rejection::IdempotencyConflict),
        Some((live, holder, _)) => {
            let current = holder.incarnation == turn.config.incarnation;
            let stands = current && !is_lease_over(live, turn.now.monotonic);
            Ok(stands.then(|| live.id()))
        }
        None => Ok(None),
    }
}
