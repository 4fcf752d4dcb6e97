//! Parked tasks: they have no lease and are resumed once, by a successor that is created in the
//! same write.

use baton_core::record::{
    AttemptRecord, AttemptState, CheckpointKind, EndState, EndedBy, ParkCause, TaskRecord,
    TaskState, TerminationReceipt,
};

use crate::checks::record_change::attempt_pairs;
use crate::relay::sim_store::StoreState as Stored;

/// Checks one record alone.
pub(crate) fn check_parked_shape(task: &TaskRecord) {
    let Some(newest) = task.newest_attempt() else {
        return;
    };
    let waits = task.attention.is_some();
    if waits {
        let over = matches!(
            newest.state,
            AttemptState::Parked(_) | AttemptState::Ended(_)
        );
        assert!(
            over,
            "parked: {} waits for a person and is {:?}",
            task.task,
            newest.state.kind()
        );
        assert_eq!(
            task.state,
            TaskState::NeedsAttention,
            "parked: {}",
            task.task
        );
    }
    for attempt in &task.attempts {
        if matches!(attempt.state, AttemptState::Parked(_)) {
            assert!(waits, "parked: {} waits for nobody", attempt.id);
            check_nothing_reserved(attempt);
        }
    }
}

fn check_nothing_reserved(attempt: &AttemptRecord) {
    let id = attempt.id;
    assert!(attempt.lease.is_none(), "parked: {id} still has a lease");
    assert!(attempt.budgets.is_empty(), "parked: {id} still has a timer");
    let asks = attempt.inputs.iter().any(|input| input.state.is_pending());
    assert!(
        attempt.open_tools.is_empty() && !asks,
        "parked: {id} has something open"
    );
}

pub(crate) fn check(before: &Stored, old: &TaskRecord, new: &TaskRecord) {
    for (was, is) in attempt_pairs(old, new) {
        match (&was.state, &is.state) {
            (AttemptState::Parked(_), AttemptState::Parked(_)) => {}
            (AttemptState::Parked(_), _) => check_hand_off(is, new),
            (_, AttemptState::Parked(parked)) if parked.cause == ParkCause::Blocked => {
                check_block_checkpoint(before, old, is, new);
            }
            (was, AttemptState::Ended(end)) if was.end().is_none() => assert!(
                end.state != EndState::HandedOff,
                "hand-off: {} was not parked",
                is.id
            ),
            _ => {}
        }
    }
}

/// It ends as handed off to its successor, or a person has ended it, or a late result of an
/// earlier attempt made it unnecessary before it ran.
fn check_hand_off(is: &AttemptRecord, task: &TaskRecord) {
    let id = is.id;
    let Some(end) = is.state.end() else {
        panic!("hand-off: {id} was parked and is {:?}", is.state.kind());
    };
    if end.state != EndState::HandedOff {
        let by_person = matches!(end.ended_by, EndedBy::Operator | EndedBy::Client);
        let needless = end.state == EndState::Released
            && end.receipt == TerminationReceipt::NotNeeded
            && task.state == TaskState::Completed;
        assert!(
            by_person || needless,
            "hand-off: {id} was parked and ended by {:?}",
            end.ended_by
        );
        return;
    }
    let next = task
        .attempts
        .iter()
        .find(|next| next.number == is.number + 1);
    let next = next.map(|next| (next.id, next.previous));
    assert_eq!(
        next,
        is.successor.map(|successor| (successor, Some(id))),
        "hand-off: {id} has no successor"
    );
    assert!(is.handed_off_to.is_some(), "hand-off: nobody has {id}");
    let waits = task.attention.as_ref().map(|attention| attention.since);
    assert!(
        waits.is_none(),
        "hand-off: {} still waits for a person",
        task.task
    );
}

/// The block was written with a checkpoint for the next attempt.
fn check_block_checkpoint(before: &Stored, old: &TaskRecord, is: &AttemptRecord, new: &TaskRecord) {
    let written = before.checkpoints.get(&(new.task, new.checkpoint_count));
    let tells = written.is_some_and(|written| {
        let named = new
            .attention
            .as_ref()
            .and_then(|attention| attention.checkpoint);
        written.kind == CheckpointKind::Blocked
            && written.attempt == is.id
            && named == Some(written.id)
    });
    assert!(
        tells && new.checkpoint_count > old.checkpoint_count,
        "block: {} is parked without a checkpoint",
        is.id
    );
}
