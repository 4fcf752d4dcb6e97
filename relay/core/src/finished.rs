//! The core holds live tasks only. Where an input names a finished one, what is stored of it is loaded first; which input
//! needs what is said here, how it is read is the shell's.

use std::sync::Arc;

use crate::core::Core;
use crate::id::{TaskId, TenantId, TenantScope};
use crate::input::{Finished, Frame, FrameBody, Input, Prior, Removable, Submit};
use crate::record::{IdempotencyRecord, ProgressRecord};

/// It is there and means nothing: damage that must not pass for nothing, or it would be written over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// What the store has of something, if it has it.
pub type Stored<T> = Result<Option<T>, Unreadable>;

/// What is known of a task that a daemon lists, when the core hears of it.
#[derive(Clone, Debug, Default)]
pub enum Looked {
    /// Nobody could look yet, or it was open then and may have ended since.
    #[default]
    Open,
    /// It is not there, and what is not there does not come back: nobody has to look again.
    Missing,
    Finished(Finished),
}

impl Looked {
    pub fn ended(found: Option<Finished>) -> Self {
        found.map_or(Looked::Missing, Looked::Finished)
    }
}

/// What is stored of tasks that the core does not hold.
pub trait Shelf {
    /// `None` also where the task is not finished.
    fn finished(&self, tenant: &TenantId, task: TaskId) -> Option<Finished>;

    /// The same for a daemon, whose frames do not name the tenant.
    fn finished_within(&self, scope: &TenantScope, task: TaskId) -> Option<Finished>;

    fn removable(&self, tenant: &TenantId, task: TaskId) -> Option<Removable>;

    fn idempotency(&self, tenant: &TenantId, key: &str) -> Stored<IdempotencyRecord>;

    /// Of a live task; the newest, durable or not.
    fn progress(&self, tenant: &TenantId, task: TaskId) -> Stored<Arc<ProgressRecord>>;
}

impl Core {
    /// Fills in what the input needs from the shelf. Looks there only where the core does not have the task.
    #[expect(
        clippy::too_many_lines,
        reason = "one arm per input, and each only names what it needs"
    )]
    pub fn load_finished(&self, input: &mut Input, shelf: &impl Shelf) {
        match input {
            Input::Submit(submit) | Input::Start { submit, .. } => {
                submit.prior = self.stored_prior(submit, shelf);
            }
            Input::Claim {
                agent,
                task,
                finished,
                ..
            } => {
                if let Some(task) = task.filter(|task| !self.is_live(*task)) {
                    *finished = shelf.finished(&agent.tenant, task);
                }
            }
            Input::PickUp {
                agent,
                task,
                finished,
                ..
            } => {
                if !self.is_live(*task) {
                    *finished = shelf.finished(&agent.tenant, *task);
                }
            }
            Input::Held(call) => {
                if self.is_live(call.task) {
                    if call.verb.adds_progress() {
                        call.known = shelf.progress(&call.agent.tenant, call.task);
                    }
                } else {
                    call.finished = shelf.finished(&call.agent.tenant, call.task);
                }
            }
            Input::Cancel {
                tenant,
                task,
                finished,
                ..
            }
            | Input::Answer {
                tenant,
                task,
                finished,
                ..
            }
            | Input::Resume {
                tenant,
                task,
                finished,
                ..
            } => {
                if !self.is_live(*task) {
                    *finished = shelf.finished(tenant, *task);
                }
            }
            Input::UpdateProgress {
                tenant,
                task,
                known,
                finished,
                ..
            }
            | Input::Block {
                tenant,
                task,
                known,
                finished,
                ..
            } => {
                if self.is_live(*task) {
                    *known = shelf.progress(tenant, *task);
                } else {
                    *finished = shelf.finished(tenant, *task);
                }
            }
            Input::Operate(operate) => {
                if !self.is_live(operate.task) {
                    operate.finished = shelf.finished(&operate.tenant, operate.task);
                }
            }
            Input::Frame(frame) => self.load_for_frame(frame, shelf),
            Input::SessionOpened { hello, .. } => {
                for active in &mut hello.active {
                    // The session has looked already; only a task that ended since is read here.
                    let open = matches!(active.looked, Looked::Open);
                    if open && !self.is_live(active.re.task) {
                        let found = shelf.finished_within(&hello.scope, active.re.task);
                        active.looked = Looked::ended(found);
                    }
                }
            }
            Input::RemoveFinished {
                tasks, finished, ..
            } => {
                let over = tasks.iter().filter(|(_, task)| !self.is_live(*task));
                finished.extend(over.filter_map(|(tenant, task)| shelf.removable(tenant, *task)));
            }
            Input::PauseScheduler { .. }
            | Input::UnpauseScheduler { .. }
            | Input::SchedulerStatus { .. }
            | Input::OperateDaemon(_)
            | Input::ReleaseInherited { .. }
            | Input::HoldDispatch { .. }
            | Input::ForgetDaemon { .. }
            | Input::Inspect { .. }
            | Input::ListParked { .. }
            | Input::ListDaemons { .. }
            | Input::FindDaemon { .. }
            | Input::ForgetDaemons { .. }
            | Input::SessionClosed { .. }
            | Input::Heartbeat { .. }
            | Input::Activity(_)
            | Input::Hold { .. }
            | Input::DeliveryFailed { .. }
            | Input::Tick => {}
        }
    }

    fn load_for_frame(&self, frame: &mut Frame, shelf: &impl Shelf) {
        let live = self.tasks.get(&frame.re.task);
        if let Some(live) = live.filter(|_| frame.adds_progress()) {
            frame.known = shelf.progress(&live.record().tenant, live.id());
        }
        let daemon = self.roster.daemon_of(frame.session);
        let speaker = daemon.and_then(|daemon| self.roster.get(daemon));
        // Whoever is not heard needs no answer from the disk.
        if let Some(speaker) = speaker.filter(|_| live.is_none()) {
            frame.finished = shelf.finished_within(&speaker.scope, frame.re.task);
        }
    }

    fn stored_prior(&self, submit: &Submit, shelf: &impl Shelf) -> Stored<Prior> {
        let tenant = &submit.spec.tenant;
        let Some(key) = submit.spec.idempotency_key.as_deref() else {
            return Ok(None);
        };
        let Some(known) = shelf.idempotency(tenant, key)? else {
            return Ok(None);
        };
        let over = (!self.is_live(known.task)).then(|| shelf.finished(tenant, known.task));
        Ok(Some(Prior {
            task: known.task,
            digest: known.digest,
            finished: over.flatten().map(|finished| finished.record),
        }))
    }
}

impl Frame {
    fn adds_progress(&self) -> bool {
        matches!(self.body, FrameBody::Goal(_))
    }
}

impl Input {
    /// The task whose stored progress it adds to: all that was handed over before must be readable first.
    pub fn progress_of(&self) -> Option<TaskId> {
        match self {
            Input::UpdateProgress { task, .. } | Input::Block { task, .. } => Some(*task),
            Input::Frame(frame) => frame.adds_progress().then_some(frame.re.task),
            Input::Held(call) => call.verb.adds_progress().then_some(call.task),
            Input::Submit(_)
            | Input::Start { .. }
            | Input::Claim { .. }
            | Input::PickUp { .. }
            | Input::Cancel { .. }
            | Input::Operate(_)
            | Input::Answer { .. }
            | Input::Resume { .. }
            | Input::SchedulerStatus { .. }
            | Input::OperateDaemon(_)
            | Input::PauseScheduler { .. }
            | Input::UnpauseScheduler { .. }
            | Input::ReleaseInherited { .. }
            | Input::ForgetDaemon { .. }
            | Input::Inspect { .. }
            | Input::ListParked { .. }
            | Input::ListDaemons { .. }
            | Input::FindDaemon { .. }
            | Input::RemoveFinished { .. }
            | Input::ForgetDaemons { .. }
            | Input::HoldDispatch { .. }
            | Input::SessionOpened { .. }
            | Input::SessionClosed { .. }
            | Input::Heartbeat { .. }
            | Input::Activity(_)
            | Input::Hold { .. }
            | Input::DeliveryFailed { .. }
            | Input::Tick => None,
        }
    }

    /// Tasks whose stored record it may need.
    pub fn named_tasks(&self) -> Vec<TaskId> {
        match self {
            Input::Cancel { task, .. }
            | Input::Answer { task, .. }
            | Input::UpdateProgress { task, .. }
            | Input::Block { task, .. }
            | Input::Resume { task, .. }
            | Input::PickUp { task, .. } => vec![*task],
            Input::Operate(operate) => vec![operate.task],
            Input::Claim { task, .. } => task.iter().copied().collect(),
            Input::Held(call) => vec![call.task],
            Input::Frame(frame) => vec![frame.re.task],
            Input::SessionOpened { hello, .. } => {
                hello.active.iter().map(|active| active.re.task).collect()
            }
            Input::RemoveFinished { tasks, .. } => tasks.iter().map(|(_, task)| *task).collect(),
            // The core knows the keys of live tasks; one that ended in this very turn is answered as it was before.
            Input::Submit(_)
            | Input::Start { .. }
            | Input::PauseScheduler { .. }
            | Input::UnpauseScheduler { .. }
            | Input::SchedulerStatus { .. }
            | Input::OperateDaemon(_)
            | Input::ReleaseInherited { .. }
            | Input::HoldDispatch { .. }
            | Input::ForgetDaemon { .. }
            | Input::Inspect { .. }
            | Input::ListParked { .. }
            | Input::ListDaemons { .. }
            | Input::FindDaemon { .. }
            | Input::ForgetDaemons { .. }
            | Input::SessionClosed { .. }
            | Input::Heartbeat { .. }
            | Input::Activity(_)
            | Input::Hold { .. }
            | Input::DeliveryFailed { .. }
            | Input::Tick => Vec::new(),
        }
    }
}
