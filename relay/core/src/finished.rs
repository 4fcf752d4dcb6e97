//! The core holds live tasks only. Where an input names a finished one, what is stored of it is loaded first; which input
//! needs what is said here, how it is read is the shell's.

use crate::core::Core;
use crate::id::{TaskId, TenantId, TenantScope};
use crate::input::{Finished, Input, Prior, Removable, Submit};
use crate::record::IdempotencyRecord;

/// What is stored of tasks that the core does not hold.
pub trait Shelf {
    /// `None` also where the task is not finished.
    fn finished(&self, tenant: &TenantId, task: TaskId) -> Option<Finished>;

    /// The same for a daemon, whose frames do not name the tenant.
    fn finished_within(&self, scope: &TenantScope, task: TaskId) -> Option<Finished>;

    fn removable(&self, tenant: &TenantId, task: TaskId) -> Option<Removable>;

    fn idempotency(&self, tenant: &TenantId, key: &str) -> Option<IdempotencyRecord>;
}

impl Core {
    #[expect(
        clippy::too_many_lines,
        reason = "one arm per input, and each only names what it needs"
    )]
    /// Fills in what the input needs from the shelf. Looks there only where the core does not have the task.
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
            Input::Held(call) => {
                if !self.is_live(call.task) {
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
            } => {
                if !self.is_live(*task) {
                    *finished = shelf.finished(tenant, *task);
                }
            }
            Input::Operate(operate) => {
                if !self.is_live(operate.task) {
                    operate.finished = shelf.finished(&operate.tenant, operate.task);
                }
            }
            Input::Frame(frame) => {
                let daemon = self.roster.daemon_of(frame.session);
                let speaker = daemon.and_then(|daemon| self.roster.get(daemon));
                // Whoever is not heard needs no answer from the disk.
                if let Some(speaker) = speaker.filter(|_| !self.is_live(frame.re.task)) {
                    frame.finished = shelf.finished_within(&speaker.scope, frame.re.task);
                }
            }
            Input::SessionOpened { hello, .. } => {
                for active in &mut hello.active {
                    // The session may have looked already; only a task that ended since is read here.
                    if active.finished.is_none() && !self.is_live(active.re.task) {
                        active.finished = shelf.finished_within(&hello.scope, active.re.task);
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
            | Input::DisconnectDaemon { .. }
            | Input::ReleaseInherited { .. }
            | Input::DrainDaemon { .. }
            | Input::UndrainDaemon { .. }
            | Input::HoldDispatch { .. }
            | Input::ForgetDaemon { .. }
            | Input::Inspect { .. }
            | Input::ListDaemons { .. }
            | Input::ForgetDaemons { .. }
            | Input::SessionClosed { .. }
            | Input::Heartbeat { .. }
            | Input::Activity(_)
            | Input::Hold { .. }
            | Input::DeliveryFailed { .. }
            | Input::Tick => {}
        }
    }

    fn stored_prior(&self, submit: &Submit, shelf: &impl Shelf) -> Option<Prior> {
        let tenant = &submit.spec.tenant;
        let key = submit.spec.idempotency_key.as_deref()?;
        let known = shelf.idempotency(tenant, key)?;
        let over = (!self.is_live(known.task)).then(|| shelf.finished(tenant, known.task));
        Some(Prior {
            task: known.task,
            digest: known.digest,
            finished: over.flatten().map(|finished| finished.record),
        })
    }
}

impl Input {
    /// Tasks whose stored record it may need.
    pub fn named_tasks(&self) -> Vec<TaskId> {
        match self {
            Input::Cancel { task, .. } | Input::Answer { task, .. } => vec![*task],
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
            | Input::DisconnectDaemon { .. }
            | Input::ReleaseInherited { .. }
            | Input::DrainDaemon { .. }
            | Input::UndrainDaemon { .. }
            | Input::HoldDispatch { .. }
            | Input::ForgetDaemon { .. }
            | Input::Inspect { .. }
            | Input::ListDaemons { .. }
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
