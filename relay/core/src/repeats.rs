//! Calls of agents that come again. An agent has no stream and no outbox: when a connection breaks it cannot know whether its
//! call was heard, so it gives the call an id and says it once more. What was obeyed is then answered and not obeyed again.
//!
//! A lease that was granted to a call is granted again with a new token, for the first one is in memory only and may never
//! have arrived; whoever has that one proves nothing any more. It stays the same attempt, so nothing of it is fenced.

use uuid::Uuid;

use crate::agent_calls::is_over;
use crate::agent_held::Caller;
use crate::core::{Core, Turn};
use crate::frame::token_hash;
use crate::id::{AttemptId, RequestId, TaskId};
use crate::input::LeaseToken;
use crate::live::Live;
use crate::record::{AgentHolder, CallMark, HeardCall, Holder};
use crate::reject::Rejection;
use crate::time::Moment;

/// Calls that an attempt remembers: agents make one after the other, or a few at once.
pub(crate) const CALLS_KEPT: usize = 4;

/// The call with this mark, if it was obeyed before. One id stands for one call.
pub(crate) fn heard<'a>(
    holder: &'a AgentHolder,
    mark: Option<&CallMark>,
) -> Result<Option<&'a HeardCall>, Rejection> {
    let Some(mark) = mark else {
        return Ok(None);
    };
    let known = holder.calls.iter().find(|call| call.mark.id == mark.id);
    match known {
        Some(call) if call.mark != *mark => Err(Rejection::IdempotencyConflict),
        known => Ok(known),
    }
}

/// Kept with what the call wrote, in the same record.
pub(crate) fn remember(live: &mut Live, attempt: AttemptId, call: HeardCall) {
    let attempts = &mut live.record_mut().attempts;
    let named = attempts.iter_mut().find(|known| known.id == attempt);
    if let Some(Holder::Agent(holder)) = named.and_then(|named| named.holder.as_mut()) {
        let full = holder.calls.len().saturating_sub(CALLS_KEPT - 1);
        holder.calls.drain(..full);
        holder.calls.push(call);
    }
}

impl Core {
    /// Answers a call that was granted a lease before and holds it still; false for every other one.
    pub(crate) fn grant_again(
        &mut self,
        request: RequestId,
        caller: &Caller,
        turn: &mut Turn<'_>,
    ) -> bool {
        let task = match self.granted_before(caller, turn.now.at) {
            Ok(Some(task)) => task,
            Ok(None) => return false,
            Err(code) => {
                turn.refuse(request, code);
                return true;
            }
        };
        let Some(mut live) = self.take_for(&caller.agent, task) else {
            return false;
        };
        let token = LeaseToken(turn.mint.secret());
        if let Some(lease) = &mut live.newest_mut().lease {
            lease.token_hash = token_hash(&token);
        }
        let (granted_ms, _) = self.renew_held(&mut live, turn);
        self.tell_grant(live, request, token, granted_ms, turn);
        true
    }

    fn granted_before(&self, caller: &Caller, now: Moment) -> Result<Option<TaskId>, Rejection> {
        let Some(mark) = &caller.mark else {
            return Ok(None);
        };
        let (token, nobody, everybody) = (caller.agent.token, Uuid::nil(), Uuid::max());
        let own = (token, AttemptId(nobody))..=(token, AttemptId(everybody));
        let mut leases = self.held.range(own).filter_map(|(_, task)| {
            let live = self.tasks.get(task)?;
            let holder = live.newest().agent()?;
            let by = holder.granted_by.as_ref()?;
            (by.id == mark.id).then_some((live, holder, by))
        });
        match leases.next() {
            Some((_, _, by)) if *by != **mark => Err(Rejection::IdempotencyConflict),
            Some((live, holder, _)) => {
                let stands = holder.incarnation == self.config.incarnation && !is_over(live, now);
                Ok(stands.then(|| live.id()))
            }
            None => Ok(None),
        }
    }
}
