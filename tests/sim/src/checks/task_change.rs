//! Effects that one change of a task may have: budgets, pauses, answers, cancels and retries.

use baton_core::record::{
    AttemptEnd, AttemptRecord, AttemptState, EndState, EndedBy, FailureCode, InputRecord,
    PendingEnd, TaskRecord, TimerKind,
};
use baton_core::task::spec::{RetryPolicy, TaskSpec, UnsafeLossPolicy};

use crate::checks::permission_rules;
use crate::checks::record_change::attempt_pairs;
use crate::checks::required_files;
use crate::relay::sim_store::StoreState as Stored;

pub(crate) fn check(before: &Stored, old: &TaskRecord, new: &TaskRecord) {
    check_end_counters(new);
    check_operator_release(old, new);
    check_fresh_conversation(new);
    check_retry_budget(&before.specs[&new.task].retry, old, new);
    for (was, is) in attempt_pairs(old, new) {
        check_answers_unchanged(was, is);
        permission_rules::check(&before.specs[&new.task], is);
        required_files::check(&before.specs[&new.task], was, is);
        let (from, to) = (&was.state, &is.state);
        if *from == AttemptState::Queued && *to == AttemptState::Offered {
            check_offer(before, old, is);
        }
        check_cancel_wins(was, is);
        check_own_deadline_kept(was, is);
        assert!(
            is.output_end >= was.output_end,
            "S10: output of {} is gone",
            is.id
        );
        check_idle_tool_open(was, is);
        if from.is_leased() && !to.is_leased() {
            let spec = &before.specs[&new.task];
            check_unsafe_loss(spec, is, new);
        }
    }
}

/// Every end is counted once, in its own budget.
fn check_end_counters(task: &TaskRecord) {
    if task.cancel.is_some() {
        return;
    }
    let ends = |which: fn(&AttemptRecord) -> bool| {
        let ends = task.attempts.iter().filter(|a| which(a)).count();
        u32::try_from(ends).unwrap_or(u32::MAX)
    };
    let next = task.attempts.iter().skip(1);
    let anew = task
        .attempts
        .iter()
        .zip(next)
        .filter(|(was, is)| is.fresh_conversation && is_failure(was))
        .count();
    let anew = u32::try_from(anew).unwrap_or(u32::MAX) + u32::from(is_fresh_attempt_cut(task));
    let (failures, losses) = (ends(is_failure) - anew, ends(is_loss));
    let counters = &task.counters;
    assert_eq!(
        (counters.failures, counters.losses),
        (failures, losses),
        "S12: the ends of {} are counted wrong",
        task.task
    );
}

/// An attempt that an operator released counts as no dispatch: another one follows it,
/// regardless of the limit.
fn check_operator_release(old: &TaskRecord, new: &TaskRecord) {
    let was_leased = old
        .newest_attempt()
        .filter(|newest| newest.state.is_leased());
    let Some(was) = was_leased else {
        return;
    };
    let end = new.attempt(was.id).and_then(|is| is.state.end());
    let by_operator =
        |end: &&AttemptEnd| end.state == EndState::Released && end.ended_by == EndedBy::Operator;
    if end.filter(by_operator).is_some() {
        assert!(
            new.attempts.len() > old.attempts.len()
                && new.counters.dispatches < old.counters.dispatches.max(1),
            "S12: nothing follows what an operator took away of {}",
            new.task
        );
    }
}

/// A conversation begins anew once, after a failed resume. An attempt released after that stays
/// fresh.
fn check_fresh_conversation(task: &TaskRecord) {
    let next = task.attempts.iter().skip(1);
    for (was, is) in task
        .attempts
        .iter()
        .zip(next)
        .filter(|(_, is)| is.fresh_conversation)
    {
        let end = was.state.end();
        let failed = end.is_some_and(|end| end.failure_code == Some(FailureCode::ResumeFailed));
        let given_back = end.is_some_and(|end| end.state == EndState::Released);
        assert!(
            (failed && !was.fresh_conversation) || (given_back && was.fresh_conversation),
            "resume: {} begins anew after {}",
            is.id,
            was.id
        );
    }
}

/// It would have begun anew, uncounted, if the dispatch limit had not been reached.
fn is_fresh_attempt_cut(task: &TaskRecord) -> bool {
    let spent = task.retry_stop_reason.as_deref() == Some("dispatch_limit");
    let newest = task
        .newest_attempt()
        .filter(|newest| spent && !newest.fresh_conversation);
    let end = newest.and_then(|newest| newest.state.end());
    end.is_some_and(|end| {
        end.failure_code == Some(FailureCode::ResumeFailed) && !end.is_adopted_late
    })
}

fn is_failure(attempt: &AttemptRecord) -> bool {
    let end = attempt.state.end();
    end.is_some_and(|end| match end.state {
        // A person's decision, and a failure caused only by a limit, count in no budget.
        EndState::Failed => {
            end.ended_by != EndedBy::Operator
                && end.failure_code != Some(FailureCode::DispatchLimit)
        }
        EndState::TimedOut => true,
        EndState::Completed
        | EndState::Canceled
        | EndState::Lost
        | EndState::Released
        | EndState::HandedOff => false,
    })
}

fn is_loss(attempt: &AttemptRecord) -> bool {
    let end = attempt.state.end();
    end.is_some_and(|end| end.state == EndState::Lost)
}

/// S12: no automatic retry after the budget is used up.
fn check_retry_budget(policy: &RetryPolicy, old: &TaskRecord, new: &TaskRecord) {
    let Some(last) = new.newest_attempt().filter(|_| new.retry.is_some()) else {
        return;
    };
    if old.retry.is_some() {
        return;
    }
    let (counters, task) = (&new.counters, new.task);
    let spent = (is_failure(last) && counters.failures >= policy.max_attempts)
        || (is_loss(last) && counters.losses >= policy.max_losses);
    assert!(!spent, "S12: {task} is tried again after {counters:?}");
}

/// No paused task is offered, and no daemon that is drained, busy or of another tenant gets an
/// offer.
fn check_offer(before: &Stored, task: &TaskRecord, attempt: &AttemptRecord) {
    assert!(task.paused.is_none(), "pause: {} was offered", attempt.id);
    assert!(
        before.scheduler.paused.is_none() && before.pauses.pause_of_tenant(&task.tenant).is_none(),
        "pause: {} was offered",
        attempt.id
    );
    let daemon = attempt
        .daemon_holder()
        .and_then(|h| before.daemons.get(&h.daemon));
    let drained = daemon.is_some_and(|daemon| daemon.drained.is_some());
    assert!(!drained, "drain: {} was offered to {daemon:?}", attempt.id);
    let covers = daemon.is_none_or(|daemon| daemon.scope.covers(&task.tenant));
    assert!(covers, "S9: {} was offered to {daemon:?}", attempt.id);
    let newest = before
        .live
        .values()
        .filter_map(|other| other.newest_attempt());
    let held = newest.filter(|other| {
        let theirs = other.daemon_holder().map(|holder| holder.daemon);
        other.state.is_leased() && theirs == daemon.map(|daemon| daemon.daemon)
    });
    let room = daemon.is_none_or(|daemon| held.count() < daemon.slots as usize);
    assert!(room, "S13: {} was offered to {daemon:?}", attempt.id);
}

/// Exactly one terminal state: an attempt with a pending cancel ends as canceled.
fn check_cancel_wins(was: &AttemptRecord, is: &AttemptRecord) {
    let canceling = matches!(
        was.state,
        AttemptState::CleaningUp {
            pending: Some(PendingEnd::Cancel { .. })
        }
    );
    let completed = is
        .state
        .end()
        .is_some_and(|end| end.state == EndState::Completed);
    assert!(!canceling || !completed, "cancel: {} completed", is.id);
}

/// A daemon that reported the deadline for which it ends an attempt need not report more.
fn check_own_deadline_kept(was: &AttemptRecord, is: &AttemptRecord) {
    let own = matches!(
        was.state,
        AttemptState::CleaningUp {
            pending: Some(PendingEnd::DaemonDeadline { .. })
        }
    );
    let code = is.state.end().and_then(|end| end.failure_code.as_ref());
    let forgotten = own && code == Some(&FailureCode::NoResult);
    assert!(!forgotten, "deadline: {} ends as no_result", is.id);
}

/// A finished tool causes no timeout.
fn check_idle_tool_open(was: &AttemptRecord, is: &AttemptRecord) {
    let named = match &is.state {
        AttemptState::CleaningUp {
            pending:
                Some(PendingEnd::Deadline {
                    timer: TimerKind::ToolIdle,
                    tool,
                    ..
                }),
        } if !matches!(was.state, AttemptState::CleaningUp { .. }) => tool.as_ref(),
        _ => return,
    };
    let open = named.is_some_and(|tool| was.open_tools.iter().any(|open| open.id == *tool));
    assert!(open, "tool_idle: {} had finished {named:?}", is.id);
}

/// A loss with possible effects is retried only if the task allows it.
fn check_unsafe_loss(spec: &TaskSpec, is: &AttemptRecord, task: &TaskRecord) {
    let lost = is
        .state
        .end()
        .is_some_and(|end| end.state == EndState::Lost && end.ended_by == EndedBy::Relay);
    let confirmed = is.lease.as_ref().is_some_and(|lease| lease.confirmed);
    let unsafe_loss = lost && confirmed && is.prompt_written != Some(false);
    let retried = task.retry.is_some()
        || task
            .newest_attempt()
            .is_some_and(|newest| newest.id != is.id);
    assert!(
        !unsafe_loss || !retried || spec.retry.when_unsafe == UnsafeLossPolicy::Retry,
        "unsafe: {} was lost and is tried again",
        is.id
    );
}

/// S8: after an answer only its delivery state changes, and a closed input accepts none.
fn check_answers_unchanged(was: &AttemptRecord, is: &AttemptRecord) {
    let given = |input: &InputRecord| {
        let answer = input.state.answer()?;
        Some((answer.decision, answer.by.clone(), answer.at))
    };
    for old in &was.inputs {
        let new = is.inputs.iter().find(|new| new.id == old.id);
        let (old_answer, new_answer) = (given(old), new.and_then(given));
        let closed = !old.state.is_pending();
        assert!(
            old_answer == new_answer || new_answer.is_none() || (old_answer.is_none() && !closed),
            "S8: the answer to {} changed",
            old.id
        );
    }
}
