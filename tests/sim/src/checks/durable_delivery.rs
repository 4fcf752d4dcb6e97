//! S5: every delivery of the relay is implied by the data that is durable at that time.

use baton_core::ids::{AttemptId, TaskId};
use baton_core::io::effects::{DaemonMessage, LeaseRenewal, SettlementVerdict};
use baton_core::io::rejection::Rejection;
use baton_core::record::{
    AttemptRecord, AttemptState as AttemptStage, InputState, ProgressRecord, TaskRecord,
};

use crate::relay::sim_reply::{SimDelivery, SimReply};
use crate::relay::sim_store::StoreState;

/// S5: the delivery is implied by the durable state.
pub(crate) fn check(durable: &StoreState, send: &SimDelivery, now: u64) {
    match send {
        SimDelivery::Reply {
            outcome:
                Ok(
                    SimReply::Submitted { record, .. }
                    | SimReply::Task(record)
                    | SimReply::Finished(record),
                ),
            ..
        } => check_record_durable(durable, record),
        SimDelivery::Reply {
            outcome: Ok(SimReply::Granted(Some(grant))),
            ..
        } => {
            check_record_durable(durable, &grant.record);
            let stored = stored_attempt(durable, grant.to.task, grant.to.attempt);
            let begun = stored.state != AttemptStage::Queued;
            assert!(begun, "S5: {} was granted and is not leased", stored.id);
        }
        SimDelivery::Reply {
            outcome: Ok(SimReply::Progressed { record, progress }),
            ..
        } => {
            check_record_durable(durable, record);
            check_progress_durable(durable, progress);
        }
        SimDelivery::Reply {
            outcome: Ok(SimReply::Checkpointed { record, checkpoint }),
            ..
        } => {
            check_record_durable(durable, record);
            let stored = durable.record(record.task);
            let counts = stored.is_some_and(|stored| stored.checkpoint_count >= checkpoint.number);
            assert!(counts, "S5: a checkpoint was told and is not durable");
        }
        SimDelivery::Published { record, .. } => check_record_durable(durable, record),
        SimDelivery::ToSession { message, .. } => check_message(durable, message, now),
        SimDelivery::Reply { .. } | SimDelivery::CloseSession { .. } => {}
    }
}

fn check_progress_durable(durable: &StoreState, progress: &ProgressRecord) {
    let stored = durable.progress.get(&progress.task);
    let count = |of: &ProgressRecord| of.completed.len() as u64 + of.completed_truncated;
    let gone = durable.removed.contains_key(&progress.task);
    assert!(
        gone || stored.is_some_and(|stored| count(stored) >= count(progress)),
        "S5: progress of {} was told and is not durable",
        progress.task
    );
}

fn check_record_durable(durable: &StoreState, record: &TaskRecord) {
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

fn check_message(durable: &StoreState, message: &DaemonMessage, now: u64) {
    match message {
        DaemonMessage::Welcome { settlements, .. } => {
            for settlement in settlements {
                check_settlement(durable, settlement.attempt, &settlement.verdict);
            }
        }
        DaemonMessage::HeartbeatAck { results, .. } => results
            .iter()
            .for_each(|(a, r)| check_renewal(durable, *a, r, None)),
        // A request is identified by the time at which it was made.
        DaemonMessage::ExtensionAck { request, results } => results
            .iter()
            .for_each(|(a, r)| check_renewal(durable, *a, r, Some(now - request))),
        DaemonMessage::Ack {
            attempt,
            control_seq,
        } => {
            let stored = durable.find_attempt(*attempt);
            let kept =
                stored.is_some_and(|a| a.control_seq >= *control_seq || !a.state.is_leased());
            assert!(
                kept,
                "S5: frame {control_seq} of {attempt} was acknowledged and is not durable"
            );
        }
        DaemonMessage::Dispatch(_)
        | DaemonMessage::LeaseConfirmed { .. }
        | DaemonMessage::Cancel { .. }
        | DaemonMessage::Answer { .. } => check_order(durable, message),
        DaemonMessage::Abandon { attempt, .. } => check_not_leased(durable, *attempt),
        DaemonMessage::FrameRejected { attempt, code, .. } => {
            let stale = matches!(
                code,
                Rejection::StaleAttempt | Rejection::TaskTerminal | Rejection::NotLeased
            );
            if stale {
                check_not_leased(durable, *attempt);
            }
        }
        DaemonMessage::Drain { .. } => {}
    }
}

/// Orders for a daemon about an attempt.
fn check_order(durable: &StoreState, message: &DaemonMessage) {
    match message {
        DaemonMessage::Dispatch(dispatch) => {
            let stored = stored_attempt(durable, dispatch.to.task, dispatch.to.attempt);
            // An attempt parked in the same turn has lost its lease again.
            let parked = stored.holder.is_some() && !stored.state.is_leased();
            assert!(
                stored.lease.is_some() || parked,
                "S5: {} was offered and has no lease",
                stored.id
            );
            assert!(
                !stored.fresh_conversation
                    || (dispatch.fresh_conversation && dispatch.agent_session_id.is_none()),
                "resume: {} goes on with what is gone",
                stored.id
            );
        }
        DaemonMessage::LeaseConfirmed { to, .. } => {
            let stored = stored_attempt(durable, to.task, to.attempt);
            let confirmed = stored.lease.as_ref().is_some_and(|lease| lease.confirmed);
            assert!(
                confirmed || !stored.state.is_leased(),
                "S5: {} was confirmed and that is not durable",
                stored.id
            );
        }
        DaemonMessage::Cancel { to, .. } => {
            let stored = stored_attempt(durable, to.task, to.attempt);
            let ending = matches!(stored.state, AttemptStage::CleaningUp { .. })
                || !stored.state.is_leased();
            assert!(
                ending,
                "S5: {} was told to end and is {:?}",
                stored.id,
                stored.state.kind()
            );
        }
        DaemonMessage::Answer {
            to, input, digest, ..
        } => {
            let stored = stored_attempt(durable, to.task, to.attempt);
            let asked = stored.inputs.iter().find(|asked| asked.id == *input);
            let answered = asked.filter(|asked| asked.state != InputState::Open);
            assert!(
                answered.is_some(),
                "S5: an answer to {input} was sent and is not durable"
            );
            let bound = answered.is_some_and(|asked| asked.digest == *digest);
            assert!(bound, "S8: the answer to {input} is not bound to it");
        }
        DaemonMessage::Welcome { .. }
        | DaemonMessage::HeartbeatAck { .. }
        | DaemonMessage::ExtensionAck { .. }
        | DaemonMessage::Ack { .. }
        | DaemonMessage::Abandon { .. }
        | DaemonMessage::FrameRejected { .. }
        | DaemonMessage::Drain { .. } => {}
    }
}

fn stored_attempt(durable: &StoreState, task: TaskId, id: AttemptId) -> &AttemptRecord {
    let stored = durable.attempt(task, id);
    stored.unwrap_or_else(|| panic!("S5: attempt {id} was told of and is not durable"))
}

fn check_not_leased(durable: &StoreState, attempt: AttemptId) {
    let leased = durable
        .find_attempt(attempt)
        .is_some_and(|a| a.state.is_leased());
    assert!(!leased, "S5: {attempt} was given up and is leased on disk");
}

fn check_settlement(durable: &StoreState, attempt: AttemptId, verdict: &SettlementVerdict) {
    match verdict {
        SettlementVerdict::Keep { acked, .. } | SettlementVerdict::Adopt { acked } => {
            let stored = durable.find_attempt(attempt);
            let kept = stored.is_some_and(|a| a.control_seq >= *acked || !a.state.is_leased());
            assert!(kept, "S5: {attempt} was acknowledged up to {acked}");
        }
        SettlementVerdict::Kill { .. } => check_not_leased(durable, attempt),
    }
}

/// A lease extension counts from the send of its request, `elapsed` ago: the rest of it must be
/// durable.
fn check_renewal(
    durable: &StoreState,
    attempt: AttemptId,
    renewal: &LeaseRenewal,
    elapsed: Option<u64>,
) {
    match (renewal, elapsed) {
        (LeaseRenewal::Revoked { .. }, _) => check_not_leased(durable, attempt),
        (LeaseRenewal::Renewed { granted_ms, .. }, Some(elapsed)) => {
            let stored = durable.find_attempt(attempt);
            let lease = stored.and_then(|a| a.lease.as_ref());
            // An attempt that was parked since has no lease. A fence represents it as long as
            // it may run.
            let fence = durable.fences.get(&attempt).map(|fence| fence.full_ms);
            let span = lease.map(|lease| lease.granted_ms).or(fence);
            let kept = match span {
                Some(span) => span + elapsed >= *granted_ms,
                None => stored.is_some_and(|a| !a.state.is_leased()),
            };
            assert!(kept, "S5: the hold of {attempt} is not durable");
        }
        (LeaseRenewal::Renewed { .. }, None) => {}
    }
}
