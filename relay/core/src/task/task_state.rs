//! The state of a task, derived from its record by one pure function. No other code may decide
//! it.

use crate::record::{AttemptRecord, AttemptState, EndState, TaskRecord, TaskState};

/// The first matching rule wins. Only the newest attempt can be open, so checking any attempt
/// for a lease is the same as checking the newest.
pub(crate) fn derive_task_state(record: &TaskRecord) -> TaskState {
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
    if record.attempts.iter().any(is_completed) {
        return TaskState::Completed;
    }
    if record.attention.is_some() {
        return TaskState::NeedsAttention;
    }
    if record
        .newest_attempt()
        .is_some_and(|attempt| attempt.state == AttemptState::Queued)
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
    let last_effective = record
        .attempts
        .iter()
        .rev()
        .find(|attempt| !is_withdrawn(attempt));
    last_effective
        .and_then(|attempt| attempt.state.end())
        .map_or(TaskState::Pending, |end| task_state_of_end(end.state))
}

fn is_completed(attempt: &AttemptRecord) -> bool {
    attempt
        .state
        .end()
        .is_some_and(|end| end.state == EndState::Completed)
}

/// An attempt that was withdrawn while queued, because a late result of its predecessor made it
/// unnecessary. It has no influence on the task state.
fn is_withdrawn(attempt: &AttemptRecord) -> bool {
    attempt.holder.is_none()
        && attempt
            .state
            .end()
            .is_some_and(|end| end.state == EndState::Released)
}

fn task_state_of_end(state: EndState) -> TaskState {
    match state {
        EndState::Completed => TaskState::Completed,
        EndState::Failed => TaskState::Failed,
        EndState::Canceled => TaskState::Canceled,
        EndState::TimedOut => TaskState::TimedOut,
        EndState::Lost => TaskState::Lost,
        // A successor decides the outcome, and there is none yet.
        EndState::Released | EndState::HandedOff => TaskState::Pending,
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::ids::AttemptId;
    use crate::record::{AttemptEnd, AttentionCause, EndedBy, TaskAttention, TerminationReceipt};
    use crate::samples::task_record;
    use crate::time::WallTime;

    fn ended_as(state: EndState) -> AttemptState {
        AttemptState::Ended(AttemptEnd {
            state,
            failure_code: None,
            retryable: false,
            message: None,
            user_message: None,
            ended_by: EndedBy::Daemon,
            cause_phase: None,
            exit: None,
            receipt: TerminationReceipt::NotNeeded,
            killed_after_result: false,
            is_adopted_late: false,
            cleanup: None,
            at: WallTime(0),
        })
    }

    fn record(attempts: &[AttemptState], waits: bool) -> TaskRecord {
        let attempt = |(n, state): (usize, &AttemptState)| AttemptRecord {
            state: state.clone(),
            ..AttemptRecord::queued(
                AttemptId(Uuid::from_u128(n as u128)),
                u32::try_from(n).unwrap(),
                [0; 8],
                WallTime(0),
            )
        };
        let attention = TaskAttention {
            cause: AttentionCause::Blocked,
            reason: "no key".into(),
            hint: None,
            checkpoint: None,
            since: WallTime(0),
        };
        TaskRecord {
            attempts: (1..).zip(attempts).map(attempt).collect(),
            attention: waits.then_some(attention),
            ..task_record()
        }
    }

    #[test]
    fn attention_outranks_queued_but_not_running_or_completed() {
        let (lost, handed_off) = (ended_as(EndState::Lost), ended_as(EndState::HandedOff));
        let completed = ended_as(EndState::Completed);
        let table: [(&[AttemptState], bool, TaskState); 9] = [
            (&[AttemptState::Queued], false, TaskState::Queued),
            (&[AttemptState::Queued], true, TaskState::NeedsAttention),
            (&[AttemptState::Streaming], true, TaskState::Running),
            (std::slice::from_ref(&lost), true, TaskState::NeedsAttention),
            (std::slice::from_ref(&lost), false, TaskState::Lost),
            (
                &[lost.clone(), completed.clone()],
                true,
                TaskState::Completed,
            ),
            (
                &[handed_off.clone(), completed],
                false,
                TaskState::Completed,
            ),
            (
                &[handed_off.clone(), AttemptState::Queued],
                false,
                TaskState::Queued,
            ),
            (&[handed_off, lost.clone()], false, TaskState::Lost),
        ];
        for (attempts, waits, expected) in table {
            let derived = derive_task_state(&record(attempts, waits));
            assert_eq!(derived, expected, "{attempts:?}, waits: {waits}");
        }
    }
}
