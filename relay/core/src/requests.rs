//! What people ask of a task: cancel, answer. Each is one write and one reply, and safe to ask twice. What operators do
//! is in `force.rs`.

use std::sync::Arc;

use crate::attempt::{Event, Outcome};
use crate::bounds;
use crate::core::{Core, Turn};
use crate::effects::{After, Downstream, Reply};
use crate::ends::confirm_cancel;
use crate::id::{InputId, RequestId, TaskId, TenantId};
use crate::input::{Actor, Finished};
use crate::live::Live;
use crate::record::{
    Answer, AttemptRecord, CancelRecord, EventKind, InputRecord, InputState, Receipt, State,
};
use crate::reject::Rejection;

impl Core {
    /// Requested here; delivered and confirmed are the holder's words. A finished task answers unchanged.
    #[expect(
        clippy::too_many_arguments,
        reason = "the request's own fields, unpacked once"
    )]
    pub(crate) fn cancel(
        &mut self,
        request: RequestId,
        tenant: &TenantId,
        task: TaskId,
        by: Actor,
        reason: Option<Arc<str>>,
        finished: Option<Finished>,
        turn: &mut Turn<'_>,
    ) {
        let Some(mut live) = self.take(tenant, task) else {
            return match finished.filter(|finished| finished.record.tenant == *tenant) {
                Some(finished) => {
                    let reply = Reply::Finished(finished.record);
                    turn.reply(request, After::Task(task), reply);
                }
                None => turn.refuse(request, Rejection::UnknownTask),
            };
        };
        if live.record().cancel.is_none() {
            self.begin_cancel(&mut live, by, reason, turn);
        }
        self.keep_and_reply(live, request, turn);
    }

    fn begin_cancel(
        &mut self,
        live: &mut Live,
        by: Actor,
        reason: Option<Arc<str>>,
        turn: &mut Turn<'_>,
    ) {
        let operator = by.operator;
        // Also one that has ended: it may still run, and its receipt confirms the cancel.
        let attempt = Some(live.newest().id);
        let record = live.record_mut();
        record.cancel = Some(CancelRecord {
            by: by.name,
            operator,
            reason: reason.clone(),
            attempt,
            requested: turn.now.wall,
            delivered: None,
            confirmed: None,
        });
        (record.retry, record.attention) = (None, None);
        live.retry_at = None;
        live.note(EventKind::CancelRequested, reason);
        let replaces = matches!(live.newest().state, State::CleaningUp { pending: Some(_) });
        self.queue.remove(live.id());
        self.apply(live, Event::CancelAsked { operator }, None, turn);
        if replaces {
            // It is being ended for another reason already; the holder learns that a person wants it, too.
            self.tell_cancel(live, turn);
        }
        let dead = self.fences.may_lease(live.id(), None, turn.now.at).is_ok();
        if dead && !live.is_newest_leased() {
            confirm_cancel(live, Receipt::NotNeeded, turn.now.wall);
        }
    }

    fn keep_and_reply(&mut self, live: Box<Live>, request: RequestId, turn: &mut Turn<'_>) {
        let task = live.id();
        let record = self.keep(live, turn);
        turn.reply(request, After::Task(task), Reply::Task(record));
    }

    /// Stored once, then sent until the daemon says that it has it.
    pub(crate) fn answer(
        &mut self,
        request: RequestId,
        tenant: &TenantId,
        task: TaskId,
        (input, answer): (InputId, Answer),
        finished: Option<Finished>,
        turn: &mut Turn<'_>,
    ) {
        let Some(mut live) = self.take(tenant, task) else {
            let known = finished.filter(|finished| finished.record.tenant == *tenant);
            return match known.map(|finished| finished.record) {
                Some(record) => match said_before(&record.attempts, input, &answer) {
                    Ok(()) => turn.reply(request, After::Task(task), Reply::Task(record)),
                    Err(code) => turn.refuse(request, code),
                },
                None => turn.refuse(request, Rejection::UnknownTask),
            };
        };
        let newest = &live.newest().inputs;
        if !newest.iter().any(|known| known.id == input) || !live.is_newest_leased() {
            // An input of an earlier attempt is history: it must never reach the next one.
            let said = said_before(&live.record().attempts, input, &answer);
            return match said {
                Ok(()) => self.keep_and_reply(live, request, turn),
                Err(code) => {
                    self.keep(live, turn);
                    turn.refuse(request, code);
                }
            };
        }
        match self.apply(&mut live, Event::Answered(input, answer), None, turn) {
            Outcome::Applied => {
                self.send_answer(&live, input, turn);
                self.keep_and_reply(live, request, turn);
            }
            Outcome::Ignored => self.keep_and_reply(live, request, turn),
            Outcome::Refused(code) => {
                self.keep(live, turn);
                turn.refuse(request, code);
            }
            Outcome::Regressed | Outcome::Late => {
                self.keep(live, turn);
                turn.refuse(request, Rejection::InputClosed);
            }
        }
    }

    pub(crate) fn send_answer(&self, live: &Live, input: InputId, turn: &mut Turn<'_>) {
        let Some(session) = self.session_of(live) else {
            return;
        };
        let Some(input) = live.newest().inputs.iter().find(|known| known.id == input) else {
            return;
        };
        if let InputState::Answered(answer) = &input.state {
            turn.tell(
                After::Task(live.id()),
                session,
                self.answer_message(live, input, answer),
            );
        }
    }

    pub(crate) fn answer_message(
        &self,
        live: &Live,
        input: &InputRecord,
        answer: &Answer,
    ) -> Downstream {
        Downstream::Answer {
            to: self.attempt_ref(live),
            input: input.id,
            kind: input.kind,
            decision: answer.decision,
            payload: Arc::clone(&answer.payload),
            by: Arc::clone(&answer.by),
            digest: if mutant!(AnswerUnbound) {
                [0; 32]
            } else {
                input.digest
            },
        }
    }
}

/// An answer to what is over changes nothing: it is the one that was given, another one, or too late.
fn said_before(
    attempts: &[AttemptRecord],
    input: InputId,
    answer: &Answer,
) -> Result<(), Rejection> {
    let mut inputs = attempts.iter().rev().flat_map(|attempt| &attempt.inputs);
    let asked = inputs.find(|asked| asked.id == input);
    let asked = asked.ok_or(Rejection::UnknownInput)?;
    match asked.state.answer() {
        Some(given) if bounds::is_same(given, answer) => Ok(()),
        Some(_) => Err(Rejection::AnswerConflict),
        None => Err(Rejection::InputClosed),
    }
}
