//! Work that outlives its attempt: progress and checkpoints, the park that waits for a person, and the word that sends it
//! on.
//!
//! Who says it does not matter: a daemon's frame, an agent's call and a person's request end in the same functions, each
//! after its own checks. A park is one write: checkpoint, parked attempt, attention; the lease is gone with it. Sending it
//! on is one write, too: the parked attempt ends as handed off and its successor waits in the queue, so it is never
//! offered twice.

use std::sync::Arc;

use crate::attempt::machine::{EventOutcome, MachineEvent};
use crate::core_state::{Core, CoreTurn};
use crate::goal::progress::{
    BlockDraft, CheckpointDraft, GoalReport, MAX_CHECKPOINTS, ProgressUpdate, SanitizedText,
};
use crate::ids::{AttemptId, CheckpointId, RequestId, TaskId, TenantId};
use crate::io::command::{FinishedTask, OutputSignal, ProcessTermination, RequestActor};
use crate::io::effects::{CommitDependency, CoreReply, RecordChange};
use crate::io::rejection::Rejection;
use crate::io::stored_lookup::{StoredLookup, UnreadableRecord};
use crate::record::{
    AttemptRecord, AttemptState, CheckpointKind, CheckpointRecord, ParkCause, ProgressRecord,
    ResumeInstructions, TaskAttention, TaskRecord, TimelineEventKind,
};
use crate::task::live_task::LiveTask;
use crate::task::size_limits;

/// What is stored of a task's progress; none before the first word of it. Where it cannot be read nothing is written over it:
/// progress is refused, and milestones and blocks, which nobody could say again, leave it as it is.
pub(crate) type StoredProgress = StoredLookup<Arc<ProgressRecord>>;

/// What became of such a word.
#[derive(Clone, Debug)]
pub(crate) struct GoalOutcome {
    /// None where it cannot be read.
    pub(crate) progress: Option<Arc<ProgressRecord>>,
    pub(crate) checkpoint: Option<Arc<CheckpointRecord>>,
}

/// How an attempt is parked: by a block, or because its result was not whole.
pub(crate) struct ParkRequest {
    pub(crate) cause: ParkCause,
    pub(crate) reason: Arc<str>,
    /// What would help.
    pub(crate) hint: Option<Arc<str>>,
    /// Written in the same commit.
    pub(crate) checkpoint: Option<(CheckpointDraft, bool)>,
    pub(crate) by: Arc<str>,
    /// What the worker said of its processes, where it said so with the same word.
    pub(crate) termination: Option<ProcessTermination>,
    /// The number of the frame that asked for it, where one did.
    pub(crate) control_seq: Option<u64>,
}

impl Core {
    pub(crate) fn update_progress(
        &mut self,
        request: RequestId,
        (tenant, task): (&TenantId, TaskId),
        update: SanitizedText<ProgressUpdate>,
        known: StoredProgress,
        finished: Option<FinishedTask>,
        turn: &mut CoreTurn<'_>,
    ) {
        let Some(mut live) = self.take_task(tenant, task) else {
            if finished.is_some() && mutant!(FinishedProgresses) {
                let replaced = ProgressRecord::empty(tenant.clone(), task);
                turn.push_change(RecordChange::PutProgress(Arc::new(replaced)));
            }
            return turn.refuse(request, missing_task(tenant, finished));
        };
        let (update, _) = update.into_parts();
        let added = add_progress(&mut live, update, known, turn);
        let record = self.put_back_task(live, turn);
        match added {
            Ok(progress) => {
                let reply = CoreReply::Progressed { record, progress };
                turn.reply(request, CommitDependency::Task(task), reply);
            }
            Err(code) => turn.refuse(request, code),
        }
    }

    /// A person parks it. What is stored last of all is the record, so a crash before it leaves the task as it was.
    #[expect(
        clippy::too_many_arguments,
        reason = "the request's own fields, unpacked once"
    )]
    pub(crate) fn block_task(
        &mut self,
        request: RequestId,
        (tenant, task): (&TenantId, TaskId),
        by: RequestActor,
        block: SanitizedText<BlockDraft>,
        known: StoredProgress,
        finished: Option<FinishedTask>,
        turn: &mut CoreTurn<'_>,
    ) {
        let Some(mut live) = self.take_task(tenant, task) else {
            return turn.refuse(request, missing_task(tenant, finished));
        };
        let outcome = self.park_attempt(
            &mut live,
            ParkRequest::from_block(block, by.name, None),
            known,
            turn,
        );
        let record = self.put_back_task(live, turn);
        match outcome {
            Ok(GoalOutcome { progress, .. }) => {
                turn.reply(
                    request,
                    CommitDependency::Task(task),
                    progress_reply(record, progress),
                );
            }
            Err(code) => turn.refuse(request, code),
        }
    }

    /// Takes a word of whoever holds the newest attempt: a daemon by a numbered frame, an agent by a call. The caller has
    /// checked what comes before a body: shape, owner, proof, lease. Refused, it changes nothing.
    pub(crate) fn apply_goal_report(
        &mut self,
        live: &mut LiveTask,
        word: GoalReport,
        known: StoredProgress,
        control_seq: Option<u64>,
        turn: &mut CoreTurn<'_>,
    ) -> Result<GoalOutcome, Rejection> {
        if live.newest_attempt().state == AttemptState::Offered {
            return Err(Rejection::WrongOrder);
        }
        let by = holder_name(live);
        let said = match word {
            GoalReport::Progress(update) => GoalOutcome {
                progress: Some(add_progress(live, update.into_parts().0, known, turn)?),
                checkpoint: None,
            },
            GoalReport::Checkpoint(draft) => add_checkpoint(
                live,
                draft.into_parts(),
                CheckpointKind::Progress,
                by,
                known,
                turn,
            ),
            GoalReport::Block(block) => {
                let park = ParkRequest::from_block(block, by, control_seq);
                return self.park_attempt(live, park, known, turn);
            }
        };
        // It moves no state, but it is a sign of life.
        let sign_of_life = MachineEvent::Output {
            sign: OutputSignal::Event,
            tools: Vec::new(),
            end: live.newest_attempt().output_end,
        };
        self.apply_event(live, sign_of_life, None, turn);
        if let Some(seq) = control_seq {
            live.newest_attempt_mut().control_seq = seq;
        }
        Ok(said)
    }

    /// Parks the newest attempt, or the task where it waits for its next one. Refused, it changes nothing.
    pub(crate) fn park_attempt(
        &mut self,
        live: &mut LiveTask,
        park: ParkRequest,
        known: StoredProgress,
        turn: &mut CoreTurn<'_>,
    ) -> Result<GoalOutcome, Rejection> {
        check_park(live)?;
        let said = match park.checkpoint.filter(|_| !mutant!(BlockUnwritten)) {
            Some((mut draft, redacted)) => {
                let stood = known.as_ref().ok().and_then(Option::as_deref);
                fill_from_progress(&mut draft, stood, &park.reason);
                let (draft, kind) = ((draft, redacted), CheckpointKind::Blocked);
                add_checkpoint(live, draft, kind, park.by, known, turn)
            }
            None => GoalOutcome {
                progress: progress_or_empty(live, known).ok(),
                checkpoint: None,
            },
        };
        let cause = park.cause;
        if live.newest_attempt().state.end().is_none() {
            let termination = park.termination;
            let event = MachineEvent::Park { cause, termination };
            let outcome = self.apply_frame_event(live, event, None, park.control_seq, turn);
            debug_assert_eq!(outcome, EventOutcome::Applied, "check_park let it through");
            live.set_event_message(Some(Arc::clone(&park.reason)));
        } else {
            // It waits for its next attempt, and now for a person instead.
            live.retry_at = None;
            live.record_mut().retry = None;
            let parked = TimelineEventKind::Attention(cause.attention_cause());
            live.add_event(parked, Some(Arc::clone(&park.reason)));
        }
        live.record_mut().attention = Some(TaskAttention {
            cause: cause.attention_cause(),
            reason: park.reason,
            hint: park.hint,
            checkpoint: said.checkpoint.as_ref().map(|written| written.id),
            since: turn.now.wall,
        });
        Ok(said)
    }

    /// Sends a parked task on: attempt N+1, with what this person has to say.
    pub(crate) fn resume_task(
        &mut self,
        request: RequestId,
        (tenant, task): (&TenantId, TaskId),
        resume: Box<ResumeInstructions>,
        seen: Option<AttemptId>,
        finished: Option<FinishedTask>,
        turn: &mut CoreTurn<'_>,
    ) {
        let Some(mut live) = self.take_task(tenant, task) else {
            return turn.refuse(request, missing_task(tenant, finished));
        };
        let room = self
            .open_limits
            .check_room_for_resume(tenant, &resume, &self.config);
        let may = self.check_resume(&live, seen);
        if let Err(code) = may.and(room) {
            self.put_back_task(live, turn);
            return turn.refuse(request, code);
        }
        let by = Arc::clone(&resume.by);
        let reason = Arc::clone(&resume.reason);
        live.add_event(
            TimelineEventKind::Resumed {
                by: Arc::clone(&by),
            },
            Some(reason),
        );
        self.start_successor(&mut live, by, turn);
        if !mutant!(ResumeWordsLost) {
            live.newest_attempt_mut().resume = Some(resume);
        }
        let record = self.put_back_task(live, turn);
        turn.reply(
            request,
            CommitDependency::Task(task),
            CoreReply::Task(record),
        );
    }

    pub(crate) fn check_resume(
        &self,
        live: &LiveTask,
        seen: Option<AttemptId>,
    ) -> Result<(), Rejection> {
        let record = live.record();
        match seen.map(|seen| record.attempt(seen)) {
            Some(None) => return Err(Rejection::UnknownAttempt),
            Some(Some(seen)) if seen.id != live.newest_attempt().id && !mutant!(SentOnTwice) => {
                return Err(not_parked_reason(Some(seen)));
            }
            Some(Some(_)) | None => {}
        }
        if record.attention.is_none() && !mutant!(SentOnTwice) {
            return Err(not_parked_reason(record.attempts.iter().rev().nth(1)));
        }
        let many = record.attempts.len() >= size_limits::MAX_ATTEMPTS;
        if many || record.counters.dispatches >= self.config.max_dispatches {
            return Err(Rejection::DispatchLimit);
        }
        Ok(())
    }

    /// The parked attempt is handed off and its successor queued. What was spent stays spent.
    pub(crate) fn start_successor(
        &mut self,
        live: &mut LiveTask,
        to: Arc<str>,
        turn: &mut CoreTurn<'_>,
    ) {
        let record = live.record_mut();
        record.counters.daemons_lost.clear();
        record.counters.last_failure = None;
        record.retry_stop_reason = None;
        let successor = AttemptId(turn.id_source.new_id());
        if matches!(live.newest_attempt().state, AttemptState::Parked(_))
            && !mutant!(ParkedNotHandedOff)
        {
            self.apply_event(live, MachineEvent::HandOff { successor, to }, None, turn);
        } else if live.record().attention.is_some() {
            // It ended before its task waited for a person: the end stays, and who comes too late learns the same.
            live.newest_attempt_mut().handed_off_to = Some(to);
        }
        self.queue_attempt_as(successor, live, true, turn);
    }
}

impl ParkRequest {
    pub(crate) fn from_block(
        block: SanitizedText<BlockDraft>,
        by: Arc<str>,
        control_seq: Option<u64>,
    ) -> Self {
        let (block, redacted) = block.into_parts();
        let draft = block.checkpoint.unwrap_or_default();
        Self {
            cause: ParkCause::Blocked,
            reason: block.reason,
            hint: block.hint,
            checkpoint: Some((draft, redacted)),
            by,
            termination: None,
            control_seq,
        }
    }
}

/// A task that is not live is finished, or nobody's.
fn missing_task(tenant: &TenantId, finished: Option<FinishedTask>) -> Rejection {
    match finished.filter(|finished| finished.record.tenant == *tenant) {
        Some(_) => Rejection::AlreadyFinished,
        None => Rejection::UnknownTask,
    }
}

fn check_park(live: &LiveTask) -> Result<(), Rejection> {
    if live.record().cancel.is_some() {
        return Err(Rejection::BeingCanceled);
    }
    if live.record().attention.is_some() {
        return Err(Rejection::AlreadyParked);
    }
    match &live.newest_attempt().state {
        // An end is on its way already.
        AttemptState::CleaningUp { .. } => Err(Rejection::BeingEnded),
        AttemptState::Parked(_) => Err(Rejection::AlreadyParked),
        AttemptState::Queued
        | AttemptState::Offered
        | AttemptState::Accepted
        | AttemptState::Starting
        | AttemptState::Prompted
        | AttemptState::Streaming
        | AttemptState::ToolRunning
        | AttemptState::WaitingInput
        | AttemptState::Ended(_) => Ok(()),
    }
}

/// It does not wait there any more: somebody was quicker, or nobody was needed.
fn not_parked_reason(from: Option<&AttemptRecord>) -> Rejection {
    if from.is_some_and(|from| from.handed_off_to.is_some()) && !mutant!(LoserMisled) {
        Rejection::HandedOff
    } else {
        Rejection::NotParked
    }
}

pub(crate) fn holder_name(live: &LiveTask) -> Arc<str> {
    let holder = live.newest_attempt().holder.as_ref();
    holder.map_or_else(|| "".into(), |holder| Arc::clone(holder.name()))
}

fn progress_or_empty(
    live: &LiveTask,
    known: StoredProgress,
) -> Result<Arc<ProgressRecord>, Rejection> {
    let known = known.map_err(|UnreadableRecord| Rejection::Unreadable)?;
    let known = known.filter(|_| !mutant!(ProgressForgotten));
    let empty = || ProgressRecord::empty(live.spec.tenant.clone(), live.id());
    Ok(known.unwrap_or_else(|| Arc::new(empty())))
}

/// The task with its progress, where that can be read.
pub(crate) fn progress_reply(
    record: Arc<TaskRecord>,
    progress: Option<Arc<ProgressRecord>>,
) -> CoreReply {
    match progress {
        Some(progress) => CoreReply::Progressed { record, progress },
        None => CoreReply::Task(record),
    }
}

pub(crate) fn add_progress(
    live: &mut LiveTask,
    update: ProgressUpdate,
    known: StoredProgress,
    turn: &mut CoreTurn<'_>,
) -> Result<Arc<ProgressRecord>, Rejection> {
    let mut progress = progress_or_empty(live, known)?;
    Arc::make_mut(&mut progress).add_update(update, turn.now.wall);
    let message = Some(Arc::clone(&progress.summary)).filter(|summary| !summary.is_empty());
    turn.push_change(RecordChange::PutProgress(Arc::clone(&progress)));
    live.add_event(TimelineEventKind::Progress, message);
    Ok(progress)
}

/// A block says why it stops. Where the work stands is what was said of it before, unless the block says that as well: the
/// next attempt goes by the newest checkpoint alone.
fn fill_from_progress(draft: &mut CheckpointDraft, known: Option<&ProgressRecord>, why: &Arc<str>) {
    let is_told = |text: &&Arc<str>| !text.trim().is_empty();
    if !is_told(&&draft.summary) {
        let before = known.map(|known| &known.summary).filter(is_told);
        draft.summary = Arc::clone(before.unwrap_or(why));
    }
    if let Some(before) = known.map(|known| &known.cursor)
        && !is_told(&&draft.cursor)
    {
        draft.cursor = Arc::clone(before);
    }
}

/// Writes the next checkpoint, pushes the oldest out, and brings the progress up to it.
fn add_checkpoint(
    live: &mut LiveTask,
    (draft, redacted): (CheckpointDraft, bool),
    kind: CheckpointKind,
    by: Arc<str>,
    known: StoredProgress,
    turn: &mut CoreTurn<'_>,
) -> GoalOutcome {
    let mut progress = progress_or_empty(live, known).ok();
    if let Some(progress) = &mut progress {
        Arc::make_mut(progress).add_update(draft.as_progress(), turn.now.wall);
    }
    let count = |of: fn(&ProgressRecord) -> u64| progress.as_deref().map_or(0, of);
    let (newest, record) = (live.newest_attempt(), live.record());
    let checkpoint = Arc::new(CheckpointRecord {
        id: CheckpointId(turn.id_source.new_id()),
        tenant: live.spec.tenant.clone(),
        task: live.id(),
        number: record.checkpoint_count + u64::from(!mutant!(CheckpointNumberReused)),
        attempt: newest.id,
        attempt_number: newest.number,
        kind,
        completed_count: count(ProgressRecord::completed_count),
        failed_count: count(ProgressRecord::failed_count),
        after_revision: record.checkpointed_revision,
        to_revision: record.revision,
        agent_session_id: draft
            .agent_session_id
            .or_else(|| newest.agent_session_id.clone()),
        summary: draft.summary,
        cursor: draft.cursor,
        evidence: draft.evidence,
        state_refs: draft.state_refs,
        redacted,
        created: turn.now.wall,
        by,
    });
    if let Some(progress) = &progress {
        turn.push_change(RecordChange::PutProgress(Arc::clone(progress)));
    }
    store_checkpoint(live, &checkpoint, turn);
    GoalOutcome {
        progress,
        checkpoint: Some(checkpoint),
    }
}

fn store_checkpoint(
    live: &mut LiveTask,
    checkpoint: &Arc<CheckpointRecord>,
    turn: &mut CoreTurn<'_>,
) {
    turn.push_change(RecordChange::PutCheckpoint(Arc::clone(checkpoint)));
    let pushed_out = checkpoint.number.checked_sub(MAX_CHECKPOINTS);
    if let Some(number) = pushed_out.filter(|number| *number > 0) {
        turn.push_change(RecordChange::DropCheckpoint {
            tenant: live.spec.tenant.clone(),
            task: live.id(),
            number,
        });
    }
    let record = live.record_mut();
    record.checkpoint_count = checkpoint.number;
    record.checkpointed_revision = checkpoint.to_revision;
    let (id, message) = (checkpoint.id, Arc::clone(&checkpoint.summary));
    live.add_event(TimelineEventKind::Checkpoint { id }, Some(message));
}
