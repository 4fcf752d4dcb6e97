//! Parking a task until a person acts, and resuming it.
//!
//! A daemon's frame, an agent's call and a person's request use the same functions, each after
//! its own checks. A park is one write: checkpoint, parked attempt and attention; it also ends
//! the lease. A resume is one write, too: the parked attempt ends as handed off and its
//! successor is queued, so the task is never offered twice.

use std::sync::Arc;

use crate::attempt::attempt_owners::AttemptOwners;
use crate::attempt::machine::{EventOutcome, MachineEvent};
use crate::config::Config;
use crate::core_state::CoreOwners;
use crate::goal::progress::{BlockDraft, CheckpointDraft, GoalReport, SanitizedText};
use crate::goal::progress_report::{
    StoredProgress, add_checkpoint, check_accepted, progress_or_empty,
};
use crate::ids::{AttemptId, TaskId, TenantId};
use crate::io::command::{Command, CommandOutcome, CommandReply, RequestActor};
use crate::io::rejection::Rejection;
use crate::io::session_input::ProcessTermination;
use crate::io::stored_lookup::{FinishedTask, StoredNeeds, StoredRecords};
use crate::record::{
    AttemptRecord, AttemptState, CheckpointKind, CheckpointRecord, ParkCause, ProgressRecord,
    ResumeInstructions, TaskAttention, TaskRecord, TimelineEventKind,
};
use crate::task::live_task::LiveTask;
use crate::task::size_limits;
use crate::turn::CoreTurn;

/// The result of a goal report.
#[derive(Clone, Debug)]
pub struct GoalOutcome {
    /// `None` if the stored progress cannot be read.
    pub progress: Option<Arc<ProgressRecord>>,
    pub checkpoint: Option<Arc<CheckpointRecord>>,
}

/// A request to park an attempt: by a block, or because its result was incomplete.
pub(crate) struct ParkRequest {
    pub(crate) cause: ParkCause,
    pub(crate) reason: Arc<str>,
    /// What would help to continue.
    pub(crate) hint: Option<Arc<str>>,
    /// Written in the same commit. The flag tells whether text was redacted.
    pub(crate) checkpoint: Option<(CheckpointDraft, bool)>,
    pub(crate) by: Arc<str>,
    /// The end of the worker's processes, if the same report contains it.
    pub(crate) termination: Option<ProcessTermination>,
    /// The control number of the frame that requested it, if a frame did.
    pub(crate) control_seq: Option<u64>,
}

/// Parks an open task and stops what runs. The task record is stored last, so a crash before
/// that leaves the task unchanged.
#[derive(Debug)]
pub struct BlockTask {
    pub tenant: TenantId,
    pub task: TaskId,
    pub by: RequestActor,
    pub block: Box<SanitizedText<BlockDraft>>,
}

#[derive(Debug)]
pub struct BlockedTask {
    pub record: Arc<TaskRecord>,
    /// `None` if the stored progress cannot be read.
    pub progress: Option<Arc<ProgressRecord>>,
}

impl Command for BlockTask {
    type Reply = BlockedTask;

    fn stored_needs(&self) -> StoredNeeds {
        StoredNeeds::task_and_progress(&self.tenant, self.task)
    }

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<BlockedTask> {
        let Some(mut live) = core.tasks.take(&self.tenant, self.task) else {
            return Err(missing_task(&self.tenant, stored.finished));
        };
        let park = ParkRequest::from_block(*self.block, self.by.name, None);
        let outcome = core
            .attempt()
            .park_attempt(&mut live, park, stored.progress, turn);
        let record = core.put_back_task(live, turn);
        let GoalOutcome { progress, .. } = outcome?;
        let blocked = BlockedTask { record, progress };
        Ok(CommandReply::after_task(self.task, blocked))
    }
}

/// Resumes a parked task: queues attempt N+1 with this person's instructions.
#[derive(Debug)]
pub struct ResumeTask {
    pub tenant: TenantId,
    pub task: TaskId,
    pub resume: Box<ResumeInstructions>,
    /// The attempt that the caller saw.
    pub attempt: Option<AttemptId>,
}

impl Command for ResumeTask {
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
        let Some(mut live) = core.tasks.take(&self.tenant, self.task) else {
            return Err(missing_task(&self.tenant, stored.finished));
        };
        let checked = check_resume(&live, self.attempt, turn.config).and_then(|()| {
            let tenant = &live.spec.tenant;
            core.tasks
                .check_room_for_resume(tenant, &self.resume, turn.config)
        });
        let resumed = checked.map(|()| core.attempt().resume_task(&mut live, self.resume, turn));
        let record = core.put_back_task(live, turn);
        resumed.map(|()| CommandReply::after_task(self.task, record))
    }
}

impl AttemptOwners<'_> {
    /// Takes a daemon's report about the goal of its newest attempt. The caller has checked what
    /// comes before a body: shape, owner, proof, lease. Refused, it changes nothing.
    pub(crate) fn apply_goal_report(
        &mut self,
        live: &mut LiveTask,
        report: GoalReport,
        stored: StoredProgress,
        control_seq: u64,
        turn: &mut CoreTurn<'_>,
    ) -> Result<(), Rejection> {
        let seq = Some(control_seq);
        match report {
            GoalReport::Progress(update) => {
                self.report_progress(live, update, stored, seq, turn)?;
            }
            GoalReport::Checkpoint(draft) => {
                self.report_checkpoint(live, draft, stored, seq, turn)?;
            }
            GoalReport::Block(block) => {
                check_accepted(live)?;
                let park = ParkRequest::from_block(block, holder_name(live), seq);
                self.park_attempt(live, park, stored, turn)?;
            }
        }
        Ok(())
    }

    /// Parks the newest attempt, or the task while it waits for its next attempt. A refused
    /// request changes nothing.
    pub(crate) fn park_attempt(
        &mut self,
        live: &mut LiveTask,
        park: ParkRequest,
        stored: StoredProgress,
        turn: &mut CoreTurn<'_>,
    ) -> Result<GoalOutcome, Rejection> {
        check_park(live)?;
        let outcome = match park.checkpoint.filter(|_| !mutant!(BlockUnwritten)) {
            Some((mut draft, redacted)) => {
                let earlier = stored.as_ref().ok().and_then(Option::as_deref);
                fill_from_progress(&mut draft, earlier, &park.reason);
                let (draft, kind) = ((draft, redacted), CheckpointKind::Blocked);
                let (progress, checkpoint) =
                    add_checkpoint(live, draft, kind, park.by, stored, turn);
                GoalOutcome {
                    progress,
                    checkpoint: Some(checkpoint),
                }
            }
            None => GoalOutcome {
                progress: progress_or_empty(live, stored).ok(),
                checkpoint: None,
            },
        };
        let cause = park.cause;
        if live.newest_attempt().state.end().is_none() {
            let termination = park.termination;
            let event = MachineEvent::Park { cause, termination };
            let applied = self.apply_frame_event(live, event, None, park.control_seq, turn);
            debug_assert_eq!(applied, EventOutcome::Applied, "check_park accepted it");
            live.set_event_message(Some(Arc::clone(&park.reason)));
        } else {
            // The task was waiting for its next attempt. Now it waits for a person instead.
            live.retry_at = None;
            live.record_mut().retry = None;
            let parked = TimelineEventKind::Attention(cause.attention_cause());
            live.add_event(parked, Some(Arc::clone(&park.reason)));
        }
        live.record_mut().attention = Some(TaskAttention {
            cause: cause.attention_cause(),
            reason: park.reason,
            hint: park.hint,
            checkpoint: outcome.checkpoint.as_ref().map(|written| written.id),
            since: turn.now.wall,
        });
        Ok(outcome)
    }

    fn resume_task(
        &mut self,
        live: &mut LiveTask,
        resume: Box<ResumeInstructions>,
        turn: &mut CoreTurn<'_>,
    ) {
        let by = Arc::clone(&resume.by);
        let reason = Arc::clone(&resume.reason);
        live.add_event(
            TimelineEventKind::Resumed {
                by: Arc::clone(&by),
            },
            Some(reason),
        );
        self.start_successor(live, by, turn);
        if !mutant!(ResumeWordsLost) {
            live.newest_attempt_mut().resume = Some(resume);
        }
    }

    /// Hands off the parked attempt and queues its successor. The dispatches that were counted
    /// stay counted.
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
            // The attempt ended before its task was parked. Its end stays, and a later resume
            // is refused as handed off.
            live.newest_attempt_mut().handed_off_to = Some(to);
        }
        self.schedule.queue_attempt_as(successor, live, true, turn);
    }
}

pub(crate) fn check_resume(
    live: &LiveTask,
    seen: Option<AttemptId>,
    config: &Config,
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
    if many || record.counters.dispatches >= config.max_dispatches {
        return Err(Rejection::DispatchLimit);
    }
    Ok(())
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

/// The rejection for a task that is not live: finished, or unknown to this tenant.
pub(crate) fn missing_task(tenant: &TenantId, finished: Option<FinishedTask>) -> Rejection {
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
        // The attempt is ending already.
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

/// The rejection for an attempt that is not parked: already handed off, or never parked.
fn not_parked_reason(attempt: Option<&AttemptRecord>) -> Rejection {
    if attempt.is_some_and(|attempt| attempt.handed_off_to.is_some()) && !mutant!(LoserMisled) {
        Rejection::HandedOff
    } else {
        Rejection::NotParked
    }
}

pub(crate) fn holder_name(live: &LiveTask) -> Arc<str> {
    let holder = live.newest_attempt().holder.as_ref();
    holder.map_or_else(|| "".into(), |holder| Arc::clone(holder.name()))
}

/// Fills empty checkpoint fields of a block from the stored progress. The next attempt reads
/// only the newest checkpoint, so the checkpoint must say where the work stands.
fn fill_from_progress(
    draft: &mut CheckpointDraft,
    earlier: Option<&ProgressRecord>,
    reason: &Arc<str>,
) {
    let has_text = |text: &&Arc<str>| !text.trim().is_empty();
    if !has_text(&&draft.summary) {
        let before = earlier.map(|earlier| &earlier.summary).filter(has_text);
        draft.summary = Arc::clone(before.unwrap_or(reason));
    }
    if let Some(before) = earlier.map(|earlier| &earlier.cursor)
        && !has_text(&&draft.cursor)
    {
        draft.cursor = Arc::clone(before);
    }
}
