//! What follows when an attempt stops being leased: slots and conversation are freed, the fence is set, a cancel is
//! confirmed, and the task is retried, parked or over.

use std::sync::Arc;

use crate::attempt::{Event, Outcome};
use crate::contract;
use crate::core::{Core, Turn};
use crate::effects::{After, CancelKind, Downstream, Write};
use crate::fences::{Fence, Guard};
use crate::id::{AttemptId, DaemonId};
use crate::live::Live;
use crate::placement;
use crate::record::{
    AttemptRecord, Attention, EndState, EndedBy, EventKind, FenceRecord, ParkCause, Parked,
    Pending, Receipt, Runner, State,
};
use crate::reject::Rejection;
use crate::time::{Moment, Wall};

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
        if control_seq.is_some() || matches!(event, Event::Output { .. }) {
            live.heard_at = Some(turn.now.at);
        }
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
            if matches!(live.newest().state, State::Parked(_)) {
                // The fence knows how long it may still run; nothing else of the lease is needed again.
                if !mutant!(ParkKeepsHash) {
                    live.newest_mut().lease = None;
                }
                if let Some(daemon) = holder_of(live.newest()) {
                    self.roster.place_freed(daemon);
                }
            }
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
            // It knows.
            Pending::OwnDeadline { .. } => return,
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
        let receipt = attempt.state.receipt().unwrap_or(Receipt::Unconfirmed);
        let id = attempt.id;
        let token = attempt.agent().map(|agent| agent.token);
        self.attempts.remove(&id);
        if let Some(token) = token {
            self.held.remove(&(token, id));
        }
        if !(mutant!(ParkKeepsSlot) && matches!(attempt.state, State::Parked(_))) {
            self.roster.let_go(id, now);
        }
        let unproved = receipt == Receipt::Unconfirmed && !mutant!(SuccessorUnfenced);
        let may_live = unproved && !self.has_rebooted(id);
        match lease_ends.filter(|ends| may_live && *ends > now) {
            Some(until) => self.raise_fence(live, until, turn),
            None => self.lift_fence(id, turn),
        }
        let by_relay = live
            .newest()
            .state
            .end()
            .is_none_or(|end| !matches!(end.by, EndedBy::Daemon | EndedBy::Agent));
        let runs = !holder_of(live.newest()).is_some_and(|d| self.roster.is_adopted(d, id));
        if let Some(session) = session.filter(|_| by_relay && runs && receipt != Receipt::Confirmed)
        {
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
        (live.heard_at, live.renewed_at) = (None, None);
        // The next holder has renewed nothing yet, and is credited for itself.
        (live.missed, live.credit_ms) = (0, 0);
    }

    /// Whether its machine was started since it was leased: the end of an attempt that a daemon found on its disk.
    fn has_rebooted(&self, attempt: AttemptId) -> bool {
        let fence = self.fences.get(attempt);
        let Some(Runner::Machine { daemon, boot_id }) = fence.and_then(|f| f.runner.as_ref())
        else {
            return false;
        };
        let now = self.roster.boot_id_of(*daemon);
        now.is_some_and(|now| *now != *boot_id)
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
            runner: Runner::of(holder),
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
        if end.by == EndedBy::Operator {
            // It tells of a person's decision, and nothing of the daemon's health.
            return self.roster.place_freed(daemon);
        }
        if let EndState::Completed | EndState::Failed | EndState::TimedOut = end.state {
            self.roster.note_work(daemon, now);
        }
        // What was only refused frees nothing: two that wait for one workspace would be offered in turn for ever.
        if end.state != EndState::Released {
            self.roster.place_freed(daemon);
        }
        match end.state {
            EndState::Completed => self.roster.note_success(daemon, now),
            EndState::Failed | EndState::TimedOut | EndState::Lost => {
                self.roster.note_failure(daemon, now)
            }
            EndState::Canceled | EndState::Released | EndState::HandedOff => {}
        }
    }

    fn attend(&mut self, live: &mut Live, parked: &Parked, turn: &mut Turn<'_>) {
        if !mutant!(ParkedStaysQueued) {
            self.queue.remove(live.id());
        }
        let words;
        let reason = match parked.cause {
            ParkCause::Starved => "no daemon could take it within its queue deadline",
            ParkCause::Blocked => "the attempt cannot go on without a person",
            ParkCause::InputTimeout => "nobody answered in time",
            ParkCause::ReceiptsMissing => {
                words = contract::words(&contract::unmet(&live.spec, live.newest()));
                &*words
            }
        };
        let since = turn.now.wall;
        live.record_mut().attention = Some(Attention {
            cause: parked.cause.attention(),
            reason: reason.into(),
            hint: None,
            checkpoint: None,
            since,
        });
    }
}

fn is_pending_cleanup(attempt: &AttemptRecord) -> bool {
    matches!(attempt.state, State::CleaningUp { pending: Some(_) })
}

pub(crate) fn holder_of(attempt: &AttemptRecord) -> Option<DaemonId> {
    attempt.daemon().map(|holder| holder.daemon)
}

pub(crate) fn confirm_cancel(live: &mut Live, receipt: Receipt, now: Wall) {
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
