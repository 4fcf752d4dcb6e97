//! An independent check of the core's decisions when a lease is given up, and when an end
//! arrives late.

use std::sync::Arc;

use baton_core::ids::AttemptId;
use baton_core::io::effects::RecordChange;
use baton_core::io::session_input::{AttemptFrame, FrameBody};
use baton_core::record::{
    AttemptRecord, AttemptState, EndState, EndedBy, FailureCode, TaskRecord, TaskState,
    TerminationReceipt,
};

use crate::checks::required_files::is_contract_met;
use crate::faults::replayed_frames::FORGED_TOKEN;
use crate::options::ADOPT_LATE_MS;
use crate::simulation::Simulation;

/// A result for an attempt that has ended, and the state before it.
#[derive(Debug)]
pub(crate) struct LateResult {
    attempt: AttemptId,
    control_seq: u64,
    in_lease: bool,
    /// The files that its task requires exist.
    contract_met: bool,
    before: Arc<TaskRecord>,
}

impl Simulation {
    /// L4 and promise 3: the relay gives a lease up only after its worker has counted it down.
    pub(crate) fn check_lease_given_up(&mut self, write: &RecordChange) {
        let (RecordChange::PutLive(record)
        | RecordChange::PutDone(record)
        | RecordChange::Reopen(record)) = write
        else {
            return;
        };
        let view = &self.relay.store.view;
        let now = self.now;
        for attempt in record.attempts.iter().filter(|a| is_ended_by_relay(a)) {
            let was = view.attempt(record.task, attempt.id);
            if !was.is_some_and(|was| was.state.is_leased()) {
                continue;
            }
            self.check_stall_credit(attempt);
            self.ended_at.insert(attempt.id, self.relay.uptime_ms(now));
            let end = attempt.state.end();
            if end.is_none_or(|end| end.failure_code != Some(FailureCode::LeaseExpired)) {
                continue;
            }
            self.check_agent_lease_loss(record.task, attempt);
            let daemons = self.daemons.iter();
            let held = daemons.filter_map(|daemon| daemon.attempts.get(&attempt.id));
            for held in
                held.filter(|h| h.processes_alive && h.re.incarnation == self.relay.incarnation())
            {
                assert!(
                    held.granted_time.until <= now,
                    "L4: {} was given up at {now}, and its worker may run it until {}",
                    attempt.id,
                    held.granted_time.until
                );
            }
        }
    }

    pub(crate) fn late_result(&self, frame: &AttemptFrame) -> Option<LateResult> {
        let FrameBody::Completed(body) = &frame.body else {
            return None;
        };
        if body.output_missing > 0 {
            return None;
        }
        let before = self.relay.store.view.record(frame.frame_ref.task)?;
        let heard = frame.proof != Some(FORGED_TOKEN)
            && self.may_send_frames(frame.session, frame.frame_ref);
        heard.then(|| LateResult {
            attempt: frame.frame_ref.attempt,
            control_seq: frame.control_seq,
            in_lease: body.ended_in_lease,
            contract_met: (self.relay.store.view.specs)
                .get(&frame.frame_ref.task)
                .is_some_and(|spec| is_contract_met(spec, &body.artifacts)),
            before: Arc::clone(before),
        })
    }

    /// Adopted exactly when allowed: never against an operator's decision or a successor that
    /// ran, and never rejected without cause.
    pub(crate) fn check_late_result(&self, late: Option<LateResult>) {
        let Some(late) = late else {
            return;
        };
        let attempt = late.attempt;
        let Some(after) = self.relay.store.view.record(late.before.task) else {
            return;
        };
        let (Some(was), Some(is)) = (late.before.attempt(attempt), after.attempt(attempt)) else {
            return;
        };
        // The state machine decides about an attempt that was leased until this turn.
        let Some(old) = was.state.end() else {
            return;
        };
        let adopted = is.state.end().is_some_and(|end| end.is_adopted_late) && !old.is_adopted_late;
        let (age, open) = (
            self.time_since_given_up(attempt),
            !late.before.state.is_terminal(),
        );
        let fresh = open || age.is_some_and(|age| age <= ADOPT_LATE_MS);
        let allowed = may_adopt(&late.before, was) && fresh;
        if adopted {
            assert!(
                late.in_lease,
                "late: {attempt} ended after its worker's limit"
            );
            assert!(allowed, "late: {attempt} was adopted after {age:?}");
            let failed = is
                .state
                .end()
                .is_some_and(|end| end.state == EndState::Failed);
            assert!(
                late.contract_met != failed,
                "contract: a late result of {attempt} without its files was adopted"
            );
        } else if late.contract_met && late.in_lease && late.control_seq > was.control_seq {
            assert!(!allowed, "late: the result of {attempt} was not adopted");
        }
    }

    /// An attempt of this task whose result would be adopted now.
    pub(crate) fn adoptable_attempt(&self, task: &TaskRecord) -> Option<AttemptId> {
        let fresh = |a: &&AttemptRecord| {
            self.time_since_given_up(a.id)
                .is_some_and(|age| age <= ADOPT_LATE_MS)
        };
        let mut attempts = task.attempts.iter().filter(|a| may_adopt(task, a));
        attempts.find(fresh).map(|attempt| attempt.id)
    }

    /// Time since it was given up, in the relay's own uptime.
    fn time_since_given_up(&self, attempt: AttemptId) -> Option<u64> {
        let at = *self.ended_at.get(&attempt)?;
        Some(self.relay.uptime_ms(self.now).saturating_sub(at))
    }
}

/// The rule of README, implemented again.
fn may_adopt(task: &TaskRecord, attempt: &AttemptRecord) -> bool {
    let given_up = attempt.state.end().is_some_and(|end| {
        matches!(end.state, EndState::Lost | EndState::TimedOut)
            || end.failure_code == Some(FailureCode::NoResult)
    });
    let mut later = task.attempts.iter().filter(|a| a.number > attempt.number);
    let free = later.all(|a| !a.requested_by_person && never_ran(a));
    let over = match task.state {
        TaskState::Completed | TaskState::Canceled | TaskState::TimedOut => true,
        TaskState::Failed => {
            let end = attempt.state.end();
            end.is_none_or(|end| end.failure_code != Some(FailureCode::NoResult))
        }
        TaskState::Pending
        | TaskState::Queued
        | TaskState::Running
        | TaskState::NeedsAttention
        | TaskState::Lost => false,
    };
    // An agent with its own lease has no daemon that stores its result.
    let kept = attempt.agent_holder().is_none();
    kept && given_up && is_ended_by_relay(attempt) && free && !over && task.cancel.is_none()
}

fn is_ended_by_relay(attempt: &AttemptRecord) -> bool {
    let end = attempt.state.end();
    end.is_some_and(|end| end.ended_by == EndedBy::Relay)
}

fn never_ran(attempt: &AttemptRecord) -> bool {
    match &attempt.state {
        AttemptState::Queued => true,
        AttemptState::Ended(end) => end.receipt == TerminationReceipt::NotNeeded,
        AttemptState::Parked(parked) => parked.receipt == TerminationReceipt::NotNeeded,
        AttemptState::Offered
        | AttemptState::Accepted
        | AttemptState::Starting
        | AttemptState::Prompted
        | AttemptState::Streaming
        | AttemptState::ToolRunning
        | AttemptState::WaitingInput
        | AttemptState::CleaningUp { .. } => false,
    }
}
