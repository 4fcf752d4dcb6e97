//! Carries out the retry decision after an attempt's end: queues or schedules another attempt,
//! parks the task for a person, or ends it.

use std::sync::Arc;

use crate::attempt::attempt_owners::AttemptOwners;
use crate::attempt::lease_end::holding_daemon;
use crate::attempt::retry_policy;
use crate::attempt::retry_policy::{RetryDecision, RetryStop};
use crate::attempt::timers::TimerKey;
use crate::record::{
    AttemptEnd, AttemptRecord, AttemptState, AttentionCause, EndState, EndedBy, FailureCode,
    RejectCode, RetryDue, TaskAttention, TimelineEventKind,
};
use crate::task::live_task::LiveTask;
use crate::task::size_limits;
use crate::time::{ClockReading, WallTime};
use crate::turn::CoreTurn;

impl AttemptOwners<'_> {
    pub(crate) fn follow_attempt_end(
        &mut self,
        live: &mut LiveTask,
        end: &AttemptEnd,
        turn: &mut CoreTurn<'_>,
    ) {
        if live.record().cancel.is_some() {
            return;
        }
        let Some(outcome) = retry_outcome(live.newest_attempt(), end) else {
            return;
        };
        match decide_retry(live, &outcome, turn) {
            RetryDecision::RetryAfter { .. }
                if matches!(
                    outcome,
                    retry_policy::AttemptOutcome::Released
                        | retry_policy::AttemptOutcome::ForceReleased
                ) =>
            {
                self.requeue_elsewhere(live, turn)
            }
            RetryDecision::RetryAfter { .. }
                if outcome == retry_policy::AttemptOutcome::Refused =>
            {
                self.requeue_refused(live, end, turn)
            }
            RetryDecision::RetryAfter { .. }
                if outcome == retry_policy::AttemptOutcome::ResumeFailed =>
            {
                self.retry_with_fresh_conversation(live, turn)
            }
            RetryDecision::RetryAfter { ms } => schedule_retry(live, ms, turn.now),
            RetryDecision::Park(cause) => park_task(live, cause, turn.now.wall),
            RetryDecision::End(stop) => stop_retries(live, stop),
        }
    }

    /// Counts a late adopted failure as if it had arrived in time. A task that had ended is not
    /// reopened.
    pub(crate) fn follow_adopted_end(
        &mut self,
        live: &mut LiveTask,
        index: usize,
        was_open: bool,
        turn: &mut CoreTurn<'_>,
    ) {
        let attempt = &live.record().attempts[index];
        let end = attempt.state.end();
        let Some(mut outcome) = end.and_then(|end| retry_outcome(attempt, end)) else {
            return;
        };
        if outcome == retry_policy::AttemptOutcome::ResumeFailed {
            // Too late for a fresh conversation at once: other tasks may have continued this
            // one.
            outcome = retry_policy::AttemptOutcome::Failed {
                code: FailureCode::ResumeFailed,
                exit: end.and_then(|end| end.exit),
                retry_safe: attempt.retry_safe,
                hint: None,
            };
        }
        match decide_retry(live, &outcome, turn) {
            RetryDecision::RetryAfter { ms } if was_open => schedule_retry(live, ms, turn.now),
            RetryDecision::Park(cause) if was_open => park_task(live, cause, turn.now.wall),
            RetryDecision::End(stop) => record_retry_stop(live, stop),
            RetryDecision::RetryAfter { .. } | RetryDecision::Park(_) => {}
        }
    }

    /// Counts the end and returns the decision.
    fn requeue_elsewhere(&mut self, live: &mut LiveTask, turn: &mut CoreTurn<'_>) {
        if let Some(daemon) = holding_daemon(live.newest_attempt()) {
            let until = turn.now.monotonic + turn.config.reject_backoff_ms;
            self.roster.exclude(live.id(), daemon, until);
        }
        self.schedule.queue_attempt(live, false, turn);
    }

    /// Queues an attempt that starts a fresh conversation even if its daemon has stored one,
    /// because the agent no longer has the old conversation.
    fn retry_with_fresh_conversation(&mut self, live: &mut LiveTask, turn: &mut CoreTurn<'_>) {
        self.schedule.queue_attempt(live, false, turn);
        live.newest_attempt_mut().fresh_conversation = true;
        live.add_event(TimelineEventKind::ResumeFallback, None);
    }

    /// Queues a task again that the machine could not take. The daemon gets no offers for a
    /// while; if only the workspace is in use, it gets none for this task. The task keeps what
    /// is left of its queue deadline, as if it had not been offered.
    fn requeue_refused(&mut self, live: &mut LiveTask, end: &AttemptEnd, turn: &mut CoreTurn<'_>) {
        let now = turn.now.monotonic;
        if let Some(daemon) = holding_daemon(live.newest_attempt()) {
            if end.reject_code() == Some(RejectCode::WorkspaceBusy) {
                let until = now + turn.config.reject_backoff_ms;
                self.roster.wait_for_workspace(live.id(), daemon, until);
            } else {
                self.roster.note_refusal(daemon, now);
            }
        }
        size_limits::drop_oldest_refused(live.record_mut());
        let left_ms = live.queue_remaining_ms.take();
        self.schedule.queue_attempt(live, false, turn);
        if let Some(left_ms) = left_ms {
            live.timers
                .shorten(&TimerKey::Queue, left_ms, turn.now.monotonic);
        }
    }
}

/// The outcome for the retry decision. `None` if no automatic step follows: a result, a cancel,
/// a hand-off, or a successor that a late result made unnecessary.
fn decide_retry(
    live: &mut LiveTask,
    outcome: &retry_policy::AttemptOutcome,
    turn: &mut CoreTurn<'_>,
) -> RetryDecision {
    let policy = live.spec.retry.clone();
    let jitter = turn.id_source.jitter_millionths();
    let counters = &mut live.record_mut().counters;
    retry_policy::decide_retry(outcome, counters, &policy, turn.config, jitter)
}

/// The outcome that decides about a retry. `None` if no retry can follow: a result, a cancel, a
/// hand-off, or a successor that a late result made unnecessary.
fn retry_outcome(
    attempt: &AttemptRecord,
    end: &AttemptEnd,
) -> Option<retry_policy::AttemptOutcome> {
    if end.ended_by == EndedBy::Operator && end.state == EndState::Failed {
        // An operator's decision is final and does not count as a failure.
        return None;
    }
    attempt.holder.as_ref()?;
    let daemon = holding_daemon(attempt);
    let retry_safe = attempt.retry_safe;
    // `retryable` already includes the hint: a hint is present if `retryable` is lower than the
    // rule.
    let hint = |code: &FailureCode| {
        (!end.retryable && retry_policy::is_retryable(code, retry_safe, None)).then_some(false)
    };
    match (end.state, end.failure_code.clone()) {
        (EndState::Released, _) if end.is_uncounted_refusal() => {
            Some(retry_policy::AttemptOutcome::Refused)
        }
        (EndState::Released, _) if end.ended_by == EndedBy::Operator => {
            Some(retry_policy::AttemptOutcome::ForceReleased)
        }
        (EndState::Released, _) => Some(retry_policy::AttemptOutcome::Released),
        (EndState::Failed, Some(FailureCode::ResumeFailed))
            if retry_safe && !attempt.fresh_conversation || mutant!(FallsBackForEver) =>
        {
            Some(retry_policy::AttemptOutcome::ResumeFailed)
        }
        (EndState::Failed, Some(code)) => {
            let hint = hint(&code);
            Some(retry_policy::AttemptOutcome::Failed {
                code,
                exit: end.exit,
                retry_safe,
                hint,
            })
        }
        (EndState::TimedOut, Some(code)) => {
            let hint = hint(&code);
            Some(retry_policy::AttemptOutcome::TimedOut {
                code,
                retry_safe,
                hint,
            })
        }
        (EndState::Lost, Some(code)) => Some(retry_policy::AttemptOutcome::Lost {
            code,
            retry_safe,
            daemon,
        }),
        (EndState::Completed | EndState::Canceled | EndState::HandedOff, _)
        | (EndState::Failed | EndState::TimedOut | EndState::Lost, None) => None,
    }
}

fn schedule_retry(live: &mut LiveTask, after_ms: u64, now: ClockReading) {
    live.retry_at = Some(now.monotonic + after_ms);
    let at = WallTime(now.wall.0.saturating_add(after_ms));
    live.record_mut().retry = Some(RetryDue {
        remaining_ms: after_ms,
        at,
    });
    live.add_event(TimelineEventKind::RetryScheduled { after_ms }, None);
}

/// Ends the task. If the last attempt was only released, it has no failure, so the dispatch
/// limit is recorded as the failure.
fn stop_retries(live: &mut LiveTask, stop: RetryStop) {
    if let AttemptState::Ended(end) = &mut live.newest_attempt_mut().state
        && end.state == EndState::Released
    {
        end.state = EndState::Failed;
        end.failure_code = Some(FailureCode::DispatchLimit);
        end.ended_by = EndedBy::Relay;
    }
    record_retry_stop(live, stop);
}

fn record_retry_stop(live: &mut LiveTask, stop: RetryStop) {
    live.record_mut().retry_stop_reason = Some(stop.as_str().into());
    live.add_event(TimelineEventKind::RetryStopped, Some(stop.as_str().into()));
}

fn park_task(live: &mut LiveTask, cause: AttentionCause, since: WallTime) {
    let reason: Arc<str> = match cause {
        AttentionCause::UnsafeLoss => unsafe_loss_reason(live.newest_attempt()).into(),
        AttentionCause::Poison => {
            "several daemons were lost while running this task; inspect it before a retry".into()
        }
        AttentionCause::Blocked
        | AttentionCause::Starved
        | AttentionCause::InputTimeout
        | AttentionCause::ReceiptsMissing => cause.as_str().into(),
    };
    live.record_mut().attention = Some(TaskAttention {
        cause,
        reason: Arc::clone(&reason),
        hint: None,
        checkpoint: None,
        since,
    });
    live.add_event(TimelineEventKind::Attention(cause), Some(reason));
}

/// Begins with what happened, because lists show only the start of a reason.
fn unsafe_loss_reason(lost: &AttemptRecord) -> String {
    let end = lost.state.end();
    let message = end.and_then(|end| end.message.as_deref());
    let what = message.unwrap_or("the attempt was lost");
    format!("{what}; it may have had side effects, so retry it only if repeating them is harmless")
}
