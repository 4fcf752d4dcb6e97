//! What an agent says about a lease that it holds itself. The same rules as for a daemon's frames, without a stream.
//!
//! Order of the checks: the attempt exists and is this credential's, in this life of the data; the token proves it; it is
//! leased; the lease has not expired (at its limit it has); the verb's own rule. The first that fails names the code, and
//! nothing is written. The shape was checked before anything was looked up. A call that was obeyed before (`repeats.rs`) is
//! answered behind the proof: whatever has become of the lease since, it did its work.

use std::sync::Arc;

use crate::agent::repeated_call;
use crate::attempt::machine::{EventOutcome, MachineEvent};
use crate::attempt::timers::{TimerKey, TimerSet};
use crate::core_state::{Core, CoreTurn};
use crate::fleet::frame::{
    frame_event, matches_token, record_cancel_delivered, record_unmet_contract,
};
use crate::goal::hand_off::{GoalOutcome, ParkRequest, add_progress, progress_reply};
use crate::goal::progress::GoalReport;
use crate::ids::Incarnation;
use crate::io::command::{
    AgentLeaseCall, AgentLeaseVerb, CanceledBody, CompletedBody, FinishedTask, FrameBody,
    ProcessTermination,
};
use crate::io::effects::{CommitDependency, CoreReply};
use crate::io::rejection::Rejection;
use crate::record::{
    AnsweredCall, AttemptRecord, AttemptState, CancelRecord, EndState, EndedBy, FailureCode,
    TaskState, TimelineEventKind,
};
use crate::task::live_task::{LiveTask, wall_time_at};
use crate::task::size_limits;
use crate::time::MonotonicTime;

/// What an accepted call is answered with, once its task is put back.
enum AgentCallAnswer {
    Task,
    Goal(GoalOutcome),
    Renewed {
        granted_ms: u64,
        told: bool,
    },
    /// With the number of the checkpoint that it wrote then.
    Repeated(Option<u64>),
}

/// A call of the attempt's holder, proved.
enum AgentCallCheck {
    /// Of the attempt at this place.
    New(usize),
    AlreadyAnswered(AnsweredCall),
}

impl Core {
    pub(crate) fn agent_lease_call(&mut self, mut call: AgentLeaseCall, turn: &mut CoreTurn<'_>) {
        if let Some(live) = self.take_task(&call.agent.tenant, call.task) {
            return self.call_on_live_task(live, call, turn);
        }
        let tenant = &call.agent.tenant;
        let finished = call.finished.take();
        let own = finished.filter(|finished| finished.record.tenant == *tenant);
        match own.map(|finished| self.call_on_finished_task(finished, &call)) {
            Some(Ok(reply)) => turn.reply(call.request, CommitDependency::Task(call.task), reply),
            Some(Err(code)) => turn.refuse(call.request, code),
            None => turn.refuse(call.request, Rejection::UnknownTask),
        }
    }

    fn call_on_live_task(
        &mut self,
        mut live: Box<LiveTask>,
        call: AgentLeaseCall,
        turn: &mut CoreTurn<'_>,
    ) {
        let (request, task) = (call.request, call.task);
        let answer = self.check_and_run_call(&mut live, call, turn);
        let record = self.put_back_task(live, turn);
        match answer {
            Ok(AgentCallAnswer::Task) => turn.reply(
                request,
                CommitDependency::Task(task),
                CoreReply::Task(record),
            ),
            Ok(AgentCallAnswer::Repeated(checkpoint)) => {
                let reply = CoreReply::Repeated { record, checkpoint };
                turn.reply(request, CommitDependency::Task(task), reply);
            }
            Ok(AgentCallAnswer::Goal(said)) => {
                let reply = match said.checkpoint {
                    Some(checkpoint) => CoreReply::Checkpointed { record, checkpoint },
                    None => progress_reply(record, said.progress),
                };
                turn.reply(request, CommitDependency::Task(task), reply);
            }
            Ok(AgentCallAnswer::Renewed { granted_ms, told }) => {
                let reply = CoreReply::Renewed {
                    granted_ms,
                    expires_at: wall_time_at(turn.now.monotonic + granted_ms, turn.now),
                    cancel_requested: told,
                };
                // A cancel must not be known before it is durable; a renewal waits for no disk.
                let after = if told {
                    CommitDependency::Task(task)
                } else {
                    CommitDependency::Nothing
                };
                turn.reply(request, after, reply);
            }
            Err(code) => turn.refuse(request, code),
        }
    }

    /// The task is over. Only a call that did its work then is answered as it was.
    fn call_on_finished_task(
        &self,
        finished: FinishedTask,
        call: &AgentLeaseCall,
    ) -> Result<CoreReply, Rejection> {
        let FinishedTask { record, spec } = finished;
        let live = LiveTask::new(spec, Arc::clone(&record), TimerSet::default());
        let index = match check_holder(&live, call, self.config.incarnation)? {
            AgentCallCheck::New(index) => index,
            AgentCallCheck::AlreadyAnswered(AnsweredCall { checkpoint, .. }) => {
                return Ok(CoreReply::Repeated { record, checkpoint });
            }
        };
        let attempt = &record.attempts[index];
        if was_already_done(attempt, &call.verb) {
            return Ok(CoreReply::Task(record));
        }
        Err(not_leased_reason(attempt, record.state))
    }

    fn check_and_run_call(
        &mut self,
        live: &mut LiveTask,
        mut call: AgentLeaseCall,
        turn: &mut CoreTurn<'_>,
    ) -> Result<AgentCallAnswer, Rejection> {
        let index = match check_holder(live, &call, self.config.incarnation)? {
            AgentCallCheck::New(index) => index,
            AgentCallCheck::AlreadyAnswered(heard) => {
                return Ok(AgentCallAnswer::Repeated(heard.checkpoint));
            }
        };
        let named = live.newest_attempt().id == call.attempt || mutant!(AgentUnfenced);
        let current = named && live.is_newest_leased();
        if current && is_lease_over(live, turn.now.monotonic) {
            // The call lost the race against the clock; the sweep would say the same a moment later.
            self.apply_event(
                live,
                MachineEvent::TimerExpired(TimerKey::Lease),
                None,
                turn,
            );
            return Err(Rejection::LeaseExpired);
        }
        if !current {
            let attempt = &live.record().attempts[index];
            if was_already_done(attempt, &call.verb) {
                return Ok(AgentCallAnswer::Task);
            }
            return Err(not_leased_reason(attempt, live.record().state));
        }
        let (attempt, mark) = (call.attempt, call.fingerprint.take());
        let answer = self.run_call(live, call, turn)?;
        if let Some(mark) = mark {
            let checkpoint = answer.checkpoint_number();
            repeated_call::store_answered_call(
                live,
                attempt,
                AnsweredCall {
                    fingerprint: mark,
                    checkpoint,
                },
            );
        }
        Ok(answer)
    }

    /// The verb's own rule, and what follows from it.
    fn run_call(
        &mut self,
        live: &mut LiveTask,
        call: AgentLeaseCall,
        turn: &mut CoreTurn<'_>,
    ) -> Result<AgentCallAnswer, Rejection> {
        match call.verb {
            AgentLeaseVerb::Renew => {
                let (granted_ms, told) = self.renew_agent_lease(live, turn);
                Ok(AgentCallAnswer::Renewed { granted_ms, told })
            }
            AgentLeaseVerb::Complete(..) if live.record().cancel.is_some() => {
                Err(Rejection::BeingCanceled)
            }
            AgentLeaseVerb::Complete(mut completed, last_words) => {
                completed.termination = stopped_termination();
                let answer = self.apply_agent_frame(live, FrameBody::Completed(completed), turn)?;
                if let Some(update) = last_words {
                    // The result counts, whatever became of the words.
                    let _added =
                        add_progress(live, update.into_parts().0, call.stored_progress, turn);
                }
                Ok(answer)
            }
            AgentLeaseVerb::Goal(GoalReport::Block(block)) => {
                let park = ParkRequest {
                    termination: Some(stopped_termination()),
                    ..ParkRequest::from_block(block, Arc::clone(&call.agent.name), None)
                };
                self.park_attempt(live, park, call.stored_progress, turn)
                    .map(AgentCallAnswer::Goal)
            }
            AgentLeaseVerb::Goal(word) => {
                let said = self.apply_goal_report(live, word, call.stored_progress, None, turn)?;
                Ok(AgentCallAnswer::Goal(said))
            }
            AgentLeaseVerb::Fail(mut errored) => {
                errored.termination = stopped_termination();
                self.apply_agent_frame(live, FrameBody::Errored(errored), turn)
            }
            AgentLeaseVerb::Release { reason } => {
                let termination = stopped_termination();
                let released = FrameBody::Released {
                    reason,
                    termination,
                };
                self.apply_agent_frame(live, released, turn)
            }
            AgentLeaseVerb::Cancel { reason } => {
                if live.record().cancel.is_none() {
                    begin_holder_cancel(live, &call.agent.name, reason.clone(), turn);
                }
                let canceled = FrameBody::Canceled(CanceledBody {
                    reason,
                    termination: stopped_termination(),
                    ended_in_lease: true,
                    ..CanceledBody::default()
                });
                self.apply_agent_frame(live, canceled, turn)
            }
        }
    }

    /// What is granted, and whether a cancel waits. A lease that is to be given up is not renewed, or whoever asked for the
    /// cancel might wait for ever.
    pub(crate) fn renew_agent_lease(
        &self,
        live: &mut LiveTask,
        turn: &CoreTurn<'_>,
    ) -> (u64, bool) {
        let now = turn.now.monotonic;
        let told = matches!(live.newest_attempt().state, AttemptState::CleaningUp { .. })
            && !mutant!(CancelUntold);
        if told {
            let granted_ms = live.timers.left_ms(&TimerKey::Lease, now).unwrap_or(0);
            record_cancel_delivered(live, turn.now.wall);
            return (granted_ms, told);
        }
        let granted_ms = live.spec.lease_ttl_ms;
        live.renew_lease(now + granted_ms, &self.config, now);
        (granted_ms, told)
    }

    fn apply_agent_frame(
        &mut self,
        live: &mut LiveTask,
        mut body: FrameBody,
        turn: &mut CoreTurn<'_>,
    ) -> Result<AgentCallAnswer, Rejection> {
        size_limits::clip_body(&mut body);
        let event = frame_event(body, &live.spec, turn.now.wall).ok_or(Rejection::WrongOrder)?;
        match self.apply_event(live, event, None, turn) {
            EventOutcome::Applied => Ok(AgentCallAnswer::Task),
            EventOutcome::Refused(Rejection::ContractUnmet) => {
                record_unmet_contract(live);
                Err(Rejection::ContractUnmet)
            }
            EventOutcome::Refused(code) => Err(code),
            EventOutcome::Ignored | EventOutcome::Regressed | EventOutcome::Late => {
                Err(Rejection::WrongOrder)
            }
        }
    }
}

impl AgentCallAnswer {
    fn checkpoint_number(&self) -> Option<u64> {
        match self {
            AgentCallAnswer::Goal(said) => said.checkpoint.as_ref().map(|written| written.number),
            AgentCallAnswer::Task
            | AgentCallAnswer::Renewed { .. }
            | AgentCallAnswer::Repeated(_) => None,
        }
    }
}

/// Exists and owned, then proof. Another agent's attempt looks like none.
fn check_holder(
    live: &LiveTask,
    call: &AgentLeaseCall,
    incarnation: Incarnation,
) -> Result<AgentCallCheck, Rejection> {
    let attempts = &live.record().attempts;
    let index = attempts.iter().position(|known| known.id == call.attempt);
    let index = index.ok_or(Rejection::UnknownAttempt)?;
    let held = attempts[index].agent_holder();
    let own = held.filter(|held| held.token == call.agent.token || mutant!(StolenLeaseTaken));
    let holder = own.ok_or(Rejection::UnknownAttempt)?;
    if holder.incarnation != incarnation && !mutant!(IncarnationIgnored) {
        return Err(Rejection::StaleIncarnation);
    }
    let leased = attempts[index].lease.is_some();
    if leased && !matches_token(&attempts[index], &call.proof) && !mutant!(AgentTokenIgnored) {
        return Err(Rejection::BadProof);
    }
    if let Some(heard) = repeated_call::find_answered_call(holder, call.fingerprint.as_ref())? {
        return Ok(AgentCallCheck::AlreadyAnswered(heard.clone()));
    }
    if !leased {
        // It was parked, and nothing of its lease is kept.
        return Err(Rejection::NotLeased);
    }
    Ok(AgentCallCheck::New(index))
}

pub(crate) fn is_lease_over(live: &LiveTask, now: MonotonicTime) -> bool {
    live.lease_ends_at().is_none_or(|ends| ends <= now) && !mutant!(ExpiredAgentHeard)
}

/// Why a call comes too late: the same word whether the clock or the sweep was quicker.
fn not_leased_reason(attempt: &AttemptRecord, state: TaskState) -> Rejection {
    let end = attempt.state.end();
    if end.is_some_and(|end| end.failure_code == Some(FailureCode::LeaseExpired)) {
        Rejection::LeaseExpired
    } else if state.is_terminal() {
        Rejection::TaskTerminal
    } else {
        Rejection::NotLeased
    }
}

/// Whether this very call has done its work before: its answer was lost, and it is asked again.
fn was_already_done(attempt: &AttemptRecord, verb: &AgentLeaseVerb) -> bool {
    let Some(end) = attempt.state.end() else {
        return false;
    };
    match verb {
        AgentLeaseVerb::Renew | AgentLeaseVerb::Goal(_) => false,
        AgentLeaseVerb::Complete(CompletedBody { result, .. }, _) => {
            end.state == EndState::Completed
                && end.ended_by == EndedBy::Agent
                && attempt.result == *result
        }
        AgentLeaseVerb::Release { .. } => {
            end.state == EndState::Released && end.ended_by == EndedBy::Agent
        }
        AgentLeaseVerb::Fail(errored) => {
            end.ended_by == EndedBy::Agent && end.failure_code.as_ref() == Some(&errored.code)
        }
        AgentLeaseVerb::Cancel { .. } => end.state == EndState::Canceled,
    }
}

/// The holder's own word that it has stopped: it is the one who works, so nothing else could prove it.
fn stopped_termination() -> ProcessTermination {
    ProcessTermination {
        group_empty: true,
        ..ProcessTermination::default()
    }
}

fn begin_holder_cancel(
    live: &mut LiveTask,
    by: &Arc<str>,
    reason: Option<Arc<str>>,
    turn: &CoreTurn<'_>,
) {
    let attempt = Some(live.newest_attempt().id);
    live.record_mut().cancel = Some(CancelRecord {
        by: Arc::clone(by),
        operator: false,
        reason: reason.clone(),
        attempt,
        requested: turn.now.wall,
        delivered: Some(turn.now.wall),
        confirmed: None,
    });
    live.add_event(TimelineEventKind::CancelRequested, reason);
}
