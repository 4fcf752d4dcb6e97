//! S5: whatever leaves the relay is implied by what is durable at that instant.

use baton_core::effects::{Downstream, Renewal, Reply, Send, Verdict};
use baton_core::id::{AttemptId, TaskId};
use baton_core::record::{
    AttemptRecord, InputState, ProgressRecord, State as AttemptStage, TaskRecord,
};
use baton_core::reject::Rejection;

use crate::store::State;

/// S5: whatever is let go is implied by what is durable.
pub(crate) fn check(durable: &State, send: &Send, now: u64) {
    match send {
        Send::Reply {
            outcome:
                Ok(Reply::Submitted { record, .. } | Reply::Task(record) | Reply::Finished(record)),
            ..
        } => known(durable, record),
        Send::Reply {
            outcome: Ok(Reply::Granted(Some(grant))),
            ..
        } => {
            known(durable, &grant.record);
            let stored = attempt(durable, grant.to.task, grant.to.attempt);
            let begun = stored.state != AttemptStage::Queued;
            assert!(begun, "S5: {} was granted and is not leased", stored.id);
        }
        Send::Reply {
            outcome: Ok(Reply::Progressed { record, progress }),
            ..
        } => {
            known(durable, record);
            told(durable, progress);
        }
        Send::Reply {
            outcome: Ok(Reply::Checkpointed { record, checkpoint }),
            ..
        } => {
            known(durable, record);
            let stored = durable.record(record.task);
            let counts = stored.is_some_and(|stored| stored.checkpoints >= checkpoint.number);
            assert!(counts, "S5: a checkpoint was told and is not durable");
        }
        Send::Published { record, .. } => known(durable, record),
        Send::ToSession { message, .. } => message_sent(durable, message, now),
        Send::Reply { .. } | Send::CloseSession { .. } => {}
    }
}

fn told(durable: &State, progress: &ProgressRecord) {
    let stored = durable.progress.get(&progress.task);
    let count = |of: &ProgressRecord| of.completed.len() as u64 + of.completed_truncated;
    let gone = durable.removed.contains_key(&progress.task);
    assert!(
        gone || stored.is_some_and(|stored| count(stored) >= count(progress)),
        "S5: progress of {} was told and is not durable",
        progress.task
    );
}

fn known(durable: &State, record: &TaskRecord) {
    let stored = durable.record(record.task);
    let stored =
        stored.unwrap_or_else(|| panic!("S5: {} was told of and is not durable", record.task));
    assert!(
        stored.revision >= record.revision,
        "S5: {} at {} was told, {} is durable",
        record.task,
        record.revision,
        stored.revision
    );
}

fn message_sent(durable: &State, message: &Downstream, now: u64) {
    match message {
        Downstream::Welcome { settlements, .. } => {
            for settlement in settlements {
                settled(durable, settlement.attempt, &settlement.verdict);
            }
        }
        Downstream::HeartbeatAck { results, .. } => results
            .iter()
            .for_each(|(a, r)| renewed(durable, *a, r, None)),
        // A request is named by the time at which it was made.
        Downstream::HoldAck { request, results } => results
            .iter()
            .for_each(|(a, r)| renewed(durable, *a, r, Some(now - request))),
        Downstream::Ack {
            attempt,
            control_seq,
        } => {
            let stored = durable.find(*attempt);
            let kept =
                stored.is_some_and(|a| a.control_seq >= *control_seq || !a.state.is_leased());
            assert!(
                kept,
                "S5: frame {control_seq} of {attempt} was acknowledged and is not durable"
            );
        }
        Downstream::Dispatch(_)
        | Downstream::LeaseConfirmed { .. }
        | Downstream::Cancel { .. }
        | Downstream::Answer { .. } => ordered(durable, message),
        Downstream::Abandon { attempt, .. } => over(durable, *attempt),
        Downstream::FrameRejected { attempt, code, .. } => {
            let stale = matches!(
                code,
                Rejection::StaleAttempt | Rejection::TaskTerminal | Rejection::NotLeased
            );
            if stale {
                over(durable, *attempt);
            }
        }
        Downstream::Drain { .. } => {}
    }
}

/// What tells a daemon to do something with an attempt.
fn ordered(durable: &State, message: &Downstream) {
    match message {
        Downstream::Dispatch(dispatch) => {
            let stored = attempt(durable, dispatch.to.task, dispatch.to.attempt);
            // What was parked in the same turn has lost its lease again.
            let parked = stored.holder.is_some() && !stored.state.is_leased();
            assert!(
                stored.lease.is_some() || parked,
                "S5: {} was offered and has no lease",
                stored.id
            );
            assert!(
                !stored.fresh || (dispatch.fresh && dispatch.agent_session_id.is_none()),
                "resume: {} goes on with what is gone",
                stored.id
            );
        }
        Downstream::LeaseConfirmed { to, .. } => {
            let stored = attempt(durable, to.task, to.attempt);
            let confirmed = stored.lease.as_ref().is_some_and(|lease| lease.confirmed);
            assert!(
                confirmed || !stored.state.is_leased(),
                "S5: {} was confirmed and that is not durable",
                stored.id
            );
        }
        Downstream::Cancel { to, .. } => {
            let stored = attempt(durable, to.task, to.attempt);
            let ending = matches!(stored.state, AttemptStage::CleaningUp { .. })
                || !stored.state.is_leased();
            assert!(
                ending,
                "S5: {} was told to end and is {:?}",
                stored.id,
                stored.state.name()
            );
        }
        Downstream::Answer {
            to, input, digest, ..
        } => {
            let stored = attempt(durable, to.task, to.attempt);
            let asked = stored.inputs.iter().find(|asked| asked.id == *input);
            let answered = asked.filter(|asked| asked.state != InputState::Open);
            assert!(
                answered.is_some(),
                "S5: an answer to {input} was sent and is not durable"
            );
            let bound = answered.is_some_and(|asked| asked.digest == *digest);
            assert!(bound, "S8: the answer to {input} is not bound to it");
        }
        Downstream::Welcome { .. }
        | Downstream::HeartbeatAck { .. }
        | Downstream::HoldAck { .. }
        | Downstream::Ack { .. }
        | Downstream::Abandon { .. }
        | Downstream::FrameRejected { .. }
        | Downstream::Drain { .. } => {}
    }
}

fn attempt(durable: &State, task: TaskId, id: AttemptId) -> &AttemptRecord {
    let stored = durable.attempt(task, id);
    stored.unwrap_or_else(|| panic!("S5: attempt {id} was told of and is not durable"))
}

fn over(durable: &State, attempt: AttemptId) {
    let leased = durable.find(attempt).is_some_and(|a| a.state.is_leased());
    assert!(!leased, "S5: {attempt} was given up and is leased on disk");
}

fn settled(durable: &State, attempt: AttemptId, verdict: &Verdict) {
    match verdict {
        Verdict::Keep { acked, .. } | Verdict::Adopt { acked } => {
            let stored = durable.find(attempt);
            let kept = stored.is_some_and(|a| a.control_seq >= *acked || !a.state.is_leased());
            assert!(kept, "S5: {attempt} was acknowledged up to {acked}");
        }
        Verdict::Kill { .. } => over(durable, attempt),
    }
}

/// A hold counts from the send of its request, `elapsed` ago: what is left of it must be durable.
fn renewed(durable: &State, attempt: AttemptId, renewal: &Renewal, elapsed: Option<u64>) {
    match (renewal, elapsed) {
        (Renewal::Revoked { .. }, _) => over(durable, attempt),
        (Renewal::Renewed { granted_ms, .. }, Some(elapsed)) => {
            let stored = durable.find(attempt);
            let lease = stored.and_then(|a| a.lease.as_ref());
            // What was parked since has no lease; as long as it may run, a fence stands for it.
            let fence = durable.fences.get(&attempt).map(|fence| fence.full_ms);
            let span = lease.map(|lease| lease.granted_ms).or(fence);
            let kept = match span {
                Some(span) => span + elapsed >= *granted_ms,
                None => stored.is_some_and(|a| !a.state.is_leased()),
            };
            assert!(kept, "S5: the hold of {attempt} is not durable");
        }
        (Renewal::Renewed { .. }, None) => {}
    }
}
