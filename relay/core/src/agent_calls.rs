//! What an agent says about a lease that it holds itself. The same rules as for a daemon's frames, without a stream.
//!
//! Order of the checks: the attempt exists and is this credential's, in this life of the data; the token proves it; it is
//! leased; the lease has not expired (at its limit it has); the verb's own rule. The first that fails names the code, and
//! nothing is written. The shape was checked before anything was looked up. A call that was obeyed before (`repeats.rs`) is
//! answered behind the proof: whatever has become of the lease since, it did its work.

use std::sync::Arc;

use crate::attempt::{Event, Outcome};
use crate::bounds;
use crate::core::{Core, Turn};
use crate::effects::{After, Reply};
use crate::frame::{event_of, note_delivered, note_unmet, proves};
use crate::goal::GoalWord;
use crate::handoff::{Park, Said, add_progress, progressed};
use crate::id::Incarnation;
use crate::input::{CanceledBody, Completed, Finished, FrameBody, HeldCall, HeldVerb, Termination};
use crate::live::{Live, wall_of};
use crate::record::{
    AttemptRecord, CancelRecord, EndState, EndedBy, EventKind, FailureCode, HeardCall, State,
    TaskState,
};
use crate::reject::Rejection;
use crate::repeats;
use crate::time::Moment;
use crate::timers::{TimerKey, TimerSet};

/// What an accepted call is answered with, once its task is put back.
enum Answer {
    Task,
    Said(Said),
    Renewed {
        granted_ms: u64,
        told: bool,
    },
    /// With the number of the checkpoint that it wrote then.
    Repeated(Option<u64>),
}

/// A call of the attempt's holder, proved.
enum Standing {
    /// Of the attempt at this place.
    New(usize),
    Heard(HeardCall),
}

impl Core {
    pub(crate) fn held_call(&mut self, mut call: HeldCall, turn: &mut Turn<'_>) {
        if let Some(live) = self.take(&call.agent.tenant, call.task) {
            return self.live_call(live, call, turn);
        }
        let tenant = &call.agent.tenant;
        let finished = call.finished.take();
        let own = finished.filter(|finished| finished.record.tenant == *tenant);
        match own.map(|finished| self.finished_call(finished, &call)) {
            Some(Ok(reply)) => turn.reply(call.request, After::Task(call.task), reply),
            Some(Err(code)) => turn.refuse(call.request, code),
            None => turn.refuse(call.request, Rejection::UnknownTask),
        }
    }

    fn live_call(&mut self, mut live: Box<Live>, call: HeldCall, turn: &mut Turn<'_>) {
        let (request, task) = (call.request, call.task);
        let answer = self.judge_call(&mut live, call, turn);
        let record = self.keep(live, turn);
        match answer {
            Ok(Answer::Task) => turn.reply(request, After::Task(task), Reply::Task(record)),
            Ok(Answer::Repeated(checkpoint)) => {
                let reply = Reply::Repeated { record, checkpoint };
                turn.reply(request, After::Task(task), reply);
            }
            Ok(Answer::Said(said)) => {
                let reply = match said.checkpoint {
                    Some(checkpoint) => Reply::Checkpointed { record, checkpoint },
                    None => progressed(record, said.progress),
                };
                turn.reply(request, After::Task(task), reply);
            }
            Ok(Answer::Renewed { granted_ms, told }) => {
                let reply = Reply::Renewed {
                    granted_ms,
                    expires_at: wall_of(turn.now.at + granted_ms, turn.now),
                    cancel_requested: told,
                };
                // A cancel must not be known before it is durable; a renewal waits for no disk.
                let after = if told {
                    After::Task(task)
                } else {
                    After::Nothing
                };
                turn.reply(request, after, reply);
            }
            Err(code) => turn.refuse(request, code),
        }
    }

    /// The task is over. Only a call that did its work then is answered as it was.
    fn finished_call(&self, finished: Finished, call: &HeldCall) -> Result<Reply, Rejection> {
        let Finished { record, spec } = finished;
        let live = Live::new(spec, Arc::clone(&record), TimerSet::default());
        let index = match check_holder(&live, call, self.config.incarnation)? {
            Standing::New(index) => index,
            Standing::Heard(HeardCall { checkpoint, .. }) => {
                return Ok(Reply::Repeated { record, checkpoint });
            }
        };
        let attempt = &record.attempts[index];
        if did_so(attempt, &call.verb) {
            return Ok(Reply::Task(record));
        }
        Err(not_leased(attempt, record.state))
    }

    fn judge_call(
        &mut self,
        live: &mut Live,
        mut call: HeldCall,
        turn: &mut Turn<'_>,
    ) -> Result<Answer, Rejection> {
        let index = match check_holder(live, &call, self.config.incarnation)? {
            Standing::New(index) => index,
            Standing::Heard(heard) => return Ok(Answer::Repeated(heard.checkpoint)),
        };
        let named = live.newest().id == call.attempt || mutant!(AgentUnfenced);
        let current = named && live.is_newest_leased();
        if current && is_over(live, turn.now.at) {
            // The call lost the race against the clock; the sweep would say the same a moment later.
            self.apply(live, Event::Expired(TimerKey::Lease), None, turn);
            return Err(Rejection::LeaseExpired);
        }
        if !current {
            let attempt = &live.record().attempts[index];
            if did_so(attempt, &call.verb) {
                return Ok(Answer::Task);
            }
            return Err(not_leased(attempt, live.record().state));
        }
        let (attempt, mark) = (call.attempt, call.mark.take());
        let answer = self.obey(live, call, turn)?;
        if let Some(mark) = mark {
            let checkpoint = answer.checkpoint();
            repeats::remember(live, attempt, HeardCall { mark, checkpoint });
        }
        Ok(answer)
    }

    /// The verb's own rule, and what follows from it.
    fn obey(
        &mut self,
        live: &mut Live,
        call: HeldCall,
        turn: &mut Turn<'_>,
    ) -> Result<Answer, Rejection> {
        match call.verb {
            HeldVerb::Renew => {
                let (granted_ms, told) = self.renew_held(live, turn);
                Ok(Answer::Renewed { granted_ms, told })
            }
            HeldVerb::Complete(..) if live.record().cancel.is_some() => {
                Err(Rejection::BeingCanceled)
            }
            HeldVerb::Complete(mut completed, last_words) => {
                completed.termination = stopped();
                let answer = self.say_held(live, FrameBody::Completed(completed), turn)?;
                if let Some(update) = last_words {
                    // The result counts, whatever became of the words.
                    let _added = add_progress(live, update.into_parts().0, call.known, turn);
                }
                Ok(answer)
            }
            HeldVerb::Goal(GoalWord::Block(block)) => {
                let park = Park {
                    termination: Some(stopped()),
                    ..Park::of_block(block, Arc::clone(&call.agent.name), None)
                };
                self.park(live, park, call.known, turn).map(Answer::Said)
            }
            HeldVerb::Goal(word) => {
                let said = self.holder_says(live, word, call.known, None, turn)?;
                Ok(Answer::Said(said))
            }
            HeldVerb::Fail(mut errored) => {
                errored.termination = stopped();
                self.say_held(live, FrameBody::Errored(errored), turn)
            }
            HeldVerb::Release { reason } => {
                let termination = stopped();
                let released = FrameBody::Released {
                    reason,
                    termination,
                };
                self.say_held(live, released, turn)
            }
            HeldVerb::Cancel { reason } => {
                if live.record().cancel.is_none() {
                    begin_cancel(live, &call.agent.name, reason.clone(), turn);
                }
                let canceled = FrameBody::Canceled(CanceledBody {
                    reason,
                    termination: stopped(),
                    in_lease: true,
                    ..CanceledBody::default()
                });
                self.say_held(live, canceled, turn)
            }
        }
    }

    /// What is granted, and whether a cancel waits. A lease that is to be given up is not renewed, or whoever asked for the
    /// cancel might wait for ever.
    pub(crate) fn renew_held(&self, live: &mut Live, turn: &Turn<'_>) -> (u64, bool) {
        let now = turn.now.at;
        let told =
            matches!(live.newest().state, State::CleaningUp { .. }) && !mutant!(CancelUntold);
        if told {
            let granted_ms = live.timers.left_ms(&TimerKey::Lease, now).unwrap_or(0);
            note_delivered(live, turn.now.wall);
            return (granted_ms, told);
        }
        let granted_ms = live.spec.lease_ttl_ms;
        live.renew(now + granted_ms, &self.config, now);
        (granted_ms, told)
    }

    fn say_held(
        &mut self,
        live: &mut Live,
        mut body: FrameBody,
        turn: &mut Turn<'_>,
    ) -> Result<Answer, Rejection> {
        bounds::clip_body(&mut body);
        let event = event_of(body, &live.spec, turn.now.wall).ok_or(Rejection::WrongOrder)?;
        match self.apply(live, event, None, turn) {
            Outcome::Applied => Ok(Answer::Task),
            Outcome::Refused(Rejection::ContractUnmet) => {
                note_unmet(live);
                Err(Rejection::ContractUnmet)
            }
            Outcome::Refused(code) => Err(code),
            Outcome::Ignored | Outcome::Regressed | Outcome::Late => Err(Rejection::WrongOrder),
        }
    }
}

impl Answer {
    fn checkpoint(&self) -> Option<u64> {
        match self {
            Answer::Said(said) => said.checkpoint.as_ref().map(|written| written.number),
            Answer::Task | Answer::Renewed { .. } | Answer::Repeated(_) => None,
        }
    }
}

/// Exists and owned, then proof. Another agent's attempt looks like none.
fn check_holder(
    live: &Live,
    call: &HeldCall,
    incarnation: Incarnation,
) -> Result<Standing, Rejection> {
    let attempts = &live.record().attempts;
    let index = attempts.iter().position(|known| known.id == call.attempt);
    let index = index.ok_or(Rejection::UnknownAttempt)?;
    let held = attempts[index].agent();
    let own = held.filter(|held| held.token == call.agent.token || mutant!(StolenLeaseTaken));
    let holder = own.ok_or(Rejection::UnknownAttempt)?;
    if holder.incarnation != incarnation && !mutant!(IncarnationIgnored) {
        return Err(Rejection::StaleIncarnation);
    }
    let leased = attempts[index].lease.is_some();
    if leased && !proves(&attempts[index], &call.proof) && !mutant!(AgentTokenIgnored) {
        return Err(Rejection::BadProof);
    }
    if let Some(heard) = repeats::heard(holder, call.mark.as_ref())? {
        return Ok(Standing::Heard(heard.clone()));
    }
    if !leased {
        // It was parked, and nothing of its lease is kept.
        return Err(Rejection::NotLeased);
    }
    Ok(Standing::New(index))
}

pub(crate) fn is_over(live: &Live, now: Moment) -> bool {
    live.lease_ends().is_none_or(|ends| ends <= now) && !mutant!(ExpiredAgentHeard)
}

/// Why a call comes too late: the same word whether the clock or the sweep was quicker.
fn not_leased(attempt: &AttemptRecord, state: TaskState) -> Rejection {
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
fn did_so(attempt: &AttemptRecord, verb: &HeldVerb) -> bool {
    let Some(end) = attempt.state.end() else {
        return false;
    };
    match verb {
        HeldVerb::Renew | HeldVerb::Goal(_) => false,
        HeldVerb::Complete(Completed { result, .. }, _) => {
            end.state == EndState::Completed
                && end.by == EndedBy::Agent
                && attempt.result == *result
        }
        HeldVerb::Release { .. } => end.state == EndState::Released && end.by == EndedBy::Agent,
        HeldVerb::Fail(errored) => {
            end.by == EndedBy::Agent && end.failure_code.as_ref() == Some(&errored.code)
        }
        HeldVerb::Cancel { .. } => end.state == EndState::Canceled,
    }
}

/// The holder's own word that it has stopped: it is the one who works, so nothing else could prove it.
fn stopped() -> Termination {
    Termination {
        group_empty: true,
        ..Termination::default()
    }
}

fn begin_cancel(live: &mut Live, by: &Arc<str>, reason: Option<Arc<str>>, turn: &Turn<'_>) {
    let attempt = Some(live.newest().id);
    live.record_mut().cancel = Some(CancelRecord {
        by: Arc::clone(by),
        operator: false,
        reason: reason.clone(),
        attempt,
        requested: turn.now.wall,
        delivered: Some(turn.now.wall),
        confirmed: None,
    });
    live.note(EventKind::CancelRequested, reason);
}
