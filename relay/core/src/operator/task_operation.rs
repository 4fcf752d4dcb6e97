//! Operations on one task: release or fail an attempt by force, retry, complete by hand, pause.
//!
//! The checks always have the same order: a reason, a task of the caller's tenant, the rate
//! limit, a suitable state. Then the audit entry and the operation are one write and one reply.
//! A refused operation writes nothing.

use std::sync::Arc;

use crate::attempt::attempt_owners::AttemptOwners;
use crate::attempt::machine::{ForceAttemptEnd, ForcedEnd, MachineEvent};
use crate::attempt::timers::TimerSet;
use crate::config::Config;
use crate::core_state::CoreOwners;
use crate::goal::completion_contract;
use crate::ids::{AttemptId, TaskId, TenantId};
use crate::io::command::{Command, CommandOutcome, CommandReply, RequestActor};
use crate::io::rejection::Rejection;
use crate::io::stored_lookup::{FinishedTask, StoredNeeds, StoredRecords};
use crate::operator::rate_limit::OperationTarget;
use crate::record::{
    AttemptState, AttemptStateKind, AuditedOperation, OperatorAudit, TaskRecord, TaskState,
    TimelineEventKind,
};
use crate::task::live_task::LiveTask;
use crate::task::live_tasks::LiveTasks;
use crate::task::size_limits;
use crate::turn::CoreTurn;

/// An operation on one task: rate-limited, and recorded with the states before and after.
#[derive(Debug)]
pub struct OperateTask {
    pub tenant: TenantId,
    pub task: TaskId,
    pub by: RequestActor,
    /// May be empty only for the end of a pause.
    pub reason: Arc<str>,
    pub operation: TaskOperation,
}

#[derive(Debug)]
pub struct OperatedTask {
    pub record: Arc<TaskRecord>,
    /// False if the task was already paused.
    pub changed: bool,
}

impl Command for OperateTask {
    type Reply = OperatedTask;

    fn stored_needs(&self) -> StoredNeeds {
        StoredNeeds::task(&self.tenant, self.task)
    }

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<OperatedTask> {
        if self.operation.needs_reason() && self.reason.trim().is_empty() {
            return Err(Rejection::ReasonMissing);
        }
        let task = self.task;
        let mut live = take_operated_task(core.tasks, &self, stored.finished)?;
        let target = OperationTarget::Task(task);
        let admitted = core
            .operators
            .admit(self.by.token, target, turn.now.monotonic)
            .and_then(|()| check_operation(core.tasks, &live, &self.operation, turn.config));
        if let Err(code) = admitted {
            if !live.is_reopened() {
                core.put_back_task(live, turn);
            }
            return Err(code);
        }
        let changed =
            !matches!(self.operation, TaskOperation::Pause) || live.record().paused.is_none();
        if changed {
            record_audit(&mut live, &self);
            core.attempt().run_operation(&mut live, self, turn);
        }
        let record = core.put_back_task(live, turn);
        Ok(CommandReply::after_task(
            task,
            OperatedTask { record, changed },
        ))
    }
}

#[derive(Clone, Debug)]
pub enum TaskOperation {
    /// Ends a leased attempt; the task is queued again, subject to the successor rule. The
    /// attempt is the one that the caller saw; without it, the open one.
    ForceRelease {
        attempt: Option<AttemptId>,
    },
    /// Ends an open attempt and its task as failed.
    ForceFail {
        attempt: Option<AttemptId>,
    },
    /// Queues another attempt for a task that ended failed, timed_out or lost, or that needs
    /// attention.
    Retry {
        allow_unsafe: bool,
    },
    /// Completes a parked, lost or leased attempt by hand.
    Complete {
        overridden: bool,
        result: Option<Arc<[u8]>>,
    },
    Pause,
    Unpause,
}

impl TaskOperation {
    fn needs_reason(&self) -> bool {
        !matches!(self, TaskOperation::Unpause)
    }

    pub fn name(&self) -> &'static str {
        self.audited_operation().as_str()
    }

    fn audited_operation(&self) -> AuditedOperation {
        match self {
            TaskOperation::ForceRelease { .. } => AuditedOperation::ForceRelease,
            TaskOperation::ForceFail { .. } => AuditedOperation::ForceFail,
            TaskOperation::Retry { .. } => AuditedOperation::Retry,
            TaskOperation::Complete { overridden, .. }
                if *overridden && !mutant!(OverrideUnrecorded) =>
            {
                AuditedOperation::CompleteOverridden
            }
            TaskOperation::Complete { .. } => AuditedOperation::Complete,
            TaskOperation::Pause => AuditedOperation::Pause,
            TaskOperation::Unpause => AuditedOperation::Unpause,
        }
    }

    /// The resulting state of the newest attempt. An ended attempt keeps its state: another one
    /// follows it.
    fn resulting_state(&self, newest: &AttemptState) -> AttemptStateKind {
        let ended = newest.end().is_some();
        match self {
            TaskOperation::ForceRelease { .. } => AttemptStateKind::Released,
            TaskOperation::ForceFail { .. } => AttemptStateKind::Failed,
            TaskOperation::Complete { .. } if !ended => AttemptStateKind::Completed,
            TaskOperation::Retry { .. } if !ended => AttemptStateKind::HandedOff,
            TaskOperation::Complete { .. }
            | TaskOperation::Retry { .. }
            | TaskOperation::Pause
            | TaskOperation::Unpause => newest.kind(),
        }
    }
}

impl AttemptOwners<'_> {
    fn run_operation(
        &mut self,
        live: &mut LiveTask,
        operate: OperateTask,
        turn: &mut CoreTurn<'_>,
    ) {
        let (by, reason) = (operate.by, operate.reason);
        match operate.operation {
            TaskOperation::ForceRelease { .. } => {
                self.force_attempt_end(live, ForcedEnd::Released, reason, turn)
            }
            TaskOperation::ForceFail { .. } => {
                self.force_attempt_end(live, ForcedEnd::Failed, reason, turn)
            }
            TaskOperation::Retry { .. } => self.retry_on_request(live, by.name, reason, turn),
            TaskOperation::Complete { result, .. } => {
                if live.newest_attempt().state.end().is_some() {
                    // The ended attempt stays as it is. The result goes to a new attempt.
                    self.schedule.queue_attempt(live, true, turn);
                }
                self.force_attempt_end(live, ForcedEnd::Completed { result }, reason, turn);
            }
            TaskOperation::Pause => self.schedule.pause_task(live, by, reason, turn),
            TaskOperation::Unpause => self.schedule.unpause_task(live, reason, turn),
        }
    }

    fn force_attempt_end(
        &mut self,
        live: &mut LiveTask,
        into: ForcedEnd,
        mut reason: Arc<str>,
        turn: &mut CoreTurn<'_>,
    ) {
        let record = live.record_mut();
        (record.retry, record.attention) = (None, None);
        live.retry_at = None;
        size_limits::clip(&mut reason, size_limits::MAX_TEXT_BYTES);
        let forced = ForceAttemptEnd { end: into, reason };
        self.apply_event(live, MachineEvent::Forced(forced), None, turn);
    }

    /// Queues another attempt on a person's request. Earlier dispatches stay counted, so the
    /// dispatch limit applies here too.
    fn retry_on_request(
        &mut self,
        live: &mut LiveTask,
        by: Arc<str>,
        reason: Arc<str>,
        turn: &mut CoreTurn<'_>,
    ) {
        if live.is_reopened() {
            self.schedule.fence_inherited(live, turn);
        }
        live.add_event(TimelineEventKind::RetryAsked, Some(reason));
        self.start_successor(live, by, turn);
    }
}

/// Of finished tasks only a retry wants more than to hear that they are.
fn take_operated_task(
    tasks: &mut LiveTasks,
    operate: &OperateTask,
    finished: Option<FinishedTask>,
) -> Result<Box<LiveTask>, Rejection> {
    if let Some(live) = tasks.take(&operate.tenant, operate.task) {
        return Ok(live);
    }
    let known = finished.filter(|finished| finished.record.tenant == operate.tenant);
    let known = known.ok_or(Rejection::UnknownTask)?;
    match operate.operation {
        TaskOperation::Retry { .. } => Ok(Box::new(reopen_finished(known))),
        TaskOperation::ForceRelease { .. }
        | TaskOperation::ForceFail { .. }
        | TaskOperation::Complete { .. }
        | TaskOperation::Pause
        | TaskOperation::Unpause => Err(Rejection::AlreadyFinished),
    }
}

fn check_operation(
    tasks: &LiveTasks,
    live: &LiveTask,
    verb: &TaskOperation,
    config: &Config,
) -> Result<(), Rejection> {
    match verb {
        TaskOperation::ForceRelease { attempt } => {
            check_seen_attempt(live, *attempt)?;
            if live.is_newest_leased() {
                // Another attempt follows it.
                check_attempt_limit(live)
            } else {
                Err(Rejection::NotHeld)
            }
        }
        TaskOperation::ForceFail { attempt } => {
            check_seen_attempt(live, *attempt)?;
            let over = live.newest_attempt().state.end().is_some();
            if over {
                Err(Rejection::NotOpen)
            } else {
                Ok(())
            }
        }
        TaskOperation::Retry { allow_unsafe } => check_retry(tasks, live, *allow_unsafe, config),
        TaskOperation::Complete { overridden, .. } => check_complete(live, *overridden),
        TaskOperation::Unpause if live.record().paused.is_none() => Err(Rejection::NotPaused),
        TaskOperation::Pause | TaskOperation::Unpause => Ok(()),
    }
}

fn check_retry(
    tasks: &LiveTasks,
    live: &LiveTask,
    allow_unsafe: bool,
    config: &Config,
) -> Result<(), Rejection> {
    match live.record().state {
        TaskState::Failed | TaskState::TimedOut | TaskState::Lost | TaskState::NeedsAttention => {}
        TaskState::Pending if live.record().retry.is_some() => {}
        TaskState::Pending | TaskState::Queued | TaskState::Running
            if live.record().cancel.is_some() =>
        {
            return Err(Rejection::BeingCanceled);
        }
        TaskState::Pending | TaskState::Queued | TaskState::Running => {
            return Err(Rejection::NotFinished);
        }
        TaskState::Completed | TaskState::Canceled => return Err(Rejection::AlreadyFinished),
    }
    check_attempt_limit(live)?;
    if live.record().counters.dispatches >= config.max_dispatches {
        return Err(Rejection::DispatchLimit);
    }
    if live.is_reopened() {
        tasks.check_open_limits(&live.spec, config)?;
    }
    if live.newest_attempt().retry_safe || allow_unsafe {
        Ok(())
    } else {
        Err(Rejection::UnsafeRetry)
    }
}

/// Records the audit entry before the operation runs; the resulting state is known in advance.
fn record_audit(live: &mut LiveTask, operate: &OperateTask) {
    let newest = &live.newest_attempt().state;
    let mut by = Arc::clone(&operate.by.name);
    size_limits::clip(&mut by, size_limits::MAX_NAME_BYTES);
    let audit = OperatorAudit {
        operation: operate.operation.audited_operation(),
        by,
        attempt_before: newest.kind(),
        attempt_after: operate.operation.resulting_state(newest),
        task_before: live.record().state,
    };
    let reason = Some(Arc::clone(&operate.reason));
    live.add_event(
        TimelineEventKind::Forced(audit),
        reason.filter(|r| !r.is_empty()),
    );
}

/// Checks that the newest attempt is the one the caller saw and that no cancel is pending.
fn check_seen_attempt(live: &LiveTask, attempt: Option<AttemptId>) -> Result<(), Rejection> {
    if attempt.is_some_and(|attempt| attempt != live.newest_attempt().id) {
        return Err(Rejection::StaleAttempt);
    }
    if live.record().cancel.is_some() {
        return Err(Rejection::BeingCanceled);
    }
    Ok(())
}

fn check_attempt_limit(live: &LiveTask) -> Result<(), Rejection> {
    if live.record().attempts.len() >= size_limits::MAX_ATTEMPTS {
        Err(Rejection::DispatchLimit)
    } else {
        Ok(())
    }
}

/// Checks that work on the task has begun and that the reported receipts meet the contract,
/// unless the operator overrides the contract.
fn check_complete(live: &LiveTask, overridden: bool) -> Result<(), Rejection> {
    check_seen_attempt(live, None)?;
    match &live.newest_attempt().state {
        AttemptState::Queued => return Err(Rejection::NotBegun),
        AttemptState::Ended(_) if live.record().attention.is_none() => {
            return Err(Rejection::NotOpen);
        }
        AttemptState::Ended(_) => check_attempt_limit(live)?,
        AttemptState::Offered
        | AttemptState::Accepted
        | AttemptState::Starting
        | AttemptState::Prompted
        | AttemptState::Streaming
        | AttemptState::ToolRunning
        | AttemptState::WaitingInput
        | AttemptState::CleaningUp { .. }
        | AttemptState::Parked(_) => {}
    }
    if overridden
        || completion_contract::unmet_task_requirements(&live.spec, live.newest_attempt())
            .is_empty()
    {
        Ok(())
    } else {
        Err(Rejection::ContractUnmet)
    }
}

fn reopen_finished(finished: FinishedTask) -> LiveTask {
    let mut live = LiveTask::new(finished.spec, finished.record, TimerSet::default());
    live.mark_reopened();
    live
}
