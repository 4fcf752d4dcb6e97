//! What follows when an attempt stops being leased: slots and conversation are freed, the fence is set, a cancel is
//! confirmed, and the task is retried, parked or over.

use std::sync::Arc;

use crate::attempt::{Event, Outcome};
use crate::core::{Core, Turn};
use crate::effects::{After, CancelKind, Downstream, Write};
use crate::fences::{Fence, Guard};
use crate::id::{AttemptId, DaemonId};
use crate::live::Live;
use crate::placement;
use crate::record::{
    AttemptRecord, Attention, AttentionCause, End, EndState, EndedBy, EventKind, FailureCode,
    FenceRecord, ParkCause, Parked, Pending, Receipt, RetryDue, State,
};
use crate::reject::Rejection;
use crate::retry::{self, Stop, Verdict};
use crate::time::{Moment, Now, Wall};

/// What was true before an event, to tell what it changed.
struct Before {
    leased: bool,
    cleaning: bool,
    lease_ends: Option<Moment>,
}

impl Core {
    /// Applies an event to the newest attempt and does all that follows from it.
    pub(crate) fn apply(
        &mut self,
        live: &mut Live,
        event: Event,
        observed: Option<Wall>,
        turn: &mut Turn<'_>,
    ) -> Outcome {
        self.apply_numbered(live, event, observed, None, turn)
    }

    /// The same for a frame: its number is taken before anything follows, for a successor may follow at once.
    pub(crate) fn apply_numbered(
        &mut self,
        live: &mut Live,
        event: Event,
        observed: Option<Wall>,
        control_seq: Option<u64>,
        turn: &mut Turn<'_>,
    ) -> Outcome {
        let before = Before {
            leased: live.is_newest_leased(),
            cleaning: is_pending_cleanup(live.newest()),
            lease_ends: live.lease_ends(),
        };
        let outcome = live.apply(event, &self.scene(live, turn.now, observed));
        if outcome == Outcome::Applied {
            if let Some(seq) = control_seq {
                live.newest_mut().control_seq = seq;
            }
            self.follow(live, &before, turn);
        }
        outcome
    }

    fn follow(&mut self, live: &mut Live, before: &Before, turn: &mut Turn<'_>) {
        if !before.cleaning && is_pending_cleanup(live.newest()) {
            self.tell_cancel(live, turn);
        }
        if before.leased && !live.is_newest_leased() {
            self.unlease(live, before.lease_ends, turn);
        }
        match live.newest().state.clone() {
            State::Parked(parked) if live.record().attention.is_none() => {
                self.attend(live, &parked, turn)
            }
            State::Ended(end) => {
                self.queue.remove(live.id());
                self.follow_end(live, &end, turn);
            }
            State::Parked(_)
            | State::Queued
            | State::Offered
            | State::Accepted
            | State::Starting
            | State::Prompted
            | State::Streaming
            | State::ToolRunning
            | State::WaitingInput
            | State::CleaningUp { .. } => {}
        }
    }

    /// Asks the holder to end its attempt, naming it; said again after each reconnect until it is over.
    pub(crate) fn tell_cancel(&mut self, live: &Live, turn: &mut Turn<'_>) {
        let State::CleaningUp {
            pending: Some(pending),
        } = &live.newest().state
        else {
            return;
        };
        let Some(session) = self.session_of(live) else {
            return;
        };
        let (kind, reason) = match pending {
            Pending::Deadline { timer, .. } => (CancelKind::Deadline(*timer), None),
            Pending::Cancel { operator } => {
                let reason = live
                    .record()
                    .cancel
                    .as_ref()
                    .and_then(|cancel| cancel.reason.clone());
                (
                    if *operator {
                        CancelKind::Operator
                    } else {
                        CancelKind::User
                    },
                    reason,
                )
            }
            Pending::Park => (
                CancelKind::Deadline(crate::record::TimerKind::UserInput),
                None,
            ),
        };
        let grace_ms = crate::profile::cleanup_term_ms(&live.spec.effective_profile, &self.config);
        let to = self.attempt_ref(live);
        turn.tell(
            After::Task(live.id()),
            session,
            Downstream::Cancel {
                to,
                kind,
                reason,
                grace_ms,
            },
        );
    }

    /// The lease is over: nothing of it may count any more, and nobody may succeed it before it is surely dead.
    fn unlease(&mut self, live: &mut Live, lease_ends: Option<Moment>, turn: &mut Turn<'_>) {
        let now = turn.now.at;
        let session = self.session_of(live);
        let attempt = live.newest();
        let (id, receipt) = (attempt.id, receipt_of(attempt));
        self.attempts.remove(&id);
        self.roster.let_go(id, now);
        match lease_ends.filter(|ends| receipt == Receipt::Unconfirmed && *ends > now) {
            Some(until) => self.raise_fence(live, until, turn),
            None => self.lift_fence(id, turn),
        }
        let by_relay = live
            .newest()
            .state
            .end()
            .is_none_or(|end| end.by != EndedBy::Daemon);
        if let Some(session) = session.filter(|_| by_relay && receipt != Receipt::Confirmed) {
            let code = if lease_ends.is_some_and(|ends| ends <= now) {
                Rejection::LeaseExpired
            } else {
                Rejection::NotLeased
            };
            turn.tell(
                After::Task(live.id()),
                session,
                Downstream::Abandon { attempt: id, code },
            );
        }
        self.note_health(live, now);
        confirm_cancel(live, receipt, turn.now.wall);
        live.confirmed_at = None;
        live.missed = 0;
    }

    /// Ended without proof of death: its task and conversation wait until its last limit plus grace.
    fn raise_fence(&mut self, live: &Live, until: Moment, turn: &mut Turn<'_>) {
        let attempt = live.newest();
        let (Some(holder), Some(lease)) = (&attempt.holder, &attempt.lease) else {
            return;
        };
        turn.write(Write::PutFence(FenceRecord {
            attempt: attempt.id,
            tenant: live.spec.tenant.clone(),
            task: live.id(),
            conversation: live.spec.conversation_id.as_deref().map(Arc::from),
            daemon: holder.daemon,
            boot_id: holder.boot_id.clone(),
            full_ms: lease
                .granted_ms
                .saturating_add(self.config.grace_for(lease.ttl_ms)),
        }));
        if let Some(fence) = self.fences.unproven(attempt.id, until) {
            // What waited for the lease now waits for the fence.
            placement::fence_fell(&mut self.queue, fence);
        }
    }

    /// Proof of death, or the end of its time: what waited for it may be placed.
    pub(crate) fn lift_fence(&mut self, attempt: AttemptId, turn: &mut Turn<'_>) {
        if let Some(fence) = self.fences.lift(attempt) {
            self.fence_fell(&fence, turn);
        }
    }

    pub(crate) fn fence_fell(&mut self, fence: &Fence, turn: &mut Turn<'_>) {
        if matches!(fence.guard, Guard::Until(_)) {
            turn.write(Write::DropFence(fence.attempt));
        }
        placement::fence_fell(&mut self.queue, fence);
    }

    fn note_health(&mut self, live: &Live, now: Moment) {
        let attempt = live.newest();
        let (Some(daemon), Some(end)) = (holder_of(attempt), attempt.state.end()) else {
            return;
        };
        match end.state {
            EndState::Completed => self.roster.note_success(daemon, now),
            EndState::Failed | EndState::TimedOut | EndState::Lost => {
                self.roster.note_failure(daemon, now)
            }
            EndState::Canceled | EndState::Released | EndState::HandedOff => {}
        }
    }

    fn attend(&mut self, live: &mut Live, parked: &Parked, turn: &mut Turn<'_>) {
        self.queue.remove(live.id());
        let (cause, reason) = match parked.cause {
            ParkCause::Starved => (
                AttentionCause::Starved,
                "no daemon could take it within its queue deadline",
            ),
            ParkCause::Blocked => (
                AttentionCause::Blocked,
                "the attempt cannot go on without a person",
            ),
            ParkCause::InputTimeout => (AttentionCause::InputTimeout, "nobody answered in time"),
        };
        let since = turn.now.wall;
        live.record_mut().attention = Some(Attention {
            cause,
            reason: reason.into(),
            since,
        });
    }

    fn follow_end(&mut self, live: &mut Live, end: &End, turn: &mut Turn<'_>) {
        if live.record().cancel.is_some() {
            return;
        }
        let Some(outcome) = outcome_of(live.newest(), end) else {
            return;
        };
        let policy = live.spec.retry.clone();
        let jitter = turn.mint.millionth();
        let verdict = retry::decide(
            &outcome,
            &mut live.record_mut().counters,
            &policy,
            &self.config,
            jitter,
        );
        match verdict {
            Verdict::RetryAfter { .. } if outcome == retry::Outcome::Released => {
                self.requeue(live, turn)
            }
            Verdict::RetryAfter { ms } => schedule_retry(live, ms, turn.now),
            Verdict::Park(cause) => park_task(live, cause, turn.now.wall),
            Verdict::End(stop) => stop_retries(live, stop),
        }
    }

    /// Given back or rejected: queued again at once, but not to the same daemon for a while.
    fn requeue(&mut self, live: &mut Live, turn: &mut Turn<'_>) {
        if let Some(daemon) = holder_of(live.newest()) {
            let until = turn.now.at + self.config.reject_backoff_ms;
            self.roster.exclude(live.id(), daemon, until);
        }
        self.add_attempt(live, false, turn);
    }
}

/// What retries care about. `None` where nothing follows by itself: a result, a cancel, a hand-off, or a successor
/// that a late result made needless.
fn outcome_of(attempt: &AttemptRecord, end: &End) -> Option<retry::Outcome> {
    let daemon = holder_of(attempt)?;
    let retry_safe = attempt.retry_safe;
    // The hint is in `retryable` already; it can only have lowered it.
    let hint = |code: &FailureCode| {
        (!end.retryable && retry::is_retryable(code, retry_safe, None)).then_some(false)
    };
    match (end.state, end.failure_code.clone()) {
        (EndState::Released, _) => Some(retry::Outcome::Released),
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
    live.record_mut().retry_stop = Some(stop.as_str().into());
    live.note(EventKind::RetryStopped, Some(stop.as_str().into()));
}

fn is_pending_cleanup(attempt: &AttemptRecord) -> bool {
    matches!(attempt.state, State::CleaningUp { pending: Some(_) })
}

pub(crate) fn holder_of(attempt: &AttemptRecord) -> Option<DaemonId> {
    attempt.holder.as_ref().map(|holder| holder.daemon)
}

fn receipt_of(attempt: &AttemptRecord) -> Receipt {
    match &attempt.state {
        State::Ended(end) => end.receipt,
        State::Parked(parked) => parked.receipt,
        State::Queued
        | State::Offered
        | State::Accepted
        | State::Starting
        | State::Prompted
        | State::Streaming
        | State::ToolRunning
        | State::WaitingInput
        | State::CleaningUp { .. } => Receipt::Unconfirmed,
    }
}

fn confirm_cancel(live: &mut Live, receipt: Receipt, now: Wall) {
    if live
        .record()
        .cancel
        .as_ref()
        .is_none_or(|cancel| cancel.confirmed.is_some())
    {
        return;
    }
    if receipt == Receipt::Unconfirmed {
        return;
    }
    if let Some(cancel) = &mut live.record_mut().cancel {
        cancel.delivered.get_or_insert(now);
        cancel.confirmed = Some(now);
    }
    live.note(EventKind::CancelConfirmed, None);
}

fn park_task(live: &mut Live, cause: AttentionCause, since: Wall) {
    let reason = match cause {
        AttentionCause::UnsafeLoss => {
            "the attempt was lost and may have had effects; retry it if that is harmless"
        }
        AttentionCause::Poison => "several daemons were lost under it; look before it is retried",
        AttentionCause::Blocked | AttentionCause::Starved | AttentionCause::InputTimeout => {
            cause.as_str()
        }
    };
    live.record_mut().attention = Some(Attention {
        cause,
        reason: reason.into(),
        since,
    });
    live.note(EventKind::Attention(cause), Some(reason.into()));
}
