//! Promises that hold in every prefix of every history. Each violated promise panics with its
//! name.
//!
//! Checked at the earliest point: a record when it is written, a message when it is sent, a
//! process when it starts.

use std::collections::BTreeSet;
use std::sync::Arc;

use baton_core::ids::AttemptId;
use baton_core::io::effects::RecordChange;
use baton_core::record::{
    AUDITS_MAX, AttemptEnd, AttemptRecord, AttemptState as AttemptStage, EndState, EndedBy,
    FailureCode, TaskRecord, TaskState, TerminationReceipt, TimelineEventKind,
};

use crate::checks::goal_records;
use crate::checks::parked_task;
use crate::checks::task_change;
use crate::options::MAX_DISPATCHES;
use crate::relay::sim_store::StoreState;
use crate::simulation::Simulation;

impl Simulation {
    /// S13, L1: open tasks are limited, and each has a timer.
    pub(crate) fn check_open_task_bounds(&self) {
        let Some(core) = &self.relay.core else {
            return;
        };
        let live = self.relay.store.view.live.len();
        assert_eq!(
            core.open_task_count(),
            live,
            "S13: the core and its records disagree on what is open"
        );
        assert!(live <= self.options.max_open, "S13: {live} open tasks");
        assert!(
            core.counts_are_true(),
            "S13: the counts of open tasks are not a recount"
        );
        let forgotten = core.find_untimed_task();
        assert!(forgotten.is_none(), "L1: no timer guards {forgotten:?}");
    }
}

/// S1, S2, S6: one write against the state before it.
pub(crate) fn check_record_change(before: &StoreState, write: &RecordChange) {
    match write {
        RecordChange::PutSpec { task, .. } => {
            assert!(
                !before.specs.contains_key(task),
                "S2: a spec is written twice: {task}"
            );
        }
        RecordChange::PutLive(record) => {
            assert!(
                !before.removed.contains_key(&record.task),
                "S6: {} came back after its removal",
                record.task
            );
            assert!(
                !record.state.is_terminal(),
                "S6: over and stored as live: {}",
                record.task
            );
            assert!(
                !before.done.contains_key(&record.task),
                "S6: {} came back without Reopen",
                record.task
            );
            check_task_change(before, record);
        }
        RecordChange::PutDone(record) => {
            assert!(
                !before.removed.contains_key(&record.task),
                "S6: {} changed after its removal",
                record.task
            );
            assert!(
                record.state.is_terminal(),
                "S6: {:?} stored as done",
                record.state
            );
            check_task_change(before, record);
        }
        RecordChange::Reopen(record) => check_reopen(before, record),
        RecordChange::RemoveTask { task, .. } => {
            assert!(
                before.done.contains_key(task) && !before.live.contains_key(task),
                "S6: {task} was removed before its end"
            );
        }
        RecordChange::PutProgress(record) => goal_records::check_progress(before, record),
        RecordChange::PutCheckpoint(record) => goal_records::check_checkpoint(before, record),
        RecordChange::DropCheckpoint { task, number, .. } => {
            goal_records::check_checkpoint_drop(before, *task, *number)
        }
        RecordChange::PutIdempotency { .. }
        | RecordChange::PutForgotten(_)
        | RecordChange::PutDaemonChanges(_)
        | RecordChange::PutPauses(_)
        | RecordChange::DropDaemon(_)
        | RecordChange::PutDaemon(_)
        | RecordChange::PutScheduler(_)
        | RecordChange::PutFence(_)
        | RecordChange::DropFence(_) => {}
    }
}

fn check_reopen(before: &StoreState, record: &TaskRecord) {
    let old = before.done.get(&record.task);
    let old = old.unwrap_or_else(|| panic!("S6: {} was not finished", record.task));
    let allowed = matches!(
        old.state,
        TaskState::Failed | TaskState::TimedOut | TaskState::Lost
    );
    assert!(allowed, "S6: {:?} was reopened", old.state);
    let asked = |event: &Arc<_>| is_retry_request(event);
    assert!(
        record.timeline.events.iter().any(asked),
        "S6: reopened without a person"
    );
    check_task_change(before, record);
}

fn is_retry_request(event: &Arc<baton_core::record::TimelineEvent>) -> bool {
    matches!(event.kind, TimelineEventKind::RetryAsked)
}

fn check_task_change(before: &StoreState, new: &TaskRecord) {
    check_task_shape(before, new);
    parked_task::check_parked_shape(new);
    let Some(old) = before.record(new.task) else {
        return;
    };
    assert!(
        new.revision >= old.revision,
        "S4: the revision of {} went back",
        new.task
    );
    assert!(
        old.cancel.is_none() || new.cancel.is_some(),
        "S4: the cancel of {} is gone",
        new.task
    );
    task_change::check(before, old, new);
    parked_task::check(before, old, new);
    goal_records::check_checkpoint_count(before, old, new);
    let adopted = count_adoptions(new) > count_adoptions(old);
    for was in &old.attempts {
        let Some(is) = new.attempt(was.id) else {
            let refused = was
                .state
                .end()
                .is_some_and(AttemptEnd::is_uncounted_refusal);
            assert!(refused, "S2: attempt {} is gone", was.id);
            continue;
        };
        assert_eq!(was.number, is.number, "S2: the number of {}", was.id);
        if let Some(end) = was.state.end() {
            check_end_unchanged(was, end, is);
        }
        assert!(
            is.control_seq >= was.control_seq,
            "S4: the frames of {} went back",
            was.id
        );
    }
    if old.state.is_terminal() && new.state.is_terminal() && !adopted {
        assert_eq!(old.state, new.state, "S6: {} ended twice", new.task);
    }
}

/// Each attempt before and after. Of those that daemons rejected, only some are stored.
pub(crate) fn attempt_pairs<'a>(
    old: &'a TaskRecord,
    new: &'a TaskRecord,
) -> impl Iterator<Item = (&'a AttemptRecord, &'a AttemptRecord)> {
    let both = |was: &'a AttemptRecord| Some((was, new.attempt(was.id)?));
    old.attempts.iter().filter_map(both)
}

fn count_adoptions(record: &TaskRecord) -> usize {
    let adopted = |a: &&AttemptRecord| a.state.end().is_some_and(|end| end.is_adopted_late);
    record.attempts.iter().filter(adopted).count()
}

/// Checks one record alone.
fn check_task_shape(before: &StoreState, new: &TaskRecord) {
    let leased = new.attempts.iter().filter(|a| a.state.is_leased()).count();
    assert!(leased <= 1, "S1: {leased} leased attempts of {}", new.task);
    let rising = new
        .attempts
        .is_sorted_by(|one, next| one.number < next.number);
    assert!(rising, "S2: numbers of {}", new.task);
    // No attempt is missing, or more attempts were rejected by daemons than are stored.
    let refused = |a: &&AttemptRecord| a.state.end().is_some_and(AttemptEnd::is_uncounted_refusal);
    let whole = new
        .newest_attempt()
        .map_or(0, |newest| newest.number as usize)
        == new.attempts.len();
    assert!(
        whole || new.attempts.iter().filter(refused).count() >= 8,
        "S2: attempts of {} are gone",
        new.task
    );
    for (index, attempt) in new.attempts.iter().enumerate() {
        let earlier = &new.attempts[..index];
        assert!(
            earlier.iter().all(|other| other.id != attempt.id),
            "S2: {} is used twice",
            attempt.id
        );
        let newest = index + 1 == new.attempts.len();
        assert!(
            newest || attempt.state.end().is_some(),
            "S1: {} is open and not the newest",
            attempt.id
        );
    }
    assert!(
        new.counters.dispatches <= MAX_DISPATCHES,
        "S12: {} dispatches of {}",
        new.counters.dispatches,
        new.task
    );
    let first = new.timeline.dropped_through + 1;
    let events = new.timeline.events.iter();
    let numbers = events
        .map(|event| event.revision)
        .skip_while(|revision| *revision < first);
    assert!(
        numbers.eq(first..=new.revision),
        "S11: a gap in the timeline of {}",
        new.task
    );
    check_audits_kept(before, new);
    if leased == 1 {
        check_one_lease_per_conversation(before, new);
    }
}

/// Operators' actions are only replaced by newer ones.
fn check_audits_kept(before: &StoreState, new: &TaskRecord) {
    let audits = |record: &TaskRecord| -> BTreeSet<u64> {
        let events = record.timeline.events.iter();
        let audits = events.filter(|event| event.is_audit());
        audits.map(|event| event.revision).collect()
    };
    let Some(old) = before.record(new.task) else {
        return;
    };
    let (was, is) = (audits(old), audits(new));
    assert!(
        is.len() >= AUDITS_MAX || was.is_subset(&is),
        "audit: what an operator did to {} is no longer on record",
        new.task
    );
}

/// The successor rule for conversations, as far as records show it.
fn check_one_lease_per_conversation(before: &StoreState, new: &TaskRecord) {
    let Some(spec) = before.specs.get(&new.task) else {
        return;
    };
    if spec.conversation_id.is_none() {
        return;
    }
    for (id, other) in &before.live {
        let theirs = &before.specs[id];
        let same = theirs.conversation_id == spec.conversation_id && theirs.tenant == spec.tenant;
        let leased = other.attempts.iter().any(|a| a.state.is_leased());
        assert!(
            !same || !leased || *id == new.task,
            "S1: {} and {id} are leased in one conversation",
            new.task
        );
    }
}

/// An end is final, except for a late receipt, an adopted late result, and a limit that becomes
/// the failure.
fn check_end_unchanged(was: &AttemptRecord, old: &AttemptEnd, is: &AttemptRecord) {
    let Some(new) = is.state.end() else {
        panic!(
            "S6: attempt {} was over and is {:?}",
            was.id,
            is.state.kind()
        );
    };
    if new.is_adopted_late && !old.is_adopted_late {
        let given_up = matches!(old.state, EndState::Lost | EndState::TimedOut)
            || old.failure_code == Some(FailureCode::NoResult);
        let by_relay = old.ended_by == EndedBy::Relay && given_up;
        assert!(by_relay, "S6: adopted over {old:?}");
        return;
    }
    let mut expected = old.clone();
    expected.receipt = new.receipt;
    assert_eq!(expected, *new, "S6: the end of {} changed", was.id);
    let forward = old.receipt == new.receipt
        || (old.receipt, new.receipt)
            == (
                TerminationReceipt::Unconfirmed,
                TerminationReceipt::Confirmed,
            );
    assert!(forward, "S6: the receipt of {} went back", was.id);
}

/// S3: the changes that a frame of an attempt without a lease may make to its task.
pub(crate) fn check_stale_frame(attempt: AttemptId, old: &TaskRecord, new: &TaskRecord) {
    let adopted = new
        .attempt(attempt)
        .and_then(|a| a.state.end())
        .is_some_and(|e| e.is_adopted_late);
    for (was, is) in attempt_pairs(old, new) {
        // Its receipt may have let the successor be placed in the same turn.
        let placed = was.state == AttemptStage::Queued && is.state == AttemptStage::Offered;
        // A late result makes an attempt that never ran unnecessary.
        let waited = match &was.state {
            AttemptStage::Queued => true,
            AttemptStage::Parked(parked) => parked.receipt == TerminationReceipt::NotNeeded,
            _ => false,
        };
        let needless = adopted && waited && is.state.end().is_some();
        let same = was.id == attempt || placed || needless || was.state == is.state;
        assert!(
            same,
            "S3: a frame of {attempt} moved {} from {:?} to {:?}",
            was.id, was.state, is.state
        );
    }
    let quiet = adopted
        || (old.counters.failures, old.counters.losses)
            == (new.counters.failures, new.counters.losses);
    assert!(quiet, "S3: a frame of {attempt} was counted");
    assert!(
        adopted || old.attempts.len() == new.attempts.len(),
        "S3: a frame of {attempt} made an attempt"
    );
    assert!(
        old.cancel.is_some() == new.cancel.is_some() && old.paused == new.paused,
        "S3: {attempt}"
    );
}
