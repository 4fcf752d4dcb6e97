//! Operators' verbs on one task: take an attempt away, fail it, retry, complete by hand, pause.
//!
//! The order is the same for all: a reason, a task of theirs, not too often, a state that the verb suits. Then the audit is
//! noted, the verb is done, and all of it is one write and one reply. A refusal writes nothing.

use std::sync::Arc;

use crate::attempt::{Event, Forced, ForcedEnd};
use crate::bounds;
use crate::contract;
use crate::core::{Core, Turn};
use crate::effects::{After, Reply};
use crate::force_limit::Target;
use crate::id::{AttemptId, RequestId, TaskId, TenantId};
use crate::input::{Actor, Finished};
use crate::live::Live;
use crate::record::{AttemptState, Audit, EventKind, Operation, State, TaskState};
use crate::reject::Rejection;
use crate::timers::TimerSet;

/// An operator's word on one task.
#[derive(Debug)]
pub struct Operate {
    pub request: RequestId,
    pub tenant: TenantId,
    pub task: TaskId,
    pub by: Actor,
    /// Only the end of a pause may go without.
    pub reason: Arc<str>,
    pub verb: Verb,
    pub finished: Option<Finished>,
}

#[derive(Clone, Debug)]
pub enum Verb {
    /// Takes a leased attempt away; the task is queued again, behind the successor rule. The attempt is the one that the
    /// caller saw; without it, the open one.
    ForceRelease {
        attempt: Option<AttemptId>,
    },
    /// Ends an open attempt, and with it the task, as failed.
    ForceFail {
        attempt: Option<AttemptId>,
    },
    /// Another attempt for a task that ended failed, timed_out or lost, or that needs attention.
    Retry {
        allow_unsafe: bool,
    },
    /// Completes what is parked, lost or held, by hand.
    Complete {
        overridden: bool,
        result: Option<Arc<[u8]>>,
    },
    Pause,
    Unpause,
}

impl Verb {
    fn needs_reason(&self) -> bool {
        !matches!(self, Verb::Unpause)
    }

    pub fn name(&self) -> &'static str {
        self.operation().as_str()
    }

    fn operation(&self) -> Operation {
        match self {
            Verb::ForceRelease { .. } => Operation::ForceRelease,
            Verb::ForceFail { .. } => Operation::ForceFail,
            Verb::Retry { .. } => Operation::Retry,
            Verb::Complete { overridden, .. } if *overridden && !mutant!(OverrideUnrecorded) => {
                Operation::CompleteOverridden
            }
            Verb::Complete { .. } => Operation::Complete,
            Verb::Pause => Operation::Pause,
            Verb::Unpause => Operation::Unpause,
        }
    }

    /// What becomes of the newest attempt. One that has ended stays as it is: another one follows it.
    fn leaves(&self, newest: &State) -> AttemptState {
        let ended = newest.end().is_some();
        match self {
            Verb::ForceRelease { .. } => AttemptState::Released,
            Verb::ForceFail { .. } => AttemptState::Failed,
            Verb::Complete { .. } if !ended => AttemptState::Completed,
            Verb::Retry { .. } if !ended => AttemptState::HandedOff,
            Verb::Complete { .. } | Verb::Retry { .. } | Verb::Pause | Verb::Unpause => {
                newest.name()
            }
        }
    }
}

impl Core {
    pub(crate) fn operate(&mut self, operate: Operate, turn: &mut Turn<'_>) {
        let (request, task) = (operate.request, operate.task);
        match self.operated(operate, turn) {
            Ok(reply) => turn.reply(request, After::Task(task), reply),
            Err(code) => turn.refuse(request, code),
        }
    }

    fn operated(&mut self, mut operate: Operate, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        if operate.verb.needs_reason() && operate.reason.trim().is_empty() {
            return Err(Rejection::ReasonMissing);
        }
        let mut live = self.operated_task(&mut operate)?;
        let target = Target::Task(operate.task);
        let admitted = self
            .forced
            .admit(operate.by.token, target, turn.now.at)
            .and_then(|()| self.suits(&live, &operate.verb));
        if let Err(code) = admitted {
            self.put_back(live, turn);
            return Err(code);
        }
        if matches!(operate.verb, Verb::Pause) && live.record().paused.is_some() {
            self.put_back(live, turn);
            return Ok(Reply::Already);
        }
        audit(&mut live, &operate);
        self.carry_out(&mut live, operate, turn);
        Ok(Reply::Task(self.keep(live, turn)))
    }

    /// Of finished tasks only a retry wants more than to hear that they are.
    fn operated_task(&mut self, operate: &mut Operate) -> Result<Box<Live>, Rejection> {
        if let Some(live) = self.take(&operate.tenant, operate.task) {
            return Ok(live);
        }
        let finished = operate.finished.take();
        let known = finished.filter(|finished| finished.record.tenant == operate.tenant);
        let known = known.ok_or(Rejection::UnknownTask)?;
        match operate.verb {
            Verb::Retry { .. } => Ok(Box::new(reopen(known))),
            Verb::ForceRelease { .. }
            | Verb::ForceFail { .. }
            | Verb::Complete { .. }
            | Verb::Pause
            | Verb::Unpause => Err(Rejection::AlreadyFinished),
        }
    }

    fn put_back(&mut self, live: Box<Live>, turn: &mut Turn<'_>) {
        if !live.is_reopened() {
            self.keep(live, turn);
        }
    }

    fn suits(&self, live: &Live, verb: &Verb) -> Result<(), Rejection> {
        match verb {
            Verb::ForceRelease { attempt } => {
                is_meant(live, *attempt)?;
                if live.is_newest_leased() {
                    // Another attempt follows it.
                    has_room(live)
                } else {
                    Err(Rejection::NotHeld)
                }
            }
            Verb::ForceFail { attempt } => {
                is_meant(live, *attempt)?;
                let over = live.newest().state.end().is_some();
                if over {
                    Err(Rejection::NotOpen)
                } else {
                    Ok(())
                }
            }
            Verb::Retry { allow_unsafe } => self.may_retry(live, *allow_unsafe),
            Verb::Complete { overridden, .. } => may_complete(live, *overridden),
            Verb::Unpause if live.record().paused.is_none() => Err(Rejection::NotPaused),
            Verb::Pause | Verb::Unpause => Ok(()),
        }
    }

    fn carry_out(&mut self, live: &mut Live, operate: Operate, turn: &mut Turn<'_>) {
        let (by, reason) = (operate.by, operate.reason);
        match operate.verb {
            Verb::ForceRelease { .. } => self.force(live, ForcedEnd::Released, reason, turn),
            Verb::ForceFail { .. } => self.force(live, ForcedEnd::Failed, reason, turn),
            Verb::Retry { .. } => self.retry(live, by.name, reason, turn),
            Verb::Complete { result, .. } => {
                if live.newest().state.end().is_some() {
                    // Its end is final: what a person adds stands beside it.
                    self.add_attempt(live, true, turn);
                }
                self.force(live, ForcedEnd::Completed { result }, reason, turn);
            }
            Verb::Pause => self.pause_task(live, by, reason, turn),
            Verb::Unpause => self.unpause_task(live, reason, turn),
        }
    }

    fn force(
        &mut self,
        live: &mut Live,
        into: ForcedEnd,
        mut reason: Arc<str>,
        turn: &mut Turn<'_>,
    ) {
        let record = live.record_mut();
        (record.retry, record.attention) = (None, None);
        live.retry_at = None;
        bounds::clip(&mut reason, bounds::WORDS_BYTES);
        let forced = Forced { into, reason };
        self.apply(live, Event::Forced(forced), None, turn);
    }

    /// Another attempt, because a person says so. What was spent stays spent: the chain's limit holds here too.
    fn retry(&mut self, live: &mut Live, by: Arc<str>, reason: Arc<str>, turn: &mut Turn<'_>) {
        if live.is_reopened() {
            self.fence_inherited(live, turn.now);
        }
        live.note(EventKind::RetryAsked, Some(reason));
        self.send_on(live, by, turn);
    }

    fn may_retry(&self, live: &Live, allow_unsafe: bool) -> Result<(), Rejection> {
        match live.record().state {
            TaskState::Failed
            | TaskState::TimedOut
            | TaskState::Lost
            | TaskState::NeedsAttention => {}
            TaskState::Pending if live.record().retry.is_some() => {}
            TaskState::Pending | TaskState::Queued | TaskState::Running
                if live.record().cancel.is_some() =>
            {
                return Err(Rejection::BeingCanceled);
            }
            TaskState::Pending | TaskState::Queued | TaskState::Running => {
                return Err(Rejection::NotFinished);
            }
            TaskState::Completed | TaskState::Canceled => return Err(Rejection::AlreadyFinished),
        }
        has_room(live)?;
        if live.record().counters.dispatches >= self.config.max_dispatches {
            return Err(Rejection::DispatchLimit);
        }
        if live.is_reopened() {
            self.has_room_for(&live.spec)?;
        }
        if live.newest().retry_safe || allow_unsafe {
            Ok(())
        } else {
            Err(Rejection::UnsafeRetry)
        }
    }
}

/// With the states that it finds; what it leaves is known before it is done.
fn audit(live: &mut Live, operate: &Operate) {
    let newest = &live.newest().state;
    let mut by = Arc::clone(&operate.by.name);
    bounds::clip(&mut by, bounds::NAME_BYTES);
    let audit = Audit {
        operation: operate.verb.operation(),
        by,
        attempt_before: newest.name(),
        attempt_after: operate.verb.leaves(newest),
        task_before: live.record().state,
    };
    let reason = Some(Arc::clone(&operate.reason));
    live.note(EventKind::Forced(audit), reason.filter(|r| !r.is_empty()));
}

/// It is the attempt that the caller saw, and nobody ends it already.
fn is_meant(live: &Live, attempt: Option<AttemptId>) -> Result<(), Rejection> {
    if attempt.is_some_and(|attempt| attempt != live.newest().id) {
        return Err(Rejection::StaleAttempt);
    }
    if live.record().cancel.is_some() {
        return Err(Rejection::BeingCanceled);
    }
    Ok(())
}

fn has_room(live: &Live) -> Result<(), Rejection> {
    if live.record().attempts.len() >= bounds::ATTEMPTS {
        Err(Rejection::DispatchLimit)
    } else {
        Ok(())
    }
}

/// Somebody has worked on it, and the receipts seen meet the contract unless an operator says that this does not matter.
fn may_complete(live: &Live, overridden: bool) -> Result<(), Rejection> {
    is_meant(live, None)?;
    match &live.newest().state {
        State::Queued => return Err(Rejection::NotBegun),
        State::Ended(_) if live.record().attention.is_none() => return Err(Rejection::NotOpen),
        State::Ended(_) => has_room(live)?,
        State::Offered
        | State::Accepted
        | State::Starting
        | State::Prompted
        | State::Streaming
        | State::ToolRunning
        | State::WaitingInput
        | State::CleaningUp { .. }
        | State::Parked(_) => {}
    }
    if overridden || contract::unmet(&live.spec, live.newest()).is_empty() {
        Ok(())
    } else {
        Err(Rejection::ContractUnmet)
    }
}

fn reopen(finished: Finished) -> Live {
    let mut live = Live::new(finished.spec, finished.record, TimerSet::default());
    live.reopen();
    live
}
