//! Goal reports: progress updates and checkpoints. Reports from a client, a daemon's frame and
//! an agent's call use the same functions, each after its own checks.

use std::sync::Arc;

use crate::attempt::attempt_owners::AttemptOwners;
use crate::attempt::machine::MachineEvent;
use crate::core_state::CoreOwners;
use crate::goal::hand_off::{holder_name, missing_task};
use crate::goal::progress::{CheckpointDraft, MAX_CHECKPOINTS, ProgressUpdate, SanitizedText};
use crate::ids::{CheckpointId, TaskId, TenantId};
use crate::io::command::{Command, CommandOutcome, CommandReply};
use crate::io::effects::RecordChange;
use crate::io::rejection::Rejection;
use crate::io::session_input::OutputSignal;
use crate::io::stored_lookup::{StoredLookup, StoredNeeds, StoredRecords, UnreadableRecord};
use crate::record::{
    AttemptState, CheckpointKind, CheckpointRecord, ProgressRecord, TaskRecord, TimelineEventKind,
};
use crate::task::live_task::LiveTask;
use crate::turn::CoreTurn;

/// The stored progress of a task; `None` before the first report. A record that cannot be read
/// is never overwritten: progress updates are refused, while checkpoints and blocks, which
/// could not be reported again, are stored without changing it.
pub(crate) type StoredProgress = StoredLookup<Arc<ProgressRecord>>;

/// A progress update from a client.
#[derive(Debug)]
pub struct UpdateProgress {
    pub tenant: TenantId,
    pub task: TaskId,
    pub update: Box<SanitizedText<ProgressUpdate>>,
}

#[derive(Debug)]
pub struct UpdatedProgress {
    pub record: Arc<TaskRecord>,
    pub progress: Arc<ProgressRecord>,
}

impl Command for UpdateProgress {
    type Reply = UpdatedProgress;

    fn stored_needs(&self) -> StoredNeeds {
        StoredNeeds::task_and_progress(&self.tenant, self.task)
    }

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<UpdatedProgress> {
        let Some(mut live) = core.tasks.take(&self.tenant, self.task) else {
            if stored.finished.is_some() && mutant!(FinishedProgresses) {
                let replaced = ProgressRecord::empty(self.tenant.clone(), self.task);
                turn.push_change(RecordChange::PutProgress(Arc::new(replaced)));
            }
            return Err(missing_task(&self.tenant, stored.finished));
        };
        let (update, _) = self.update.into_parts();
        let added = add_progress(&mut live, update, stored.progress, turn);
        let record = core.put_back_task(live, turn);
        let progress = added?;
        let updated = UpdatedProgress { record, progress };
        Ok(CommandReply::after_task(self.task, updated))
    }
}

impl AttemptOwners<'_> {
    /// Progress from the holder of the newest attempt: by a numbered frame, or by a call of an
    /// agent.
    pub(crate) fn report_progress(
        &mut self,
        live: &mut LiveTask,
        update: SanitizedText<ProgressUpdate>,
        stored: StoredProgress,
        control_seq: Option<u64>,
        turn: &mut CoreTurn<'_>,
    ) -> Result<Arc<ProgressRecord>, Rejection> {
        check_accepted(live)?;
        let progress = add_progress(live, update.into_parts().0, stored, turn)?;
        self.count_as_activity(live, control_seq, turn);
        Ok(progress)
    }

    /// Applies a checkpoint from the holder of the newest attempt.
    pub(crate) fn report_checkpoint(
        &mut self,
        live: &mut LiveTask,
        draft: SanitizedText<CheckpointDraft>,
        stored: StoredProgress,
        control_seq: Option<u64>,
        turn: &mut CoreTurn<'_>,
    ) -> Result<Arc<CheckpointRecord>, Rejection> {
        check_accepted(live)?;
        let by = holder_name(live);
        let kind = CheckpointKind::Progress;
        let (_, checkpoint) = add_checkpoint(live, draft.into_parts(), kind, by, stored, turn);
        self.count_as_activity(live, control_seq, turn);
        Ok(checkpoint)
    }

    /// Counts the report as activity: it changes no state, but it shows that the worker is
    /// alive.
    fn count_as_activity(
        &mut self,
        live: &mut LiveTask,
        control_seq: Option<u64>,
        turn: &mut CoreTurn<'_>,
    ) {
        let activity = MachineEvent::Output {
            sign: OutputSignal::Event,
            tools: Vec::new(),
            end: live.newest_attempt().output_end,
        };
        self.apply_event(live, activity, None, turn);
        if let Some(seq) = control_seq {
            live.newest_attempt_mut().control_seq = seq;
        }
    }
}

/// Refuses reports of an attempt that was offered but not accepted.
pub(crate) fn check_accepted(live: &LiveTask) -> Result<(), Rejection> {
    if live.newest_attempt().state == AttemptState::Offered {
        return Err(Rejection::WrongOrder);
    }
    Ok(())
}

pub(crate) fn progress_or_empty(
    live: &LiveTask,
    stored: StoredProgress,
) -> Result<Arc<ProgressRecord>, Rejection> {
    let stored = stored.map_err(|UnreadableRecord| Rejection::Unreadable)?;
    let stored = stored.filter(|_| !mutant!(ProgressForgotten));
    let empty = || ProgressRecord::empty(live.spec.tenant.clone(), live.id());
    Ok(stored.unwrap_or_else(|| Arc::new(empty())))
}

pub(crate) fn add_progress(
    live: &mut LiveTask,
    update: ProgressUpdate,
    stored: StoredProgress,
    turn: &mut CoreTurn<'_>,
) -> Result<Arc<ProgressRecord>, Rejection> {
    let mut progress = progress_or_empty(live, stored)?;
    Arc::make_mut(&mut progress).add_update(update, turn.now.wall);
    let message = Some(Arc::clone(&progress.summary)).filter(|summary| !summary.is_empty());
    turn.push_change(RecordChange::PutProgress(Arc::clone(&progress)));
    live.add_event(TimelineEventKind::Progress, message);
    Ok(progress)
}

/// Writes the next checkpoint, removes the oldest if there are too many, and updates the
/// progress.
pub(crate) fn add_checkpoint(
    live: &mut LiveTask,
    (draft, redacted): (CheckpointDraft, bool),
    kind: CheckpointKind,
    by: Arc<str>,
    stored: StoredProgress,
    turn: &mut CoreTurn<'_>,
) -> (Option<Arc<ProgressRecord>>, Arc<CheckpointRecord>) {
    let mut progress = progress_or_empty(live, stored).ok();
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
    (progress, checkpoint)
}

fn store_checkpoint(
    live: &mut LiveTask,
    checkpoint: &Arc<CheckpointRecord>,
    turn: &mut CoreTurn<'_>,
) {
    turn.push_change(RecordChange::PutCheckpoint(Arc::clone(checkpoint)));
    let removed = checkpoint.number.checked_sub(MAX_CHECKPOINTS);
    if let Some(number) = removed.filter(|number| *number > 0) {
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
