//! What the core needs of the store. It holds live tasks only: where an input names a finished
//! task, an idempotency key or a task's progress, the record is read first. How it is read is the
//! shell's matter (`StoredTasks`).

use std::sync::Arc;

use crate::ids::{TaskId, TenantId, TenantScope};
use crate::record::{IdempotencyRecord, ProgressRecord, TaskRecord};
use crate::task::spec::TaskSpec;

/// The record exists and cannot be decoded. It must not count as absent, or it would be
/// overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadableRecord;

/// What the store has of something, if it has it.
pub type StoredLookup<T> = Result<Option<T>, UnreadableRecord>;

/// What is known of a task that a daemon lists in its Hello.
#[derive(Clone, Debug, Default)]
pub enum TaskLookup {
    /// Not looked up yet, or it was open then and may have ended since.
    #[default]
    Open,
    /// It does not exist; a task that does not exist never appears later, so it is not looked up
    /// again.
    Missing,
    Finished(FinishedTask),
}

impl TaskLookup {
    pub fn from_finished(found: Option<FinishedTask>) -> Self {
        found.map_or(TaskLookup::Missing, TaskLookup::Finished)
    }
}

/// A finished task, loaded for an input that names it.
#[derive(Clone, Debug)]
pub struct FinishedTask {
    pub record: Arc<TaskRecord>,
    pub spec: Arc<TaskSpec>,
}

/// A finished task with what is stored under other keys than its own.
#[derive(Clone, Debug)]
pub struct RemovableTask {
    pub record: Arc<TaskRecord>,
    pub idempotency_key: Option<String>,
    /// Names a long prompt that is stored beside the records; the core only returns it.
    pub body: Option<[u8; 32]>,
}

/// What is stored under an idempotency key.
#[derive(Debug)]
pub struct PriorSubmission {
    pub task: TaskId,
    pub digest: [u8; 32],
    /// The task's record, if it is finished.
    pub finished: Option<Arc<TaskRecord>>,
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

/// The stored records that a command must be given.
#[derive(Debug, Default)]
pub struct StoredNeeds {
    /// Its finished record, where it is not live.
    task: Option<(TenantId, TaskId)>,
    /// The progress of `task`, where it is live.
    adds_progress: bool,
    idempotency_key: Option<(TenantId, String)>,
    removable: Vec<(TenantId, TaskId)>,
}

impl StoredNeeds {
    pub(crate) fn task(tenant: &TenantId, task: TaskId) -> Self {
        Self {
            task: Some((tenant.clone(), task)),
            ..Self::default()
        }
    }

    pub(crate) fn task_and_progress(tenant: &TenantId, task: TaskId) -> Self {
        Self {
            adds_progress: true,
            ..Self::task(tenant, task)
        }
    }

    /// What was submitted before under the same idempotency key.
    pub(crate) fn submission(spec: &TaskSpec) -> Self {
        let key = spec.idempotency_key.clone();
        Self {
            idempotency_key: key.map(|key| (spec.tenant.clone(), key)),
            ..Self::default()
        }
    }

    pub(crate) fn removable(tasks: &[(TenantId, TaskId)]) -> Self {
        Self {
            removable: tasks.to_vec(),
            ..Self::default()
        }
    }

    /// The task of an idempotency key is not among them: the core has the keys of live tasks, and a
    /// task that ended in the same turn is answered as it was before.
    pub(crate) fn named_tasks(&self) -> Vec<TaskId> {
        let named = self.task.iter().chain(&self.removable);
        named.map(|(_, task)| *task).collect()
    }

    pub(crate) fn progress_task(&self) -> Option<TaskId> {
        let task = self.task.as_ref().filter(|_| self.adds_progress);
        task.map(|(_, task)| *task)
    }

    /// Reads only what is not live.
    pub(crate) fn load(
        &self,
        is_live: impl Fn(TaskId) -> bool,
        store: &dyn StoredTasks,
    ) -> StoredRecords {
        let mut records = StoredRecords::default();
        match &self.task {
            Some((tenant, task)) if !is_live(*task) => {
                records.finished = store.finished(tenant, *task);
            }
            Some((tenant, task)) if self.adds_progress => {
                records.progress = store.progress(tenant, *task);
            }
            Some(_) | None => {}
        }
        if let Some((tenant, key)) = &self.idempotency_key {
            records.prior_submission = prior_submission(tenant, key, &is_live, store);
        }
        let over = self.removable.iter().filter(|(_, task)| !is_live(*task));
        let removable = over.filter_map(|(tenant, task)| store.removable(tenant, *task));
        records.removable.extend(removable);
        records
    }
}

fn prior_submission(
    tenant: &TenantId,
    key: &str,
    is_live: impl Fn(TaskId) -> bool,
    store: &dyn StoredTasks,
) -> StoredLookup<PriorSubmission> {
    let Some(known) = store.idempotency(tenant, key)? else {
        return Ok(None);
    };
    let over = (!is_live(known.task)).then(|| store.finished(tenant, known.task));
    Ok(Some(PriorSubmission {
        task: known.task,
        digest: known.digest,
        finished: over.flatten().map(|finished| finished.record),
    }))
}

/// What the store had of it.
#[derive(Debug)]
pub struct StoredRecords {
    pub(crate) finished: Option<FinishedTask>,
    pub(crate) progress: StoredLookup<Arc<ProgressRecord>>,
    pub(crate) prior_submission: StoredLookup<PriorSubmission>,
    pub(crate) removable: Vec<RemovableTask>,
}

impl Default for StoredRecords {
    fn default() -> Self {
        Self {
            finished: None,
            progress: Ok(None),
            prior_submission: Ok(None),
            removable: Vec::new(),
        }
    }
}
