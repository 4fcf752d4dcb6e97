//! Requests of people about one task: cancel and answer. Each is one write and one reply, and
//! can be repeated safely. Operator requests are in `operator/task_operation.rs`.

use std::sync::Arc;

use crate::attempt::attempt_owners::{AttemptOwners, holder_session};
use crate::attempt::lease_end::confirm_cancel;
use crate::attempt::machine::{EventOutcome, MachineEvent};
use crate::core_state::CoreOwners;
use crate::ids::{InputId, TaskId, TenantId};
use crate::io::command::{Command, CommandOutcome, CommandReply, RequestActor};
use crate::io::effects::{CommitDependency, DaemonMessage};
use crate::io::rejection::Rejection;
use crate::io::stored_lookup::{StoredNeeds, StoredRecords};
use crate::record::{
    AttemptRecord, AttemptState, CancelRecord, InputDecision, InputRecord, InputState,
    StoredAnswer, TaskRecord, TerminationReceipt, TimelineEventKind,
};
use crate::schedule::dispatch::attempt_ref;
use crate::task::live_task::LiveTask;
use crate::task::size_limits;
use crate::turn::CoreTurn;

/// Cancels a task. Idempotent: a task that is finished or already being canceled is returned
/// unchanged.
#[derive(Debug)]
pub struct CancelTask {
    pub tenant: TenantId,
    pub task: TaskId,
    pub by: RequestActor,
    pub reason: Option<Arc<str>>,
}

#[derive(Debug)]
pub struct CanceledTask {
    pub record: Arc<TaskRecord>,
    /// The task had ended before the request was decided and is unchanged. Only the core can
    /// decide this, because the task may have ended just before.
    pub already_finished: bool,
}

impl Command for CancelTask {
    type Reply = CanceledTask;

    fn stored_needs(&self) -> StoredNeeds {
        StoredNeeds::task(&self.tenant, self.task)
    }

    /// Records the request. The holder reports delivery and confirmation.
    fn run(
        self,
        core: &mut CoreOwners<'_>,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<CanceledTask> {
        let Some(mut live) = core.tasks.take(&self.tenant, self.task) else {
            let canceled = CanceledTask {
                record: finished_record(&self.tenant, stored)?,
                already_finished: true,
            };
            return Ok(CommandReply::after_task(self.task, canceled));
        };
        if live.record().cancel.is_none() {
            core.attempt()
                .begin_cancel(&mut live, self.by, self.reason, turn);
        }
        let canceled = CanceledTask {
            record: core.put_back_task(live, turn),
            already_finished: false,
        };
        Ok(CommandReply::after_task(self.task, canceled))
    }
}

/// Answers a permission request or a question of a live attempt. The answer is stored once,
/// then sent until the daemon confirms it.
#[derive(Debug)]
pub struct AnswerInput {
    pub tenant: TenantId,
    pub task: TaskId,
    pub input: InputId,
    pub by: RequestActor,
    pub decision: InputDecision,
    pub payload: Arc<[u8]>,
}

impl Command for AnswerInput {
    type Reply = Arc<TaskRecord>;

    fn stored_needs(&self) -> StoredNeeds {
        StoredNeeds::task(&self.tenant, self.task)
    }

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Arc<TaskRecord>> {
        let (task, input) = (self.task, self.input);
        let answer = StoredAnswer {
            by: self.by.name,
            at: turn.now.wall,
            decision: self.decision,
            rule: None,
            payload: self.payload,
        };
        let Some(mut live) = core.tasks.take(&self.tenant, task) else {
            let record = finished_record(&self.tenant, stored)?;
            check_given_answer(&record.attempts, input, &answer)?;
            return Ok(CommandReply::after_task(task, record));
        };
        let accepted = core.attempt().accept_answer(&mut live, input, answer, turn);
        let record = core.put_back_task(live, turn);
        accepted.map(|()| CommandReply::after_task(task, record))
    }
}

/// The record of a finished task of this tenant. A task that is not live is finished or belongs
/// to another tenant.
fn finished_record(tenant: &TenantId, stored: StoredRecords) -> Result<Arc<TaskRecord>, Rejection> {
    let finished = stored.finished.map(|finished| finished.record);
    let own = finished.filter(|record| record.tenant == *tenant);
    own.ok_or(Rejection::UnknownTask)
}

impl AttemptOwners<'_> {
    fn begin_cancel(
        &mut self,
        live: &mut LiveTask,
        by: RequestActor,
        reason: Option<Arc<str>>,
        turn: &mut CoreTurn<'_>,
    ) {
        let operator = by.operator;
        // The newest attempt is named even if it has ended: its processes may still run, and
        // their termination receipt confirms the cancel.
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
        let already_ending = matches!(
            live.newest_attempt().state,
            AttemptState::CleaningUp { pending: Some(_) }
        );
        self.schedule.dequeue(live.id());
        self.apply_event(live, MachineEvent::CancelAsked { operator }, None, turn);
        if already_ending {
            // It is already being ended for another reason. The holder is notified of the
            // cancel as well.
            self.send_cancel(live, turn);
        }
        let dead = self.schedule.is_unfenced(live.id(), turn.now.monotonic);
        if dead && !live.is_newest_leased() {
            confirm_cancel(live, TerminationReceipt::NotNeeded, turn.now.wall);
        }
    }

    fn accept_answer(
        &mut self,
        live: &mut LiveTask,
        input: InputId,
        answer: StoredAnswer,
        turn: &mut CoreTurn<'_>,
    ) -> Result<(), Rejection> {
        let newest = &live.newest_attempt().inputs;
        if !newest.iter().any(|known| known.id == input) || !live.is_newest_leased() {
            // An answer to an input of an earlier attempt must never reach the next one.
            return check_given_answer(&live.record().attempts, input, &answer);
        }
        match self.apply_event(live, MachineEvent::Answered(input, answer), None, turn) {
            EventOutcome::Applied => {
                self.send_answer(live, input, turn);
                Ok(())
            }
            EventOutcome::Ignored => Ok(()),
            EventOutcome::Refused(code) => Err(code),
            EventOutcome::Regressed | EventOutcome::Late => Err(Rejection::InputClosed),
        }
    }

    pub(crate) fn send_answer(&self, live: &LiveTask, input: InputId, turn: &mut CoreTurn<'_>) {
        let Some(session) = holder_session(self.roster, live) else {
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
                answer_message(live, input, answer),
            );
        }
    }
}

pub(crate) fn answer_message(
    live: &LiveTask,
    input: &InputRecord,
    answer: &StoredAnswer,
) -> DaemonMessage {
    DaemonMessage::Answer {
        to: attempt_ref(live),
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

/// Checks an answer to an input that is closed. It changes nothing: it equals the stored
/// answer, conflicts with it, or is too late.
fn check_given_answer(
    attempts: &[AttemptRecord],
    input: InputId,
    answer: &StoredAnswer,
) -> Result<(), Rejection> {
    let mut inputs = attempts.iter().rev().flat_map(|attempt| &attempt.inputs);
    let known = inputs.find(|known| known.id == input);
    let known = known.ok_or(Rejection::UnknownInput)?;
    match known.state.answer() {
        Some(given) if size_limits::is_same_answer(given, answer) => Ok(()),
        Some(_) => Err(Rejection::AnswerConflict),
        None => Err(Rejection::InputClosed),
    }
}
