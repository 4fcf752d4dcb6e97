//! Frames that arrive after an attempt's end: a receipt lifts the fence, a result may still be
//! adopted, other terminal frames are recorded as evidence.
//!
//! Adoption is the one exception to the rule that a frame of a stale attempt changes nothing,
//! so its conditions are narrow. The attempt is the last one that ever ran. The relay ended it,
//! not the worker. The worker saw the end before its own lease limit. The task was neither
//! resumed nor canceled. A finished task must be `lost`, or failed with `no_result`, for less
//! than a day. The day is counted in the relay's uptime, so a clock jump does not matter and
//! downtime of the relay does not shorten it.

use crate::attempt::attempt_owners::{AttemptOwners, attempt_context};
use crate::attempt::lease_end::{confirm_cancel, holding_daemon};
use crate::attempt::machine::{MachineEvent, is_loss_code};
use crate::attempt::timers::TimerSet;
use crate::fleet::frame_check::{FrameOrigin, check_owner, reject_frame, send_ack};
use crate::fleet::frame_event::{lacks_output, proof_of_death};
use crate::goal::completion_contract;
use crate::goal::completion_contract::UnmetRequirement;
use crate::io::effects::{CommitDependency, CoreMetric, DaemonMessage};
use crate::io::rejection::Rejection;
use crate::io::session_input::{AttemptFrame, CompletedBody, ErroredBody, FrameBody};
use crate::io::stored_lookup::FinishedTask;
use crate::record::{
    AttemptRecord, AttemptState, EndState, EndedBy, FailureCode, TaskRecord, TaskState,
    TerminationReceipt, TimelineEventKind,
};
use crate::task::live_task::LiveTask;
use crate::task::live_tasks::store_finished_task;
use crate::task::spec::MissingPolicy;
use crate::time::WallTime;
use crate::turn::CoreTurn;

impl AttemptOwners<'_> {
    /// A frame for a finished task is checked against its record and stored only if it adds
    /// something.
    pub(crate) fn handle_finished_frame(
        &mut self,
        finished: FinishedTask,
        from: FrameOrigin,
        frame: AttemptFrame,
        turn: &mut CoreTurn<'_>,
    ) {
        let mut live = LiveTask::new(finished.spec, finished.record, TimerSet::default());
        match check_owner(&live, from, frame.proof.as_ref(), turn) {
            Ok(()) => self.handle_stale_frame(&mut live, from, frame, turn),
            Err(code) => reject_frame(from, code, turn),
        }
        store_finished_task(&mut live, turn);
    }

    /// Handles a frame of an attempt that has no lease any more.
    pub(crate) fn handle_stale_frame(
        &mut self,
        live: &mut LiveTask,
        from: FrameOrigin,
        frame: AttemptFrame,
        turn: &mut CoreTurn<'_>,
    ) {
        let Some(index) = live
            .record()
            .attempts
            .iter()
            .position(|attempt| attempt.id == from.frame_ref.attempt)
        else {
            return reject_frame(from, Rejection::UnknownAttempt, turn);
        };
        let applied = live.record().attempts[index].control_seq;
        if from.control_seq <= applied {
            if is_receipt(&frame.body) {
                // Frames of a killed attempt are dropped on both sides, so its numbering has
                // gaps. A receipt proves death whatever its number.
                self.apply_late_receipt(live, index, turn);
            }
            return send_ack(from, applied, turn);
        }
        let Some(dead) = proof_of_death(&frame.body) else {
            if self
                .roster
                .awaits_final_frames(from.daemon, from.frame_ref.attempt)
            {
                // Welcome asked for the terminal frame. This frame precedes it in the replay,
                // so it is acknowledged without effect.
                return send_ack(from, from.control_seq, turn);
            }
            return reject_stale_frame(live, index, from, turn);
        };
        if dead {
            self.apply_late_receipt(live, index, turn);
        }
        if lacks_output(&frame.body) {
            return reject_frame(from, Rejection::OutputGap, turn);
        }
        // The workspace is stored so that people can find a lost run's work; no decision uses
        // it.
        live.set_workspace(from.frame_ref.attempt, frame.workspace);
        let wanted = may_adopt_late_end(live, index, turn);
        if let Some(event) = adoptable_event(live, index, &frame.body).filter(|_| wanted) {
            self.adopt_late_end(live, index, event, frame.observed, turn);
        } else if is_result(&frame.body) && !live.record().attempts[index].has_late_terminal {
            turn.effects.metrics.push(CoreMetric::LateTerminal);
            live.record_mut().attempts[index].has_late_terminal = true;
            live.add_event_for(index, TimelineEventKind::LateTerminal);
        }
        if live.is_dirty() {
            live.record_mut().attempts[index].control_seq = from.control_seq;
        }
        send_ack(from, from.control_seq, turn);
    }

    fn apply_late_receipt(&mut self, live: &mut LiveTask, index: usize, turn: &mut CoreTurn<'_>) {
        let attempt = live.record().attempts[index].id;
        self.schedule.lift_fence(attempt, turn);
        let known = live.record().attempts[index].state.receipt();
        if known != Some(TerminationReceipt::Unconfirmed) {
            return;
        }
        match &mut live.record_mut().attempts[index].state {
            AttemptState::Ended(end) => end.receipt = TerminationReceipt::Confirmed,
            AttemptState::Parked(parked) => parked.receipt = TerminationReceipt::Confirmed,
            AttemptState::Queued
            | AttemptState::Offered
            | AttemptState::Accepted
            | AttemptState::Starting
            | AttemptState::Prompted
            | AttemptState::Streaming
            | AttemptState::ToolRunning
            | AttemptState::WaitingInput
            | AttemptState::CleaningUp { .. } => {}
        }
        live.add_event_for(index, TimelineEventKind::ReceiptArrived);
        let cancel = live.record().cancel.as_ref();
        if cancel.is_some_and(|cancel| cancel.attempt == Some(attempt)) {
            confirm_cancel(live, TerminationReceipt::Confirmed, turn.now.wall);
        }
    }

    /// Whether a late end of a finished task could still be adopted; its record must be
    /// retained then.
    fn adopt_late_end(
        &mut self,
        live: &mut LiveTask,
        index: usize,
        event: MachineEvent,
        observed: WallTime,
        turn: &mut CoreTurn<'_>,
    ) {
        turn.effects.metrics.push(CoreMetric::AdoptedLate);
        self.schedule.dequeue(live.id());
        if live.record().attempts.len() > index + 1 {
            let scene = attempt_context(self.roster, live, turn, None);
            live.apply_event(MachineEvent::Withdraw, &scene);
        }
        live.retry_at = None;
        let was_open = !live.record().state.is_terminal();
        let failed = matches!(event, MachineEvent::Errored(_));
        let record = live.record_mut();
        (record.retry, record.attention, record.retry_stop_reason) = (None, None, None);
        undo_end_counters(record, index);
        // Set back to the state before its end, so that the machine ends it again from the
        // frame.
        record.attempts[index].state = AttemptState::CleaningUp { pending: None };
        let scene = attempt_context(self.roster, live, turn, Some(observed));
        live.apply_event_at(index, event, &mut TimerSet::default(), &scene);
        if let AttemptState::Ended(end) = &mut live.record_mut().attempts[index].state {
            end.is_adopted_late = true;
        }
        live.add_event_for(index, TimelineEventKind::AdoptedLate);
        if failed {
            self.follow_adopted_end(live, index, was_open, turn);
        }
    }
}

/// Takes back the failure or loss that was counted when the relay gave the attempt up.
fn reject_stale_frame(live: &LiveTask, index: usize, from: FrameOrigin, turn: &mut CoreTurn<'_>) {
    let code = if live.record().state.is_terminal() {
        Rejection::TaskTerminal
    } else if matches!(live.record().attempts[index].state, AttemptState::Parked(_)) {
        Rejection::NotLeased
    } else {
        Rejection::StaleAttempt
    };
    reject_frame(from, code, turn);
    let attempt = from.frame_ref.attempt;
    turn.send_to_session(
        CommitDependency::Task(from.frame_ref.task),
        from.session,
        DaemonMessage::Abandon { attempt, code },
    );
}

/// Whether a late end of a finished task could still count: then its record must stay.
pub(crate) fn awaits_late_end(record: &TaskRecord, turn: &CoreTurn<'_>) -> bool {
    let mut attempts = record.attempts.iter();
    attempts.any(|attempt| ended_by_relay(attempt) && is_late_end_awaited(record, attempt, turn))
}

fn is_late_end_awaited(record: &TaskRecord, attempt: &AttemptRecord, turn: &CoreTurn<'_>) -> bool {
    let age_ms = turn.uptime_ms.saturating_sub(attempt.budgets_at_ms);
    let fresh = age_ms <= turn.config.adopt_late_ms || mutant!(LateForEver);
    is_given_up(record.state, attempt) && fresh
}

/// Whether the task's story still has room for a late end of this attempt.
fn may_adopt_late_end(live: &LiveTask, index: usize, turn: &CoreTurn<'_>) -> bool {
    let record = live.record();
    let attempt = &record.attempts[index];
    let over = record.state.is_terminal() && !mutant!(TerminalReplaced);
    let open = !over || is_late_end_awaited(record, attempt, turn);
    let successors = &record.attempts[index + 1..];
    let given_up = ended_by_relay(attempt) || mutant!(SecondTerminalTaken);
    let last = successors.iter().all(is_superseded) || mutant!(LateOverSuccessor);
    open && record.cancel.is_none() && given_up && last && !mutant!(LateDropped)
}

/// What the relay counted when it gave the attempt up did not happen.
fn undo_end_counters(record: &mut TaskRecord, index: usize) {
    let attempt = &record.attempts[index];
    let end = attempt.state.end();
    let lost = end.is_some_and(|end| end.state == EndState::Lost);
    let daemon = holding_daemon(attempt);
    let counters = &mut record.counters;
    let counted = if lost {
        &mut counters.losses
    } else {
        &mut counters.failures
    };
    *counted = counted.saturating_sub(1);
    counters.daemons_lost.retain(|lost| Some(*lost) != daemon);
}

fn is_receipt(body: &FrameBody) -> bool {
    matches!(body, FrameBody::Receipt { .. }) && proof_of_death(body) == Some(true)
}

/// Whether the frame is recorded as evidence; a bare receipt or rejection is not.
fn is_result(body: &FrameBody) -> bool {
    !matches!(body, FrameBody::Receipt { .. } | FrameBody::Rejected { .. })
}

/// The event of a late frame that may be adopted: a result, or a failure if the recorded end
/// does not explain what happened. A worker's report that it lost the attempt adds nothing and
/// is not adopted.
fn adoptable_event(live: &LiveTask, index: usize, body: &FrameBody) -> Option<MachineEvent> {
    let attempt = &live.record().attempts[index];
    match body {
        FrameBody::Completed(body) if body.ended_in_lease => {
            let unmet = completion_contract::judge_found(&live.spec, &body.artifacts);
            if unmet.is_empty() || mutant!(LateUnjudged) {
                return Some(MachineEvent::Completed(body.clone()));
            }
            late_failure(live, index, body, &unmet)
        }
        FrameBody::Errored(body)
            if body.ended_in_lease
                && is_unexplained(attempt)
                && has_only_queued_successors(live, index) =>
        {
            (!is_loss_code(&body.code)).then(|| MachineEvent::Errored(body.clone()))
        }
        FrameBody::Completed(_)
        | FrameBody::Errored(_)
        | FrameBody::Accepted
        | FrameBody::Rejected { .. }
        | FrameBody::Started
        | FrameBody::Phase { .. }
        | FrameBody::ToolStarted { .. }
        | FrameBody::ToolFinished { .. }
        | FrameBody::PermissionRequest { .. }
        | FrameBody::Question { .. }
        | FrameBody::InputWithdrawn { .. }
        | FrameBody::InputReceived { .. }
        | FrameBody::Canceled(_)
        | FrameBody::Released { .. }
        | FrameBody::Receipt { .. }
        | FrameBody::Goal(_)
        | FrameBody::Unknown => None,
    }
}

/// Turns a late result with missing files into a failure, if the contract's policy is `fail`
/// and a late failure would be adopted. Under the other policies it is only evidence: the agent
/// that could supply the files has ended, and a task that may be running elsewhere must not be
/// parked.
fn late_failure(
    live: &LiveTask,
    index: usize,
    body: &CompletedBody,
    unmet: &[UnmetRequirement],
) -> Option<MachineEvent> {
    let fails = completion_contract::missing_policy(&live.spec) == MissingPolicy::Fail;
    let counts =
        is_unexplained(&live.record().attempts[index]) && has_only_queued_successors(live, index);
    let summary = completion_contract::unmet_summary(unmet);
    (fails && counts)
        .then(|| MachineEvent::Errored(ErroredBody::receipts_missing(body.clone(), summary)))
}

/// Whether a late end may replace this successor: no person requested it and it never ran a
/// process.
fn is_superseded(successor: &AttemptRecord) -> bool {
    let never_ran = successor.state.receipt() == Some(TerminationReceipt::NotNeeded);
    never_ran && !successor.requested_by_person
}

/// Whether the relay gave the attempt up without a terminal frame. False for an agent that
/// holds the lease itself: it has no outbox, so it cannot deliver a late frame.
fn ended_by_relay(attempt: &AttemptRecord) -> bool {
    let end = attempt
        .state
        .end()
        .filter(|_| attempt.agent_holder().is_none());
    end.is_some_and(|end| {
        let given_up = matches!(end.state, EndState::Lost | EndState::TimedOut);
        end.ended_by == EndedBy::Relay && (given_up || lacks_result(attempt))
    })
}

/// Whether the recorded end means only that no more frames arrived. An expired deadline is an
/// explanation of its own.
fn is_unexplained(attempt: &AttemptRecord) -> bool {
    let end = attempt.state.end();
    end.is_some_and(|end| end.state == EndState::Lost) || lacks_result(attempt)
}

/// Whether all later attempts are still queued, so that adopting a failure withdraws nothing
/// else.
fn has_only_queued_successors(live: &LiveTask, index: usize) -> bool {
    let successors = &live.record().attempts[index + 1..];
    successors
        .iter()
        .all(|next| next.state == AttemptState::Queued)
}

/// Whether the relay stopped waiting for a result that may still have been in transit.
fn lacks_result(attempt: &AttemptRecord) -> bool {
    let end = attempt.state.end();
    end.is_some_and(|end| {
        end.ended_by == EndedBy::Relay && end.failure_code == Some(FailureCode::NoResult)
    })
}

/// Whether the task ended because no more frames arrived from this attempt.
fn is_given_up(state: TaskState, attempt: &AttemptRecord) -> bool {
    match state {
        TaskState::Lost => true,
        TaskState::Failed => lacks_result(attempt),
        TaskState::Pending
        | TaskState::Queued
        | TaskState::Running
        | TaskState::NeedsAttention
        | TaskState::Completed
        | TaskState::Canceled
        | TaskState::TimedOut => false,
    }
}
