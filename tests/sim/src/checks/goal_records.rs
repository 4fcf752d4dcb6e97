//! State that outlives attempts: progress only grows, and a checkpoint is written once, with
//! the next number.

use baton_core::goal::progress::MAX_CHECKPOINTS;
use baton_core::ids::TaskId;
use baton_core::record::{CheckpointRecord, ProgressRecord, TaskRecord};

use crate::relay::sim_store::StoreState;

pub(crate) fn check_progress(before: &StoreState, new: &ProgressRecord) {
    assert_task_open(before, new.task, "progress");
    let Some(old) = before.progress.get(&new.task) else {
        return;
    };
    let counts = |of: &ProgressRecord| {
        [
            of.completed_truncated,
            of.failed_truncated,
            of.evidence_truncated,
            of.completed.len() as u64 + of.completed_truncated,
        ]
    };
    let grown = counts(old)
        .iter()
        .zip(counts(new))
        .all(|(was, is)| *was <= is);
    assert!(grown, "goals: counters of {} went back", new.task);
}

pub(crate) fn check_checkpoint(before: &StoreState, new: &CheckpointRecord) {
    assert_task_open(before, new.task, "a checkpoint");
    let written = before
        .record(new.task)
        .map_or(0, |task| task.checkpoint_count);
    assert_eq!(
        new.number,
        written + 1,
        "goals: checkpoint of {} out of order",
        new.task
    );
    let known = before.checkpoints.get(&(new.task, new.number));
    assert!(
        known.is_none(),
        "goals: checkpoint {} of {} was written twice",
        new.number,
        new.task
    );
}

/// The record counts only existing checkpoints, and loses none.
pub(crate) fn check_checkpoint_count(before: &StoreState, old: &TaskRecord, new: &TaskRecord) {
    let (was, is) = (old.checkpoint_count, new.checkpoint_count);
    assert!(was <= is, "goals: {} forgot a checkpoint", new.task);
    let missing = (was + 1..=is).find(|n| !before.checkpoints.contains_key(&(new.task, *n)));
    assert!(
        missing.is_none(),
        "goals: checkpoint {missing:?} of {} was never written",
        new.task
    );
}

pub(crate) fn check_checkpoint_drop(before: &StoreState, task: TaskId, number: u64) {
    let newest = before.record(task).map_or(0, |task| task.checkpoint_count);
    assert!(
        number + MAX_CHECKPOINTS <= newest + 1,
        "goals: checkpoint {number} of {task} is gone too early"
    );
}

/// A finished task is final.
fn assert_task_open(before: &StoreState, task: TaskId, what: &str) {
    assert!(
        !before.done.contains_key(&task) && !before.removed.contains_key(&task),
        "goals: {task} is over and got {what}"
    );
}
