//! The state of a task, derived from its record by one pure function. Nothing else may decide it.

use crate::record::{AttemptRecord, EndState, State, TaskRecord, TaskState};

/// First match wins. At most the newest attempt is open, so "any" and "newest" agree there.
pub(crate) fn derive(record: &TaskRecord) -> TaskState {
    if record
        .attempts
        .iter()
        .any(|attempt| attempt.state.is_leased())
    {
        return TaskState::Running;
    }
    if record.cancel.is_some() {
        return TaskState::Canceled;
    }
    if record.attempts.iter().any(completed) {
        return TaskState::Completed;
    }
    if record.attention.is_some() {
        return TaskState::NeedsAttention;
    }
    if record
        .newest()
        .is_some_and(|attempt| attempt.state == State::Queued)
    {
        return if record.paused.is_some() {
            TaskState::Pending
        } else {
            TaskState::Queued
        };
    }
    if record.retry.is_some() {
        return TaskState::Pending;
    }
    let told = record
        .attempts
        .iter()
        .rev()
        .find(|attempt| !withdrawn(attempt));
    told.and_then(|attempt| attempt.state.end())
        .map_or(TaskState::Pending, |end| ended(end.state))
}

fn completed(attempt: &AttemptRecord) -> bool {
    attempt
        .state
        .end()
        .is_some_and(|end| end.state == EndState::Completed)
}

/// A successor that was only queued when a late result made it needless says nothing about the task.
fn withdrawn(attempt: &AttemptRecord) -> bool {
    attempt.holder.is_none()
        && attempt
            .state
            .end()
            .is_some_and(|end| end.state == EndState::Released)
}

fn ended(state: EndState) -> TaskState {
    match state {
        EndState::Completed => TaskState::Completed,
        EndState::Failed => TaskState::Failed,
        EndState::Canceled => TaskState::Canceled,
        EndState::TimedOut => TaskState::TimedOut,
        EndState::Lost => TaskState::Lost,
        // Given back: what follows decides, and nothing has followed yet.
        EndState::Released | EndState::HandedOff => TaskState::Pending,
    }
}
