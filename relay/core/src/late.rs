//! Words that come after the end: a receipt lifts the fence, a result may still be adopted, the rest is evidence.
//!
//! The one exception to "no frame of another attempt changes anything", so it is narrow: the last attempt that ever
//! ran, ended by the relay and not by the worker, seen by the worker before its own limit, while nobody has resumed
//! or canceled the task, or within a day of `lost` or of an end for want of a result. The day is counted in the relay's
//! uptime: a clock that jumps decides nothing, and a relay that is down takes no time away from its workers.

use crate::attempt::{Event, is_loss};
use crate::contract::{self, Unmet};
use crate::core::{Core, Turn};
use crate::effects::{After, Count, Downstream};
use crate::ends::{confirm_cancel, holder_of};
use crate::frame::{From, ack, check_owner, lacks_output, proof_of_death, reject};
use crate::input::{Completed, Errored, Finished, Frame, FrameBody};
use crate::live::Live;
use crate::record::{
    AttemptRecord, EndState, EndedBy, EventKind, FailureCode, Receipt, State, TaskRecord, TaskState,
};
use crate::reject::Rejection;
use crate::spec::MissingPolicy;
use crate::time::{Now, Wall};
use crate::timers::TimerSet;

impl Core {
    /// A frame for a task that is finished: judged by its record, written only if it teaches something.
    pub(crate) fn finished_frame(
        &mut self,
        finished: Finished,
        from: From,
        frame: Frame,
        turn: &mut Turn<'_>,
    ) {
        let mut live = Live::new(finished.spec, finished.record, TimerSet::default());
        match check_owner(&live, from, frame.proof.as_ref(), turn) {
            Ok(()) => self.stale_frame(&mut live, from, frame, turn),
            Err(code) => reject(from, code, turn),
        }
        self.keep_finished(&mut live, turn);
    }

    /// A frame of an attempt that holds no lease.
    pub(crate) fn stale_frame(
        &mut self,
        live: &mut Live,
        from: From,
        frame: Frame,
        turn: &mut Turn<'_>,
    ) {
        let Some(index) = live
            .record()
            .attempts
            .iter()
            .position(|attempt| attempt.id == from.re.attempt)
        else {
            return reject(from, Rejection::UnknownAttempt, turn);
        };
        let applied = live.record().attempts[index].control_seq;
        if from.control_seq <= applied {
            if is_receipt(&frame.body) {
                // Frames of a killed attempt are dropped on both sides; its receipt is proof whatever its number.
                self.receipt_arrived(live, index, turn);
            }
            return ack(from, applied, turn);
        }
        let Some(dead) = proof_of_death(&frame.body) else {
            if self.roster.is_adopted(from.daemon, from.re.attempt) {
                // Welcome asked for the end, and this stands before it in the replay. It changes nothing.
                return ack(from, from.control_seq, turn);
            }
            return self.refuse_stale(live, index, from, turn);
        };
        if dead {
            self.receipt_arrived(live, index, turn);
        }
        if lacks_output(&frame.body) {
            return reject(from, Rejection::OutputGap, turn);
        }
        // Where the work of a lost run is; it decides nothing.
        live.note_workspace(from.re.attempt, frame.workspace);
        let wanted = self.may_adopt(live, index, turn.now);
        if let Some(event) = adoptable(live, index, &frame.body).filter(|_| wanted) {
            self.adopt(live, index, event, frame.observed, turn);
        } else if is_result(&frame.body) && !live.record().attempts[index].late_terminal {
            turn.fx.counts.push(Count::LateTerminal);
            live.record_mut().attempts[index].late_terminal = true;
            live.note_for(index, EventKind::LateTerminal);
        }
        if live.is_changed() {
            live.record_mut().attempts[index].control_seq = from.control_seq;
        }
        ack(from, from.control_seq, turn);
    }

    /// Its holder still thinks that it runs: it must stop.
    fn refuse_stale(&mut self, live: &Live, index: usize, from: From, turn: &mut Turn<'_>) {
        let code = if live.record().state.is_terminal() {
            Rejection::TaskTerminal
        } else if matches!(live.record().attempts[index].state, State::Parked(_)) {
            Rejection::NotLeased
        } else {
            Rejection::StaleAttempt
        };
        reject(from, code, turn);
        let attempt = from.re.attempt;
        turn.tell(
            After::Task(from.re.task),
            from.session,
            Downstream::Abandon { attempt, code },
        );
    }

    fn receipt_arrived(&mut self, live: &mut Live, index: usize, turn: &mut Turn<'_>) {
        let attempt = live.record().attempts[index].id;
        self.lift_fence(attempt, turn);
        let known = live.record().attempts[index].state.receipt();
        if known != Some(Receipt::Unconfirmed) {
            return;
        }
        match &mut live.record_mut().attempts[index].state {
            State::Ended(end) => end.receipt = Receipt::Confirmed,
            State::Parked(parked) => parked.receipt = Receipt::Confirmed,
            State::Queued
            | State::Offered
            | State::Accepted
            | State::Starting
            | State::Prompted
            | State::Streaming
            | State::ToolRunning
            | State::WaitingInput
            | State::CleaningUp { .. } => {}
        }
        live.note_for(index, EventKind::ReceiptArrived);
        let cancel = live.record().cancel.as_ref();
        if cancel.is_some_and(|cancel| cancel.attempt == Some(attempt)) {
            confirm_cancel(live, Receipt::Confirmed, turn.now.wall);
        }
    }

    /// Whether a late end of a finished task could still count: then its record must stay.
    pub(crate) fn awaits_late_end(&self, record: &TaskRecord, now: Now) -> bool {
        let mut attempts = record.attempts.iter();
        attempts.any(|attempt| ended_by_relay(attempt) && self.is_awaited(record, attempt, now))
    }

    fn is_awaited(&self, record: &TaskRecord, attempt: &AttemptRecord, now: Now) -> bool {
        let age_ms = self.uptime_ms(now).saturating_sub(attempt.budgets_at_ms);
        let fresh = age_ms <= self.config.adopt_late_ms || mutant!(LateForEver);
        is_given_up(record.state, attempt) && fresh
    }

    /// Whether the task's story still has room for a late end of this attempt.
    fn may_adopt(&self, live: &Live, index: usize, now: Now) -> bool {
        let record = live.record();
        let attempt = &record.attempts[index];
        let over = record.state.is_terminal() && !mutant!(TerminalReplaced);
        let open = !over || self.is_awaited(record, attempt, now);
        let successors = &record.attempts[index + 1..];
        let given_up = ended_by_relay(attempt) || mutant!(SecondTerminalTaken);
        let last = successors.iter().all(gave_way) || mutant!(LateOverSuccessor);
        open && record.cancel.is_none() && given_up && last && !mutant!(LateDropped)
    }

    /// The late end becomes the task's; a successor that only waited is not needed any more.
    fn adopt(
        &mut self,
        live: &mut Live,
        index: usize,
        event: Event,
        observed: Wall,
        turn: &mut Turn<'_>,
    ) {
        turn.fx.counts.push(Count::AdoptedLate);
        self.queue.remove(live.id());
        if live.record().attempts.len() > index + 1 {
            let scene = self.scene(live, turn.now, None);
            live.apply(Event::Withdraw, &scene);
        }
        live.retry_at = None;
        let was_open = !live.record().state.is_terminal();
        let failed = matches!(event, Event::Errored(_));
        let record = live.record_mut();
        (record.retry, record.attention, record.retry_stop) = (None, None, None);
        take_back(record, index);
        // Back into the state before its end, so that the machine itself ends it by the frame's word.
        record.attempts[index].state = State::CleaningUp { pending: None };
        let scene = self.scene(live, turn.now, Some(observed));
        live.apply_at(index, event, &mut TimerSet::default(), &scene);
        if let State::Ended(end) = &mut live.record_mut().attempts[index].state {
            end.adopted_late = true;
        }
        live.note_for(index, EventKind::AdoptedLate);
        if failed {
            self.follow_adopted(live, index, was_open, turn);
        }
    }
}

/// What the relay counted when it gave the attempt up did not happen.
fn take_back(record: &mut TaskRecord, index: usize) {
    let attempt = &record.attempts[index];
    let end = attempt.state.end();
    let lost = end.is_some_and(|end| end.state == EndState::Lost);
    let daemon = holder_of(attempt);
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

/// Worth keeping as evidence; a bare receipt or refusal is not.
fn is_result(body: &FrameBody) -> bool {
    !matches!(body, FrameBody::Receipt { .. } | FrameBody::Rejected { .. })
}

/// What of a worker's late words may become the task's: a result; or how it failed, where the relay knew of nothing
/// better. A worker's own word that it lost the attempt tells nothing new.
fn adoptable(live: &Live, index: usize, body: &FrameBody) -> Option<Event> {
    let attempt = &live.record().attempts[index];
    match body {
        FrameBody::Completed(body) if body.in_lease => {
            let unmet = contract::judge_found(&live.spec, &body.artifacts);
            if unmet.is_empty() || mutant!(LateUnjudged) {
                return Some(Event::Completed(body.clone()));
            }
            late_failure(live, index, body, &unmet)
        }
        FrameBody::Errored(body)
            if body.in_lease && unexplained(attempt) && waits_on(live, index) =>
        {
            (!is_loss(&body.code)).then(|| Event::Errored(body.clone()))
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

/// A late result that misses files is a failure where the contract says so and a failure would count. Otherwise nobody is
/// left to make them, and nothing is parked that may be running elsewhere: it is evidence.
fn late_failure(live: &Live, index: usize, body: &Completed, unmet: &[Unmet]) -> Option<Event> {
    let fails = contract::policy(&live.spec) == MissingPolicy::Fail;
    let counts = unexplained(&live.record().attempts[index]) && waits_on(live, index);
    let words = contract::words(unmet);
    (fails && counts).then(|| Event::Errored(Errored::receipts_missing(body.clone(), words)))
}

/// A successor that takes nothing away from a late end: nobody asked for it, and no process of it ever ran.
fn gave_way(successor: &AttemptRecord) -> bool {
    let never_ran = successor.state.receipt() == Some(Receipt::NotNeeded);
    never_ran && !successor.asked
}

/// An agent that holds its lease itself has no outbox, so nothing of it can come late.
fn ended_by_relay(attempt: &AttemptRecord) -> bool {
    let end = attempt.state.end().filter(|_| attempt.agent().is_none());
    end.is_some_and(|end| {
        let given_up = matches!(end.state, EndState::Lost | EndState::TimedOut);
        end.by == EndedBy::Relay && (given_up || lacks_result(attempt))
    })
}

/// Its end says only that the relay heard nothing more; a deadline says what happened.
fn unexplained(attempt: &AttemptRecord) -> bool {
    let end = attempt.state.end();
    end.is_some_and(|end| end.state == EndState::Lost) || lacks_result(attempt)
}

/// Nothing has come of it since but an attempt that waits: a failure undoes no more than that.
fn waits_on(live: &Live, index: usize) -> bool {
    let successors = &live.record().attempts[index + 1..];
    successors.iter().all(|next| next.state == State::Queued)
}

/// The relay stopped waiting for a result, which may have been on its way.
fn lacks_result(attempt: &AttemptRecord) -> bool {
    let end = attempt.state.end();
    end.is_some_and(|end| {
        end.by == EndedBy::Relay && end.failure_code == Some(FailureCode::NoResult)
    })
}

/// The task is over because nothing more was heard of this attempt.
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
