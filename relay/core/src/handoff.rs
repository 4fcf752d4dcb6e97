//! Work that outlives its attempt: progress and checkpoints, the park that waits for a person, and the word that sends it
//! on.
//!
//! Who says it does not matter: a daemon's frame, an agent's call and a person's request end in the same functions, each
//! after its own checks. A park is one write: checkpoint, parked attempt, attention; the lease is gone with it. Sending it
//! on is one write, too: the parked attempt ends as handed off and its successor waits in the queue, so it is never
//! offered twice.

use std::sync::Arc;

use crate::attempt::{Event, Outcome};
use crate::bounds;
use crate::core::{Core, Turn};
use crate::effects::{After, Reply, Write};
use crate::finished::{Stored, Unreadable};
use crate::goal::{BlockDraft, CHECKPOINTS_KEPT, CheckpointDraft, Clean, GoalWord, ProgressUpdate};
use crate::id::{AttemptId, CheckpointId, RequestId, TaskId, TenantId};
use crate::input::{Actor, Finished, Sign, Termination};
use crate::live::Live;
use crate::record::{
    AttemptRecord, Attention, CheckpointKind, CheckpointRecord, EventKind, ParkCause,
    ProgressRecord, Resume, State, TaskRecord,
};
use crate::reject::Rejection;

/// What is stored of a task's progress; none before the first word of it. Where it cannot be read nothing is written over it:
/// progress is refused, and milestones and blocks, which nobody could say again, leave it as it is.
pub(crate) type Known = Stored<Arc<ProgressRecord>>;

/// What became of such a word.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    /// None where it cannot be read.
    pub(crate) progress: Option<Arc<ProgressRecord>>,
    pub(crate) checkpoint: Option<Arc<CheckpointRecord>>,
}

/// How an attempt is parked: by a block, or because its result was not whole.
pub(crate) struct Park {
    pub(crate) cause: ParkCause,
    pub(crate) reason: Arc<str>,
    /// What would help.
    pub(crate) hint: Option<Arc<str>>,
    /// Written in the same commit.
    pub(crate) checkpoint: Option<(CheckpointDraft, bool)>,
    pub(crate) by: Arc<str>,
    /// What the worker said of its processes, where it said so with the same word.
    pub(crate) termination: Option<Termination>,
    /// The number of the frame that asked for it, where one did.
    pub(crate) control_seq: Option<u64>,
}

impl Core {
    pub(crate) fn update_progress(
        &mut self,
        request: RequestId,
        (tenant, task): (&TenantId, TaskId),
        update: Clean<ProgressUpdate>,
        known: Known,
        finished: Option<Finished>,
        turn: &mut Turn<'_>,
    ) {
        let Some(mut live) = self.take(tenant, task) else {
            if finished.is_some() && mutant!(FinishedProgresses) {
                let replaced = ProgressRecord::empty(tenant.clone(), task);
                turn.write(Write::PutProgress(Arc::new(replaced)));
            }
            return turn.refuse(request, missing(tenant, finished));
        };
        let (update, _) = update.into_parts();
        let added = add_progress(&mut live, update, known, turn);
        let record = self.keep(live, turn);
        match added {
            Ok(progress) => {
                let reply = Reply::Progressed { record, progress };
                turn.reply(request, After::Task(task), reply);
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
        by: Actor,
        block: Clean<BlockDraft>,
        known: Known,
        finished: Option<Finished>,
        turn: &mut Turn<'_>,
    ) {
        let Some(mut live) = self.take(tenant, task) else {
            return turn.refuse(request, missing(tenant, finished));
        };
        let outcome = self.park(&mut live, Park::of_block(block, by.name, None), known, turn);
        let record = self.keep(live, turn);
        match outcome {
            Ok(Said { progress, .. }) => {
                turn.reply(request, After::Task(task), progressed(record, progress));
            }
            Err(code) => turn.refuse(request, code),
        }
    }

    /// Takes a word of whoever holds the newest attempt: a daemon by a numbered frame, an agent by a call. The caller has
    /// checked what comes before a body: shape, owner, proof, lease. Refused, it changes nothing.
    pub(crate) fn holder_says(
        &mut self,
        live: &mut Live,
        word: GoalWord,
        known: Known,
        control_seq: Option<u64>,
        turn: &mut Turn<'_>,
    ) -> Result<Said, Rejection> {
        if live.newest().state == State::Offered {
            return Err(Rejection::WrongOrder);
        }
        let by = holder_name(live);
        let said = match word {
            GoalWord::Progress(update) => Said {
                progress: Some(add_progress(live, update.into_parts().0, known, turn)?),
                checkpoint: None,
            },
            GoalWord::Checkpoint(draft) => add_checkpoint(
                live,
                draft.into_parts(),
                CheckpointKind::Progress,
                by,
                known,
                turn,
            ),
            GoalWord::Block(block) => {
                let park = Park::of_block(block, by, control_seq);
                return self.park(live, park, known, turn);
            }
        };
        // It moves no state, but it is a sign of life.
        let sign_of_life = Event::Output {
            sign: Sign::Event,
            tools: Vec::new(),
            end: live.newest().output_end,
        };
        self.apply(live, sign_of_life, None, turn);
        if let Some(seq) = control_seq {
            live.newest_mut().control_seq = seq;
        }
        Ok(said)
    }

    /// Parks the newest attempt, or the task where it waits for its next one. Refused, it changes nothing.
    pub(crate) fn park(
        &mut self,
        live: &mut Live,
        park: Park,
        known: Known,
        turn: &mut Turn<'_>,
    ) -> Result<Said, Rejection> {
        check_park(live)?;
        let said = match park.checkpoint.filter(|_| !mutant!(BlockUnwritten)) {
            Some((mut draft, redacted)) => {
                let stood = known.as_ref().ok().and_then(Option::as_deref);
                stand_where_it_stood(&mut draft, stood, &park.reason);
                let (draft, kind) = ((draft, redacted), CheckpointKind::Blocked);
                add_checkpoint(live, draft, kind, park.by, known, turn)
            }
            None => Said {
                progress: progress_of(live, known).ok(),
                checkpoint: None,
            },
        };
        let cause = park.cause;
        if live.newest().state.end().is_none() {
            let termination = park.termination;
            let event = Event::Park { cause, termination };
            let outcome = self.apply_numbered(live, event, None, park.control_seq, turn);
            debug_assert_eq!(outcome, Outcome::Applied, "check_park let it through");
            live.annotate(Some(Arc::clone(&park.reason)));
        } else {
            // It waits for its next attempt, and now for a person instead.
            live.retry_at = None;
            live.record_mut().retry = None;
            let parked = EventKind::Attention(cause.attention());
            live.note(parked, Some(Arc::clone(&park.reason)));
        }
        live.record_mut().attention = Some(Attention {
            cause: cause.attention(),
            reason: park.reason,
            hint: park.hint,
            checkpoint: said.checkpoint.as_ref().map(|written| written.id),
            since: turn.now.wall,
        });
        Ok(said)
    }

    /// Sends a parked task on: attempt N+1, with what this person has to say.
    pub(crate) fn resume(
        &mut self,
        request: RequestId,
        (tenant, task): (&TenantId, TaskId),
        resume: Box<Resume>,
        seen: Option<AttemptId>,
        finished: Option<Finished>,
        turn: &mut Turn<'_>,
    ) {
        let Some(mut live) = self.take(tenant, task) else {
            return turn.refuse(request, missing(tenant, finished));
        };
        let room = self.open.room_to_say(tenant, &resume, &self.config);
        let may = self.check_resume(&live, seen);
        if let Err(code) = may.and(room) {
            self.keep(live, turn);
            return turn.refuse(request, code);
        }
        let by = Arc::clone(&resume.by);
        let reason = Arc::clone(&resume.reason);
        live.note(
            EventKind::Resumed {
                by: Arc::clone(&by),
            },
            Some(reason),
        );
        self.send_on(&mut live, by, turn);
        if !mutant!(ResumeWordsLost) {
            live.newest_mut().resume = Some(resume);
        }
        let record = self.keep(live, turn);
        turn.reply(request, After::Task(task), Reply::Task(record));
    }

    pub(crate) fn check_resume(
        &self,
        live: &Live,
        seen: Option<AttemptId>,
    ) -> Result<(), Rejection> {
        let record = live.record();
        match seen.map(|seen| record.attempt(seen)) {
            Some(None) => return Err(Rejection::UnknownAttempt),
            Some(Some(seen)) if seen.id != live.newest().id && !mutant!(SentOnTwice) => {
                return Err(moved_on(Some(seen)));
            }
            Some(Some(_)) | None => {}
        }
        if record.attention.is_none() && !mutant!(SentOnTwice) {
            return Err(moved_on(record.attempts.iter().rev().nth(1)));
        }
        let many = record.attempts.len() >= bounds::ATTEMPTS;
        if many || record.counters.dispatches >= self.config.max_dispatches {
            return Err(Rejection::DispatchLimit);
        }
        Ok(())
    }

    /// The parked attempt is handed off and its successor queued. What was spent stays spent.
    pub(crate) fn send_on(&mut self, live: &mut Live, to: Arc<str>, turn: &mut Turn<'_>) {
        let record = live.record_mut();
        record.counters.daemons_lost.clear();
        record.counters.last_failure = None;
        record.retry_stop = None;
        let successor = AttemptId(turn.mint.id());
        if matches!(live.newest().state, State::Parked(_)) && !mutant!(ParkedNotHandedOff) {
            self.apply(live, Event::HandOff { successor, to }, None, turn);
        } else if live.record().attention.is_some() {
            // It ended before its task waited for a person: the end stays, and who comes too late learns the same.
            live.newest_mut().handed_to = Some(to);
        }
        self.add_attempt_as(successor, live, true, turn);
    }
}

impl Park {
    pub(crate) fn of_block(
        block: Clean<BlockDraft>,
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
fn missing(tenant: &TenantId, finished: Option<Finished>) -> Rejection {
    match finished.filter(|finished| finished.record.tenant == *tenant) {
        Some(_) => Rejection::AlreadyFinished,
        None => Rejection::UnknownTask,
    }
}

fn check_park(live: &Live) -> Result<(), Rejection> {
    if live.record().cancel.is_some() {
        return Err(Rejection::BeingCanceled);
    }
    if live.record().attention.is_some() {
        return Err(Rejection::AlreadyParked);
    }
    match &live.newest().state {
        // An end is on its way already.
        State::CleaningUp { .. } => Err(Rejection::BeingEnded),
        State::Parked(_) => Err(Rejection::AlreadyParked),
        State::Queued
        | State::Offered
        | State::Accepted
        | State::Starting
        | State::Prompted
        | State::Streaming
        | State::ToolRunning
        | State::WaitingInput
        | State::Ended(_) => Ok(()),
    }
}

/// It does not wait there any more: somebody was quicker, or nobody was needed.
fn moved_on(from: Option<&AttemptRecord>) -> Rejection {
    if from.is_some_and(|from| from.handed_to.is_some()) && !mutant!(LoserMisled) {
        Rejection::HandedOff
    } else {
        Rejection::NotParked
    }
}

pub(crate) fn holder_name(live: &Live) -> Arc<str> {
    let holder = live.newest().holder.as_ref();
    holder.map_or_else(|| "".into(), |holder| Arc::clone(holder.name()))
}

fn progress_of(live: &Live, known: Known) -> Result<Arc<ProgressRecord>, Rejection> {
    let known = known.map_err(|Unreadable| Rejection::Unreadable)?;
    let known = known.filter(|_| !mutant!(ProgressForgotten));
    let empty = || ProgressRecord::empty(live.spec.tenant.clone(), live.id());
    Ok(known.unwrap_or_else(|| Arc::new(empty())))
}

/// The task with its progress, where that can be read.
pub(crate) fn progressed(record: Arc<TaskRecord>, progress: Option<Arc<ProgressRecord>>) -> Reply {
    match progress {
        Some(progress) => Reply::Progressed { record, progress },
        None => Reply::Task(record),
    }
}

pub(crate) fn add_progress(
    live: &mut Live,
    update: ProgressUpdate,
    known: Known,
    turn: &mut Turn<'_>,
) -> Result<Arc<ProgressRecord>, Rejection> {
    let mut progress = progress_of(live, known)?;
    Arc::make_mut(&mut progress).add(update, turn.now.wall);
    let message = Some(Arc::clone(&progress.summary)).filter(|summary| !summary.is_empty());
    turn.write(Write::PutProgress(Arc::clone(&progress)));
    live.note(EventKind::Progress, message);
    Ok(progress)
}

/// A block says why it stops. Where the work stands is what was said of it before, unless the block says that as well: the
/// next attempt goes by the newest checkpoint alone.
fn stand_where_it_stood(
    draft: &mut CheckpointDraft,
    known: Option<&ProgressRecord>,
    why: &Arc<str>,
) {
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
    live: &mut Live,
    (draft, redacted): (CheckpointDraft, bool),
    kind: CheckpointKind,
    by: Arc<str>,
    known: Known,
    turn: &mut Turn<'_>,
) -> Said {
    let mut progress = progress_of(live, known).ok();
    if let Some(progress) = &mut progress {
        Arc::make_mut(progress).add(draft.as_progress(), turn.now.wall);
    }
    let count = |of: fn(&ProgressRecord) -> u64| progress.as_deref().map_or(0, of);
    let (newest, record) = (live.newest(), live.record());
    let checkpoint = Arc::new(CheckpointRecord {
        id: CheckpointId(turn.mint.id()),
        tenant: live.spec.tenant.clone(),
        task: live.id(),
        number: record.checkpoints + u64::from(!mutant!(CheckpointNumberReused)),
        attempt: newest.id,
        attempt_number: newest.number,
        kind,
        completed_count: count(ProgressRecord::completed_count),
        failed_count: count(ProgressRecord::failed_count),
        after_revision: record.checkpointed,
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
        turn.write(Write::PutProgress(Arc::clone(progress)));
    }
    note_checkpoint(live, &checkpoint, turn);
    Said {
        progress,
        checkpoint: Some(checkpoint),
    }
}

fn note_checkpoint(live: &mut Live, checkpoint: &Arc<CheckpointRecord>, turn: &mut Turn<'_>) {
    turn.write(Write::PutCheckpoint(Arc::clone(checkpoint)));
    let pushed_out = checkpoint.number.checked_sub(CHECKPOINTS_KEPT);
    if let Some(number) = pushed_out.filter(|number| *number > 0) {
        turn.write(Write::DropCheckpoint {
            tenant: live.spec.tenant.clone(),
            task: live.id(),
            number,
        });
    }
    let record = live.record_mut();
    record.checkpoints = checkpoint.number;
    record.checkpointed = checkpoint.to_revision;
    let (id, message) = (checkpoint.id, Arc::clone(&checkpoint.summary));
    live.note(EventKind::Checkpoint { id }, Some(message));
}
