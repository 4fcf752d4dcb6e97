//! The core holds live tasks only. Where an input names a finished one, its record is loaded here and passed in.

use std::sync::Arc;

use baton_core::id::{SessionId, TaskId, TenantId, TenantScope};
use baton_core::input::{Input, Prior, Submit};
use baton_core::record::TaskRecord;

use crate::reader::Reader;

/// Fills in what the input needs from the store. Reads the disk only where the core does not have the task.
pub(super) fn complete<'a>(
    input: &mut Input,
    live: impl Fn(TaskId) -> bool,
    scope: impl Fn(&SessionId) -> Option<&'a TenantScope>,
    reader: &Reader,
) {
    match input {
        Input::Submit(submit) => submit.prior = prior(submit, &live, reader),
        Input::Cancel {
            tenant,
            task,
            finished,
            ..
        }
        | Input::Retry {
            tenant,
            task,
            finished,
            ..
        } => {
            if !live(*task) {
                *finished = reader.finished(tenant, *task);
            }
        }
        Input::Frame(frame) => {
            if !live(frame.re.task) {
                frame.finished = scope(&frame.session)
                    .and_then(|scope| reader.finished_within(scope, frame.re.task));
            }
        }
        Input::SessionOpened { hello, .. } => {
            for active in &mut hello.active {
                // The session has looked already; only a task that ended since is read here.
                if active.finished.is_none() && !live(active.re.task) {
                    active.finished = reader.finished_within(&hello.scope, active.re.task);
                }
            }
        }
        Input::RemoveFinished {
            tasks, finished, ..
        } => {
            // Retention has just read these records, so they are in memory.
            let over = tasks.iter().filter(|(_, task)| !live(*task));
            finished.extend(over.filter_map(|(tenant, task)| reader.removable(tenant, *task)));
        }
        Input::Answer { .. }
        | Input::PauseTask { .. }
        | Input::UnpauseTask { .. }
        | Input::PauseScheduler { .. }
        | Input::UnpauseScheduler { .. }
        | Input::ReleaseInherited { .. }
        | Input::DrainDaemon { .. }
        | Input::UndrainDaemon { .. }
        | Input::ForgetDaemon { .. }
        | Input::Inspect { .. }
        | Input::ListDaemons { .. }
        | Input::ForgetDaemons { .. }
        | Input::HoldDispatch { .. }
        | Input::SessionClosed { .. }
        | Input::Heartbeat { .. }
        | Input::Activity(_)
        | Input::Hold { .. }
        | Input::DeliveryFailed { .. }
        | Input::Tick => {}
    }
}

/// Tasks whose stored record the input may need.
pub(super) fn named(input: &Input) -> Vec<TaskId> {
    match input {
        Input::Cancel { task, .. } | Input::Retry { task, .. } => vec![*task],
        Input::Frame(frame) => vec![frame.re.task],
        Input::SessionOpened { hello, .. } => {
            hello.active.iter().map(|active| active.re.task).collect()
        }
        Input::RemoveFinished { tasks, .. } => tasks.iter().map(|(_, task)| *task).collect(),
        // The core knows the keys of live tasks; one that ended in this very turn is answered as it was before.
        Input::Submit(_)
        | Input::Answer { .. }
        | Input::PauseTask { .. }
        | Input::UnpauseTask { .. }
        | Input::PauseScheduler { .. }
        | Input::UnpauseScheduler { .. }
        | Input::ReleaseInherited { .. }
        | Input::DrainDaemon { .. }
        | Input::UndrainDaemon { .. }
        | Input::ForgetDaemon { .. }
        | Input::Inspect { .. }
        | Input::ListDaemons { .. }
        | Input::ForgetDaemons { .. }
        | Input::HoldDispatch { .. }
        | Input::SessionClosed { .. }
        | Input::Heartbeat { .. }
        | Input::Activity(_)
        | Input::Hold { .. }
        | Input::DeliveryFailed { .. }
        | Input::Tick => Vec::new(),
    }
}

fn prior(submit: &Submit, live: &impl Fn(TaskId) -> bool, reader: &Reader) -> Option<Prior> {
    let key = submit.spec.idempotency_key.as_deref()?;
    let known = reader.idempotency(&submit.spec.tenant, key)?;
    let finished = if live(known.task) {
        None
    } else {
        finished_record(reader, &submit.spec.tenant, known.task)
    };
    Some(Prior {
        task: known.task,
        digest: known.digest,
        finished,
    })
}

fn finished_record(reader: &Reader, tenant: &TenantId, task: TaskId) -> Option<Arc<TaskRecord>> {
    reader
        .finished(tenant, task)
        .map(|finished| finished.record)
}
