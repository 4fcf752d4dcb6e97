//! What follows the end of an attempt by itself: another one, a person's attention, or the end of the task.

use std::sync::Arc;

use crate::bounds;
use crate::core::{Core, Turn};
use crate::ends::holder_of;
use crate::live::Live;
use crate::record::{
    AttemptRecord, Attention, AttentionCause, End, EndState, EndedBy, EventKind, FailureCode,
    RejectCode, RetryDue, State,
};
use crate::retry::{self, Stop, Verdict};
use crate::time::{Now, Wall};
use crate::timers::TimerKey;

impl Core {
    pub(crate) fn follow_end(&mut self, live: &mut Live, end: &End, turn: &mut Turn<'_>) {
        if live.record().cancel.is_some() {
            return;
        }
        let Some(outcome) = outcome_of(live.newest(), end) else {
            return;
        };
        match self.judge(live, &outcome, turn) {
            Verdict::RetryAfter { .. }
                if matches!(
                    outcome,
                    retry::Outcome::Released | retry::Outcome::TakenAway
                ) =>
            {
                self.requeue(live, turn)
            }
            Verdict::RetryAfter { .. } if outcome == retry::Outcome::Refused => {
                self.offer_again(live, end, turn)
            }
            Verdict::RetryAfter { .. } if outcome == retry::Outcome::ResumeFailed => {
                self.begin_anew(live, turn)
            }
            Verdict::RetryAfter { ms } => schedule_retry(live, ms, turn.now),
            Verdict::Park(cause) => park_task(live, cause, turn.now.wall),
            Verdict::End(stop) => stop_retries(live, stop),
        }
    }

    /// A failure that was adopted late is judged as if it had come in time; a task that was over stays so.
    pub(crate) fn follow_adopted(
        &mut self,
        live: &mut Live,
        index: usize,
        was_open: bool,
        turn: &mut Turn<'_>,
    ) {
        let attempt = &live.record().attempts[index];
        let end = attempt.state.end();
        let Some(mut outcome) = end.and_then(|end| outcome_of(attempt, end)) else {
            return;
        };
        if outcome == retry::Outcome::ResumeFailed {
            // Too late to begin anew in its stead: others may have gone on with the conversation.
            outcome = retry::Outcome::Failed {
                code: FailureCode::ResumeFailed,
                exit: end.and_then(|end| end.exit),
                retry_safe: attempt.retry_safe,
                hint: None,
            };
        }
        match self.judge(live, &outcome, turn) {
            Verdict::RetryAfter { ms } if was_open => schedule_retry(live, ms, turn.now),
            Verdict::Park(cause) if was_open => park_task(live, cause, turn.now.wall),
            Verdict::End(stop) => note_stop(live, stop),
            Verdict::RetryAfter { .. } | Verdict::Park(_) => {}
        }
    }

    /// Counts the end and says what follows.
    fn judge(&self, live: &mut Live, outcome: &retry::Outcome, turn: &mut Turn<'_>) -> Verdict {
        let policy = live.spec.retry.clone();
        let jitter = turn.mint.millionth();
        let counters = &mut live.record_mut().counters;
        retry::decide(outcome, counters, &policy, &self.config, jitter)
    }

    /// Given back or rejected: queued again at once, but not to the same daemon for a while.
    fn requeue(&mut self, live: &mut Live, turn: &mut Turn<'_>) {
        if let Some(daemon) = holder_of(live.newest()) {
            let until = turn.now.at + self.config.reject_backoff_ms;
            self.roster.exclude(live.id(), daemon, until);
        }
        self.add_attempt(live, false, turn);
    }

    /// The agent does not know the conversation any more: the next attempt begins a fresh one, whatever its daemon
    /// remembers.
    fn begin_anew(&mut self, live: &mut Live, turn: &mut Turn<'_>) {
        self.add_attempt(live, false, turn);
        live.newest_mut().fresh = true;
        live.note(EventKind::ResumeFallback, None);
    }

    /// The machine could not take it: that daemon is asked nothing for a while, or only not for this task where just the
    /// workspace is in use. The task waits on as if it had not been offered, its queue deadline included.
    fn offer_again(&mut self, live: &mut Live, end: &End, turn: &mut Turn<'_>) {
        let now = turn.now.at;
        if let Some(daemon) = holder_of(live.newest()) {
            if end.refusal() == Some(RejectCode::WorkspaceBusy) {
                let until = now + self.config.reject_backoff_ms;
                self.roster.wait_for_place(live.id(), daemon, until);
            } else {
                self.roster.note_refusal(daemon, now);
            }
        }
        bounds::drop_refused(live.record_mut());
        let left_ms = live.queue_left_ms.take();
        self.add_attempt(live, false, turn);
        if let Some(left_ms) = left_ms {
            live.timers.shorten(&TimerKey::Queue, left_ms, turn.now.at);
        }
    }
}

/// What retries care about. `None` where nothing follows by itself: a result, a cancel, a hand-off, or a successor
/// that a late result made needless.
fn outcome_of(attempt: &AttemptRecord, end: &End) -> Option<retry::Outcome> {
    if end.by == EndedBy::Operator && end.state == EndState::Failed {
        // A person's decision is nobody's failure, and stands.
        return None;
    }
    attempt.holder.as_ref()?;
    let daemon = holder_of(attempt);
    let retry_safe = attempt.retry_safe;
    // The hint is in `retryable` already; it can only have lowered it.
    let hint = |code: &FailureCode| {
        (!end.retryable && retry::is_retryable(code, retry_safe, None)).then_some(false)
    };
    match (end.state, end.failure_code.clone()) {
        (EndState::Released, _) if end.is_free_refusal() => Some(retry::Outcome::Refused),
        (EndState::Released, _) if end.by == EndedBy::Operator => Some(retry::Outcome::TakenAway),
        (EndState::Released, _) => Some(retry::Outcome::Released),
        (EndState::Failed, Some(FailureCode::ResumeFailed))
            if retry_safe && !attempt.fresh || mutant!(FallsBackForEver) =>
        {
            Some(retry::Outcome::ResumeFailed)
        }
        (EndState::Failed, Some(code)) => {
            let hint = hint(&code);
            Some(retry::Outcome::Failed {
                code,
                exit: end.exit,
                retry_safe,
                hint,
            })
        }
        (EndState::TimedOut, Some(code)) => {
            let hint = hint(&code);
            Some(retry::Outcome::TimedOut {
                code,
                retry_safe,
                hint,
            })
        }
        (EndState::Lost, Some(code)) => Some(retry::Outcome::Lost {
            code,
            retry_safe,
            daemon,
        }),
        (EndState::Completed | EndState::Canceled | EndState::HandedOff, _)
        | (EndState::Failed | EndState::TimedOut | EndState::Lost, None) => None,
    }
}

fn schedule_retry(live: &mut Live, after_ms: u64, now: Now) {
    live.retry_at = Some(now.at + after_ms);
    let at = Wall(now.wall.0.saturating_add(after_ms));
    live.record_mut().retry = Some(RetryDue {
        remaining_ms: after_ms,
        at,
    });
    live.note(EventKind::RetryScheduled { after_ms }, None);
}

/// A task that was only ever given back has no failure of its own: the limit becomes it.
fn stop_retries(live: &mut Live, stop: Stop) {
    if let State::Ended(end) = &mut live.newest_mut().state
        && end.state == EndState::Released
    {
        end.state = EndState::Failed;
        end.failure_code = Some(FailureCode::DispatchLimit);
        end.by = EndedBy::Relay;
    }
    note_stop(live, stop);
}

fn note_stop(live: &mut Live, stop: Stop) {
    live.record_mut().retry_stop = Some(stop.as_str().into());
    live.note(EventKind::RetryStopped, Some(stop.as_str().into()));
}

fn park_task(live: &mut Live, cause: AttentionCause, since: Wall) {
    let reason: Arc<str> = match cause {
        AttentionCause::UnsafeLoss => unsafe_loss(live.newest()).into(),
        AttentionCause::Poison => {
            "several daemons were lost under it; look before it is retried".into()
        }
        AttentionCause::Blocked
        | AttentionCause::Starved
        | AttentionCause::InputTimeout
        | AttentionCause::ReceiptsMissing => cause.as_str().into(),
    };
    live.record_mut().attention = Some(Attention {
        cause,
        reason: Arc::clone(&reason),
        hint: None,
        checkpoint: None,
        since,
    });
    live.note(EventKind::Attention(cause), Some(reason));
}

/// What happened comes first: it is what lists have room for.
fn unsafe_loss(lost: &AttemptRecord) -> String {
    let end = lost.state.end();
    let what = end.and_then(|end| end.message.as_deref());
    let what = what.unwrap_or("the attempt was lost");
    format!("{what}; it may have had effects, so retry it only if that is harmless")
}
