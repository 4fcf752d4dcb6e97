//! Calls of an agent on an attempt whose lease it holds: progress, checkpoint, block, and end.
//! They follow the same rules as a daemon's frames. `lease_call.rs` has already checked that
//! the caller holds the lease.

use std::fmt;
use std::sync::Arc;

use crate::attempt::attempt_owners::AttemptOwners;
use crate::attempt::machine::EventOutcome;
use crate::fleet::frame::record_unmet_contract;
use crate::fleet::frame_event::frame_event;
use crate::goal::hand_off::{GoalOutcome, ParkRequest};
use crate::goal::progress::{BlockDraft, CheckpointDraft, ProgressUpdate, SanitizedText};
use crate::goal::progress_report::{StoredProgress, add_progress};
use crate::io::command::AgentPrincipal;
use crate::io::rejection::Rejection;
use crate::io::session_input::{
    CanceledBody, CompletedBody, ErroredBody, FrameBody, ProcessTermination,
};
use crate::record::{
    AttemptRecord, CancelRecord, CheckpointRecord, EndState, EndedBy, ProgressRecord,
    TimelineEventKind,
};
use crate::task::live_task::LiveTask;
use crate::task::size_limits;
use crate::turn::CoreTurn;

pub trait AgentVerb: fmt::Debug + Send + 'static {
    type Done: fmt::Debug + Send + 'static;

    /// Whether the call needs the stored progress of the task.
    fn updates_progress(&self) -> bool {
        false
    }

    /// Checks the call's own rule and applies its effects. The caller holds the lease.
    fn apply(
        self,
        owners: &mut AttemptOwners<'_>,
        live: &mut LiveTask,
        agent: &AgentPrincipal,
        progress: StoredProgress,
        turn: &mut CoreTurn<'_>,
    ) -> Result<Self::Done, Rejection>;

    /// Returns the result if this same call already ended the attempt: the first reply was lost
    /// and the agent repeats the call.
    fn already_done(&self, _attempt: &AttemptRecord) -> Option<Self::Done> {
        None
    }

    /// The number of the checkpoint that the call wrote.
    fn checkpoint_number(_done: &Self::Done) -> Option<u64> {
        None
    }
}

#[derive(Clone, Debug)]
pub struct ReportAttemptProgress(pub SanitizedText<ProgressUpdate>);

impl AgentVerb for ReportAttemptProgress {
    type Done = Arc<ProgressRecord>;

    fn updates_progress(&self) -> bool {
        true
    }

    fn apply(
        self,
        owners: &mut AttemptOwners<'_>,
        live: &mut LiveTask,
        _agent: &AgentPrincipal,
        progress: StoredProgress,
        turn: &mut CoreTurn<'_>,
    ) -> Result<Arc<ProgressRecord>, Rejection> {
        owners.report_progress(live, self.0, progress, None, turn)
    }
}

#[derive(Clone, Debug)]
pub struct WriteAttemptCheckpoint(pub SanitizedText<CheckpointDraft>);

impl AgentVerb for WriteAttemptCheckpoint {
    type Done = Arc<CheckpointRecord>;

    fn updates_progress(&self) -> bool {
        true
    }

    fn apply(
        self,
        owners: &mut AttemptOwners<'_>,
        live: &mut LiveTask,
        _agent: &AgentPrincipal,
        progress: StoredProgress,
        turn: &mut CoreTurn<'_>,
    ) -> Result<Arc<CheckpointRecord>, Rejection> {
        owners.report_checkpoint(live, self.0, progress, None, turn)
    }

    fn checkpoint_number(done: &Arc<CheckpointRecord>) -> Option<u64> {
        Some(done.number)
    }
}

/// Parks the attempt. The agent has already stopped working.
#[derive(Clone, Debug)]
pub struct BlockAttempt(pub SanitizedText<BlockDraft>);

impl AgentVerb for BlockAttempt {
    type Done = GoalOutcome;

    fn updates_progress(&self) -> bool {
        true
    }

    fn apply(
        self,
        owners: &mut AttemptOwners<'_>,
        live: &mut LiveTask,
        agent: &AgentPrincipal,
        progress: StoredProgress,
        turn: &mut CoreTurn<'_>,
    ) -> Result<GoalOutcome, Rejection> {
        let park = ParkRequest {
            termination: Some(stopped_termination()),
            ..ParkRequest::from_block(self.0, Arc::clone(&agent.name), None)
        };
        owners.park_attempt(live, park, progress, turn)
    }

    fn checkpoint_number(done: &GoalOutcome) -> Option<u64> {
        done.checkpoint.as_ref().map(|written| written.number)
    }
}

/// Ends the attempt from the holder's side.
#[derive(Clone, Debug)]
pub enum EndAttempt {
    Release {
        reason: Option<Arc<str>>,
    },
    /// Completes with an optional last progress update.
    Complete(CompletedBody, Option<SanitizedText<ProgressUpdate>>),
    Fail(ErroredBody),
    /// Ends the task, or confirms the cancel that a renewal reported.
    Cancel {
        reason: Option<Arc<str>>,
    },
}

impl AgentVerb for EndAttempt {
    type Done = ();

    fn updates_progress(&self) -> bool {
        matches!(self, EndAttempt::Complete(_, Some(_)))
    }

    fn apply(
        self,
        owners: &mut AttemptOwners<'_>,
        live: &mut LiveTask,
        agent: &AgentPrincipal,
        progress: StoredProgress,
        turn: &mut CoreTurn<'_>,
    ) -> Result<(), Rejection> {
        let termination = stopped_termination();
        match self {
            EndAttempt::Complete(..) if live.record().cancel.is_some() => {
                Err(Rejection::BeingCanceled)
            }
            EndAttempt::Complete(mut completed, last_update) => {
                completed.termination = termination;
                owners.apply_agent_frame(live, FrameBody::Completed(completed), turn)?;
                if let Some(update) = last_update {
                    // The result is accepted even if the progress update is refused.
                    let _added = add_progress(live, update.into_parts().0, progress, turn);
                }
                Ok(())
            }
            EndAttempt::Fail(mut errored) => {
                errored.termination = termination;
                owners.apply_agent_frame(live, FrameBody::Errored(errored), turn)
            }
            EndAttempt::Release { reason } => {
                let released = FrameBody::Released {
                    reason,
                    termination,
                };
                owners.apply_agent_frame(live, released, turn)
            }
            EndAttempt::Cancel { reason } => {
                if live.record().cancel.is_none() {
                    begin_holder_cancel(live, &agent.name, reason.clone(), turn);
                }
                let canceled = FrameBody::Canceled(CanceledBody {
                    reason,
                    termination,
                    ended_in_lease: true,
                    ..CanceledBody::default()
                });
                owners.apply_agent_frame(live, canceled, turn)
            }
        }
    }

    fn already_done(&self, attempt: &AttemptRecord) -> Option<()> {
        let end = attempt.state.end()?;
        let by_agent = end.ended_by == EndedBy::Agent;
        let same = match self {
            EndAttempt::Complete(CompletedBody { result, .. }, _) => {
                end.state == EndState::Completed && by_agent && attempt.result == *result
            }
            EndAttempt::Release { .. } => end.state == EndState::Released && by_agent,
            EndAttempt::Fail(errored) => {
                by_agent && end.failure_code.as_ref() == Some(&errored.code)
            }
            EndAttempt::Cancel { .. } => end.state == EndState::Canceled,
        };
        same.then_some(())
    }
}

impl AttemptOwners<'_> {
    pub(super) fn apply_agent_frame(
        &mut self,
        live: &mut LiveTask,
        mut body: FrameBody,
        turn: &mut CoreTurn<'_>,
    ) -> Result<(), Rejection> {
        size_limits::clip_body(&mut body);
        let event = frame_event(body, &live.spec, turn.now.wall).ok_or(Rejection::WrongOrder)?;
        match self.apply_event(live, event, None, turn) {
            EventOutcome::Applied => Ok(()),
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

/// The agent's own statement that it has stopped. The agent does the work itself, so there is
/// no process whose end could prove it.
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
