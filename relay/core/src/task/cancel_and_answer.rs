//! What people ask of a task: cancel, answer. Each is one write and one reply, and safe to ask twice. What operators do
//! is in `force.rs`.

use std::sync::Arc;

use crate::attempt::lease_end::confirm_cancel;
use crate::attempt::machine::{EventOutcome, MachineEvent};
use crate::core_state::{Core, CoreTurn};
use crate::ids::{InputId, RequestId, TaskId, TenantId};
use crate::io::command::{FinishedTask, RequestActor};
use crate::io::effects::{CommitDependency, CoreReply, DaemonMessage};
use crate::io::rejection::Rejection;
use crate::record::{
    AttemptRecord, AttemptState, CancelRecord, InputRecord, InputState, StoredAnswer,
    TerminationReceipt, TimelineEventKind,
};
use crate::task::live_task::LiveTask;
use crate::task::size_limits;

impl Core {
    /// Requested here; delivered and confirmed are the holder's words. A finished task answers unchanged.
    #[expect(
        clippy::too_many_arguments,
        reason = "the request's own fields, unpacked once"
    )]
    pub(crate) fn cancel_task(
        &mut self,
        request: RequestId,
        tenant: &TenantId,
        task: TaskId,
        by: RequestActor,
        reason: Option<Arc<str>>,
        finished: Option<FinishedTask>,
        turn: &mut CoreTurn<'_>,
    ) {
        let Some(mut live) = self.take_task(tenant, task) else {
            return match finished.filter(|finished| finished.record.tenant == *tenant) {
                Some(finished) => {
                    let reply = CoreReply::Finished(finished.record);
                    turn.reply(request, CommitDependency::Task(task), reply);
                }
                None => turn.refuse(request, Rejection::UnknownTask),
            };
        };
        if live.record().cancel.is_none() {
            self.begin_cancel(&mut live, by, reason, turn);
        }
        self.put_back_and_reply(live, request, turn);
    }

    fn begin_cancel(
        &mut self,
        live: &mut LiveTask,
        by: RequestActor,
        reason: Option<Arc<str>>,
        turn: &mut CoreTurn<'_>,
    ) {
        let operator = by.operator;
        // Also one that has ended: it may still run, and its receipt confirms the cancel.
        let attempt = Some(live.newest_attempt().id);
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
        live.add_event(TimelineEventKind::CancelRequested, reason);
        let replaces = matches!(
            live.newest_attempt().state,
            AttemptState::CleaningUp { pending: Some(_) }
        );
        self.queue.remove(live.id());
        self.apply_event(live, MachineEvent::CancelAsked { operator }, None, turn);
        if replaces {
            // It is being ended for another reason already; the holder learns that a person wants it, too.
            self.send_cancel(live, turn);
        }
        let dead = self
            .fences
            .check_lease(live.id(), None, turn.now.monotonic)
            .is_ok();
        if dead && !live.is_newest_leased() {
            confirm_cancel(live, TerminationReceipt::NotNeeded, turn.now.wall);
        }
    }

    fn put_back_and_reply(
        &mut self,
        live: Box<LiveTask>,
        request: RequestId,
        turn: &mut CoreTurn<'_>,
    ) {
        let task = live.id();
        let record = self.put_back_task(live, turn);
        turn.reply(
            request,
            CommitDependency::Task(task),
            CoreReply::Task(record),
        );
    }

    /// Stored once, then sent until the daemon says that it has it.
    pub(crate) fn answer_input(
        &mut self,
        request: RequestId,
        tenant: &TenantId,
        task: TaskId,
        (input, answer): (InputId, StoredAnswer),
        finished: Option<FinishedTask>,
        turn: &mut CoreTurn<'_>,
    ) {
        let Some(mut live) = self.take_task(tenant, task) else {
            let known = finished.filter(|finished| finished.record.tenant == *tenant);
            return match known.map(|finished| finished.record) {
                Some(record) => match check_given_answer(&record.attempts, input, &answer) {
                    Ok(()) => turn.reply(
                        request,
                        CommitDependency::Task(task),
                        CoreReply::Task(record),
                    ),
                    Err(code) => turn.refuse(request, code),
                },
                None => turn.refuse(request, Rejection::UnknownTask),
            };
        };
        let newest = &live.newest_attempt().inputs;
        if !newest.iter().any(|known| known.id == input) || !live.is_newest_leased() {
            // An input of an earlier attempt is history: it must never reach the next one.
            let said = check_given_answer(&live.record().attempts, input, &answer);
            return match said {
                Ok(()) => self.put_back_and_reply(live, request, turn),
                Err(code) => {
                    self.put_back_task(live, turn);
                    turn.refuse(request, code);
                }
            };
        }
        match self.apply_event(&mut live, MachineEvent::Answered(input, answer), None, turn) {
            EventOutcome::Applied => {
                self.send_answer(&live, input, turn);
                self.put_back_and_reply(live, request, turn);
            }
            EventOutcome::Ignored => self.put_back_and_reply(live, request, turn),
            EventOutcome::Refused(code) => {
                self.put_back_task(live, turn);
                turn.refuse(request, code);
            }
            EventOutcome::Regressed | EventOutcome::Late => {
                self.put_back_task(live, turn);
                turn.refuse(request, Rejection::InputClosed);
            }
        }
    }

    pub(crate) fn send_answer(&self, live: &LiveTask, input: InputId, turn: &mut CoreTurn<'_>) {
        let Some(session) = self.session_of(live) else {
            return;
        };
        let Some(input) = live
            .newest_attempt()
            .inputs
            .iter()
            .find(|known| known.id == input)
        else {
            return;
        };
        if let InputState::Answered(answer) = &input.state {
            turn.send_to_session(
                CommitDependency::Task(live.id()),
                session,
                self.answer_message(live, input, answer),
            );
        }
    }

    pub(crate) fn answer_message(
        &self,
        live: &LiveTask,
        input: &InputRecord,
        answer: &StoredAnswer,
    ) -> DaemonMessage {
        DaemonMessage::Answer {
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
fn check_given_answer(
    attempts: &[AttemptRecord],
    input: InputId,
    answer: &StoredAnswer,
) -> Result<(), Rejection> {
    let mut inputs = attempts.iter().rev().flat_map(|attempt| &attempt.inputs);
    let asked = inputs.find(|asked| asked.id == input);
    let asked = asked.ok_or(Rejection::UnknownInput)?;
    match asked.state.answer() {
        Some(given) if size_limits::is_same_answer(given, answer) => Ok(()),
        Some(_) => Err(Rejection::AnswerConflict),
        None => Err(Rejection::InputClosed),
    }
}
