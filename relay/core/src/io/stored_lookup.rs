//! The core holds live tasks only. Where an input names a finished one, what is stored of it is loaded first; which input
//! needs what is said here, how it is read is the shell's.

use std::sync::Arc;

use crate::core_state::Core;
use crate::ids::{TaskId, TenantId, TenantScope};
use crate::io::command::{
    AttemptFrame, CoreCommand, FinishedTask, FrameBody, PriorSubmission, RemovableTask, SubmitTask,
};
use crate::record::{IdempotencyRecord, ProgressRecord};

/// It is there and means nothing: damage that must not pass for nothing, or it would be written over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadableRecord;

/// What the store has of something, if it has it.
pub type StoredLookup<T> = Result<Option<T>, UnreadableRecord>;

/// What is known of a task that a daemon lists, when the core hears of it.
#[derive(Clone, Debug, Default)]
pub enum TaskLookup {
    /// Nobody could look yet, or it was open then and may have ended since.
    #[default]
    Open,
    /// It is not there, and what is not there does not come back: nobody has to look again.
    Missing,
    Finished(FinishedTask),
}

impl TaskLookup {
    pub fn from_finished(found: Option<FinishedTask>) -> Self {
        found.map_or(TaskLookup::Missing, TaskLookup::Finished)
    }
}

/// What is stored of tasks that the core does not hold.
pub trait StoredTasks {
    /// `None` also where the task is not finished.
    fn finished(&self, tenant: &TenantId, task: TaskId) -> Option<FinishedTask>;

    /// The same for a daemon, whose frames do not name the tenant.
    fn finished_in_scope(&self, scope: &TenantScope, task: TaskId) -> Option<FinishedTask>;

    fn removable(&self, tenant: &TenantId, task: TaskId) -> Option<RemovableTask>;

    fn idempotency(&self, tenant: &TenantId, key: &str) -> StoredLookup<IdempotencyRecord>;

    /// Of a live task; the newest, durable or not.
    fn progress(&self, tenant: &TenantId, task: TaskId) -> StoredLookup<Arc<ProgressRecord>>;
}

impl Core {
    /// Fills in what the input needs from the shelf. Looks there only where the core does not have the task.
    #[expect(
        clippy::too_many_lines,
        reason = "one arm per input, and each only names what it needs"
    )]
    pub fn load_stored_records(&self, input: &mut CoreCommand, shelf: &impl StoredTasks) {
        match input {
            CoreCommand::Submit(submit) | CoreCommand::Start { submit, .. } => {
                submit.prior_submission = self.stored_submission(submit, shelf);
            }
            CoreCommand::Claim {
                agent,
                task,
                finished,
                ..
            } => {
                if let Some(task) = task.filter(|task| !self.is_live(*task)) {
                    *finished = shelf.finished(&agent.tenant, task);
                }
            }
            CoreCommand::PickUp {
                agent,
                task,
                finished,
                ..
            } => {
                if !self.is_live(*task) {
                    *finished = shelf.finished(&agent.tenant, *task);
                }
            }
            CoreCommand::AgentLeaseCall(call) => {
                if self.is_live(call.task) {
                    if call.verb.updates_progress() {
                        call.stored_progress = shelf.progress(&call.agent.tenant, call.task);
                    }
                } else {
                    call.finished = shelf.finished(&call.agent.tenant, call.task);
                }
            }
            CoreCommand::Cancel {
                tenant,
                task,
                finished,
                ..
            }
            | CoreCommand::Answer {
                tenant,
                task,
                finished,
                ..
            }
            | CoreCommand::Resume {
                tenant,
                task,
                finished,
                ..
            } => {
                if !self.is_live(*task) {
                    *finished = shelf.finished(tenant, *task);
                }
            }
            CoreCommand::UpdateProgress {
                tenant,
                task,
                stored_progress: known,
                finished,
                ..
            }
            | CoreCommand::Block {
                tenant,
                task,
                stored_progress: known,
                finished,
                ..
            } => {
                if self.is_live(*task) {
                    *known = shelf.progress(tenant, *task);
                } else {
                    *finished = shelf.finished(tenant, *task);
                }
            }
            CoreCommand::Operate(operate) => {
                if !self.is_live(operate.task) {
                    operate.finished = shelf.finished(&operate.tenant, operate.task);
                }
            }
            CoreCommand::Frame(frame) => self.load_frame_records(frame, shelf),
            CoreCommand::SessionOpened { hello, .. } => {
                for active in &mut hello.active {
                    // The session has looked already; only a task that ended since is read here.
                    let open = matches!(active.lookup, TaskLookup::Open);
                    if open && !self.is_live(active.frame_ref.task) {
                        let found = shelf.finished_in_scope(&hello.scope, active.frame_ref.task);
                        active.lookup = TaskLookup::from_finished(found);
                    }
                }
            }
            CoreCommand::RemoveFinished {
                tasks, finished, ..
            } => {
                let over = tasks.iter().filter(|(_, task)| !self.is_live(*task));
                finished.extend(over.filter_map(|(tenant, task)| shelf.removable(tenant, *task)));
            }
            CoreCommand::PauseScheduler { .. }
            | CoreCommand::UnpauseScheduler { .. }
            | CoreCommand::SchedulerStatus { .. }
            | CoreCommand::OperateDaemon(_)
            | CoreCommand::ReleaseInherited { .. }
            | CoreCommand::SuspendDispatch { .. }
            | CoreCommand::ForgetDaemon { .. }
            | CoreCommand::Inspect { .. }
            | CoreCommand::ListParked { .. }
            | CoreCommand::ListDaemons { .. }
            | CoreCommand::FindDaemon { .. }
            | CoreCommand::ForgetDaemons { .. }
            | CoreCommand::SessionClosed { .. }
            | CoreCommand::Heartbeat { .. }
            | CoreCommand::Activity(_)
            | CoreCommand::ExtendLeases { .. }
            | CoreCommand::DeliveryFailed { .. }
            | CoreCommand::Tick => {}
        }
    }

    fn load_frame_records(&self, frame: &mut AttemptFrame, shelf: &impl StoredTasks) {
        let live = self.tasks.get(&frame.frame_ref.task);
        if let Some(live) = live.filter(|_| frame.updates_progress()) {
            frame.stored_progress = shelf.progress(&live.record().tenant, live.id());
        }
        let daemon = self.roster.daemon_of(frame.session);
        let speaker = daemon.and_then(|daemon| self.roster.get(daemon));
        // Whoever is not heard needs no answer from the disk.
        if let Some(speaker) = speaker.filter(|_| live.is_none()) {
            frame.finished = shelf.finished_in_scope(&speaker.scope, frame.frame_ref.task);
        }
    }

    fn stored_submission(
        &self,
        submit: &SubmitTask,
        shelf: &impl StoredTasks,
    ) -> StoredLookup<PriorSubmission> {
        let tenant = &submit.spec.tenant;
        let Some(key) = submit.spec.idempotency_key.as_deref() else {
            return Ok(None);
        };
        let Some(known) = shelf.idempotency(tenant, key)? else {
            return Ok(None);
        };
        let over = (!self.is_live(known.task)).then(|| shelf.finished(tenant, known.task));
        Ok(Some(PriorSubmission {
            task: known.task,
            digest: known.digest,
            finished: over.flatten().map(|finished| finished.record),
        }))
    }
}

impl AttemptFrame {
    fn updates_progress(&self) -> bool {
        matches!(self.body, FrameBody::Goal(_))
    }
}

impl CoreCommand {
    /// The task whose stored progress it adds to: all that was handed over before must be readable first.
    pub fn progress_task(&self) -> Option<TaskId> {
        match self {
            CoreCommand::UpdateProgress { task, .. } | CoreCommand::Block { task, .. } => {
                Some(*task)
            }
            CoreCommand::Frame(frame) => frame.updates_progress().then_some(frame.frame_ref.task),
            CoreCommand::AgentLeaseCall(call) => call.verb.updates_progress().then_some(call.task),
            CoreCommand::Submit(_)
            | CoreCommand::Start { .. }
            | CoreCommand::Claim { .. }
            | CoreCommand::PickUp { .. }
            | CoreCommand::Cancel { .. }
            | CoreCommand::Operate(_)
            | CoreCommand::Answer { .. }
            | CoreCommand::Resume { .. }
            | CoreCommand::SchedulerStatus { .. }
            | CoreCommand::OperateDaemon(_)
            | CoreCommand::PauseScheduler { .. }
            | CoreCommand::UnpauseScheduler { .. }
            | CoreCommand::ReleaseInherited { .. }
            | CoreCommand::ForgetDaemon { .. }
            | CoreCommand::Inspect { .. }
            | CoreCommand::ListParked { .. }
            | CoreCommand::ListDaemons { .. }
            | CoreCommand::FindDaemon { .. }
            | CoreCommand::RemoveFinished { .. }
            | CoreCommand::ForgetDaemons { .. }
            | CoreCommand::SuspendDispatch { .. }
            | CoreCommand::SessionOpened { .. }
            | CoreCommand::SessionClosed { .. }
            | CoreCommand::Heartbeat { .. }
            | CoreCommand::Activity(_)
            | CoreCommand::ExtendLeases { .. }
            | CoreCommand::DeliveryFailed { .. }
            | CoreCommand::Tick => None,
        }
    }

    /// Tasks whose stored record it may need.
    pub fn named_tasks(&self) -> Vec<TaskId> {
        match self {
            CoreCommand::Cancel { task, .. }
            | CoreCommand::Answer { task, .. }
            | CoreCommand::UpdateProgress { task, .. }
            | CoreCommand::Block { task, .. }
            | CoreCommand::Resume { task, .. }
            | CoreCommand::PickUp { task, .. } => vec![*task],
            CoreCommand::Operate(operate) => vec![operate.task],
            CoreCommand::Claim { task, .. } => task.iter().copied().collect(),
            CoreCommand::AgentLeaseCall(call) => vec![call.task],
            CoreCommand::Frame(frame) => vec![frame.frame_ref.task],
            CoreCommand::SessionOpened { hello, .. } => hello
                .active
                .iter()
                .map(|active| active.frame_ref.task)
                .collect(),
            CoreCommand::RemoveFinished { tasks, .. } => {
                tasks.iter().map(|(_, task)| *task).collect()
            }
            // The core knows the keys of live tasks; one that ended in this very turn is answered as it was before.
            CoreCommand::Submit(_)
            | CoreCommand::Start { .. }
            | CoreCommand::PauseScheduler { .. }
            | CoreCommand::UnpauseScheduler { .. }
            | CoreCommand::SchedulerStatus { .. }
            | CoreCommand::OperateDaemon(_)
            | CoreCommand::ReleaseInherited { .. }
            | CoreCommand::SuspendDispatch { .. }
            | CoreCommand::ForgetDaemon { .. }
            | CoreCommand::Inspect { .. }
            | CoreCommand::ListParked { .. }
            | CoreCommand::ListDaemons { .. }
            | CoreCommand::FindDaemon { .. }
            | CoreCommand::ForgetDaemons { .. }
            | CoreCommand::SessionClosed { .. }
            | CoreCommand::Heartbeat { .. }
            | CoreCommand::Activity(_)
            | CoreCommand::ExtendLeases { .. }
            | CoreCommand::DeliveryFailed { .. }
            | CoreCommand::Tick => Vec::new(),
        }
    }
}
