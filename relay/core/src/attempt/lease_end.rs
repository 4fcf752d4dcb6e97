//! Consequences of an attempt's lease ending: slots and conversation are freed, the fence is
//! set, a cancel is confirmed, and the task is retried, parked or finished.

use crate::attempt::attempt_owners::{AttemptOwners, attempt_context, holder_session};
use crate::attempt::machine::{EventOutcome, MachineEvent};
use crate::goal::completion_contract;
use crate::ids::{AttemptId, DaemonId};
use crate::io::effects::{CancelKind, CommitDependency, DaemonMessage};
use crate::io::rejection::Rejection;
use crate::record::{
    AttemptRecord, AttemptState, EndState, EndedBy, ParkCause, ParkedState, PendingEnd,
    PossibleRunner, TaskAttention, TerminationReceipt, TimelineEventKind,
};
use crate::schedule::dispatch::attempt_ref;
use crate::task::live_task::LiveTask;
use crate::time::{MonotonicTime, WallTime};
use crate::turn::CoreTurn;

/// Lease state before an event, compared with the state after it to find what changed.
struct PriorLeaseState {
    leased: bool,
    cleaning: bool,
    lease_ends: Option<MonotonicTime>,
}

impl AttemptOwners<'_> {
    /// Applies an event to the newest attempt and does all that follows from it.
    pub(crate) fn apply_event(
        &mut self,
        live: &mut LiveTask,
        event: MachineEvent,
        observed: Option<WallTime>,
        turn: &mut CoreTurn<'_>,
    ) -> EventOutcome {
        self.apply_frame_event(live, event, observed, None, turn)
    }

    /// Like `apply_event`, for a frame. The frame's `control_seq` is stored before the
    /// consequences, because they may create a successor, which is then the newest attempt.
    pub(crate) fn apply_frame_event(
        &mut self,
        live: &mut LiveTask,
        event: MachineEvent,
        observed: Option<WallTime>,
        control_seq: Option<u64>,
        turn: &mut CoreTurn<'_>,
    ) -> EventOutcome {
        let before = PriorLeaseState {
            leased: live.is_newest_leased(),
            cleaning: is_pending_cleanup(live.newest_attempt()),
            lease_ends: live.lease_ends_at(),
        };
        if control_seq.is_some() || matches!(event, MachineEvent::Output { .. }) {
            live.last_frame_at = Some(turn.now.monotonic);
        }
        let context = attempt_context(self.roster, live, turn, observed);
        let outcome = live.apply_event(event, &context);
        if outcome == EventOutcome::Applied {
            if let Some(seq) = control_seq {
                live.newest_attempt_mut().control_seq = seq;
            }
            self.apply_consequences(live, &before, turn);
        }
        outcome
    }

    fn apply_consequences(
        &mut self,
        live: &mut LiveTask,
        before: &PriorLeaseState,
        turn: &mut CoreTurn<'_>,
    ) {
        if !before.cleaning && is_pending_cleanup(live.newest_attempt()) {
            self.send_cancel(live, turn);
        }
        if before.leased && !live.is_newest_leased() {
            self.end_lease(live, before.lease_ends, turn);
            if matches!(live.newest_attempt().state, AttemptState::Parked(_)) {
                // The fence records how long the attempt may still run; the rest of the lease
                // is not needed again.
                if !mutant!(ParkKeepsHash) {
                    live.newest_attempt_mut().lease = None;
                }
                if let Some(daemon) = holding_daemon(live.newest_attempt()) {
                    self.roster.workspace_freed(daemon);
                }
            }
        }
        match live.newest_attempt().state.clone() {
            AttemptState::Parked(parked) if live.record().attention.is_none() => {
                self.set_attention(live, &parked, turn)
            }
            AttemptState::Ended(end) => {
                self.schedule.dequeue(live.id());
                self.follow_attempt_end(live, &end, turn);
            }
            AttemptState::Parked(_)
            | AttemptState::Queued
            | AttemptState::Offered
            | AttemptState::Accepted
            | AttemptState::Starting
            | AttemptState::Prompted
            | AttemptState::Streaming
            | AttemptState::ToolRunning
            | AttemptState::WaitingInput
            | AttemptState::CleaningUp { .. } => {}
        }
    }

    /// Sends the holder a Cancel for the attempt; repeated after each reconnect until it has
    /// ended.
    pub(crate) fn send_cancel(&self, live: &LiveTask, turn: &mut CoreTurn<'_>) {
        let AttemptState::CleaningUp {
            pending: Some(pending),
        } = &live.newest_attempt().state
        else {
            return;
        };
        let Some(session) = holder_session(self.roster, live) else {
            return;
        };
        let (kind, reason) = match pending {
            PendingEnd::Deadline { timer, .. } => (CancelKind::Deadline(*timer), None),
            PendingEnd::Cancel { operator } => {
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
            // The daemon reported this deadline itself and is already ending the attempt.
            PendingEnd::DaemonDeadline { .. } => return,
            PendingEnd::Park => (
                CancelKind::Deadline(crate::record::TimerKind::UserInput),
                None,
            ),
        };
        let grace_ms = crate::attempt::deadline_profile::cleanup_term_ms(
            &live.spec.effective_profile,
            turn.config,
        );
        let to = attempt_ref(live);
        turn.send_to_session(
            CommitDependency::Task(live.id()),
            session,
            DaemonMessage::Cancel {
                to,
                kind,
                reason,
                grace_ms,
            },
        );
    }

    /// Releases everything the lease reserved. A fence blocks successors unless the processes
    /// are proven dead.
    fn end_lease(
        &mut self,
        live: &mut LiveTask,
        lease_ends: Option<MonotonicTime>,
        turn: &mut CoreTurn<'_>,
    ) {
        let now = turn.now.monotonic;
        let session = holder_session(self.roster, live);
        let attempt = live.newest_attempt();
        let receipt = attempt
            .state
            .receipt()
            .unwrap_or(TerminationReceipt::Unconfirmed);
        let id = attempt.id;
        let token = attempt.agent_holder().map(|agent| agent.token);
        self.leases.remove(id, token);
        if !(mutant!(ParkKeepsSlot) && matches!(attempt.state, AttemptState::Parked(_))) {
            self.roster.release_attempt(id, now);
        }
        let unconfirmed = receipt == TerminationReceipt::Unconfirmed && !mutant!(SuccessorUnfenced);
        let may_live = unconfirmed && !self.has_machine_rebooted(id);
        match lease_ends.filter(|ends| may_live && *ends > now) {
            Some(until) => self.schedule.raise_fence(live, until, turn),
            None => self.schedule.lift_fence(id, turn),
        }
        let by_relay = live
            .newest_attempt()
            .state
            .end()
            .is_none_or(|end| !matches!(end.ended_by, EndedBy::Daemon | EndedBy::Agent));
        let may_run = !holding_daemon(live.newest_attempt())
            .is_some_and(|d| self.roster.awaits_final_frames(d, id));
        if let Some(session) =
            session.filter(|_| by_relay && may_run && receipt != TerminationReceipt::Confirmed)
        {
            let code = if lease_ends.is_some_and(|ends| ends <= now) {
                Rejection::LeaseExpired
            } else {
                Rejection::NotLeased
            };
            turn.send_to_session(
                CommitDependency::Task(live.id()),
                session,
                DaemonMessage::Abandon { attempt: id, code },
            );
        }
        self.update_daemon_health(live, now);
        confirm_cancel(live, receipt, turn.now.wall);
        live.confirmed_at = None;
        (live.last_frame_at, live.renewed_at) = (None, None);
        // Missed heartbeats and stall credit are counted per holder.
        (live.missed_heartbeats, live.stall_credit_ms) = (0, 0);
    }

    /// Whether the machine has rebooted since the attempt was leased, so no process of it is
    /// left. Happens when a daemon reports the end of an attempt that it found on its disk.
    fn has_machine_rebooted(&self, attempt: AttemptId) -> bool {
        let runner = self.schedule.possible_runner(attempt);
        let Some(PossibleRunner::Machine { daemon, boot_id }) = runner else {
            return false;
        };
        let now = self.roster.boot_id_of(*daemon);
        now.is_some_and(|now| *now != *boot_id)
    }

    fn update_daemon_health(&mut self, live: &LiveTask, now: MonotonicTime) {
        let attempt = live.newest_attempt();
        let (Some(daemon), Some(end)) = (holding_daemon(attempt), attempt.state.end()) else {
            return;
        };
        if end.ended_by == EndedBy::Operator {
            // An operator's decision is no sign of the daemon's health.
            return self.roster.workspace_freed(daemon);
        }
        if let EndState::Completed | EndState::Failed | EndState::TimedOut = end.state {
            self.roster.note_attempt_run(daemon, now);
        }
        // A refused offer frees no workspace. If it did, two tasks that wait for the same
        // workspace would be offered in turn without end.
        if end.state != EndState::Released {
            self.roster.workspace_freed(daemon);
        }
        match end.state {
            EndState::Completed => self.roster.note_success(daemon, now),
            EndState::Failed | EndState::TimedOut | EndState::Lost => {
                self.roster.note_failure(daemon, now)
            }
            EndState::Canceled | EndState::Released | EndState::HandedOff => {}
        }
    }

    fn set_attention(
        &mut self,
        live: &mut LiveTask,
        parked: &ParkedState,
        turn: &mut CoreTurn<'_>,
    ) {
        if !mutant!(ParkedStaysQueued) {
            self.schedule.dequeue(live.id());
        }
        let unmet_summary;
        let reason = match parked.cause {
            ParkCause::Starved => "no daemon could take the task within its queue deadline",
            ParkCause::Blocked => "the attempt is blocked and needs a person",
            ParkCause::InputTimeout => "no answer arrived in time",
            ParkCause::ReceiptsMissing => {
                unmet_summary = completion_contract::unmet_summary(
                    &completion_contract::unmet_task_requirements(
                        &live.spec,
                        live.newest_attempt(),
                    ),
                );
                &*unmet_summary
            }
        };
        let since = turn.now.wall;
        live.record_mut().attention = Some(TaskAttention {
            cause: parked.cause.attention_cause(),
            reason: reason.into(),
            hint: None,
            checkpoint: None,
            since,
        });
    }
}

fn is_pending_cleanup(attempt: &AttemptRecord) -> bool {
    matches!(attempt.state, AttemptState::CleaningUp { pending: Some(_) })
}

pub(crate) fn holding_daemon(attempt: &AttemptRecord) -> Option<DaemonId> {
    attempt.daemon_holder().map(|holder| holder.daemon)
}

pub(crate) fn confirm_cancel(live: &mut LiveTask, receipt: TerminationReceipt, now: WallTime) {
    if live
        .record()
        .cancel
        .as_ref()
        .is_none_or(|cancel| cancel.confirmed.is_some())
    {
        return;
    }
    if receipt == TerminationReceipt::Unconfirmed {
        return;
    }
    if let Some(cancel) = &mut live.record_mut().cancel {
        cancel.delivered.get_or_insert(now);
        cancel.confirmed = Some(now);
    }
    live.add_event(TimelineEventKind::CancelConfirmed, None);
}
