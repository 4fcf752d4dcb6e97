//! Stored records that the core needs. The core keeps live tasks only: if an input names a
//! finished task, an idempotency key or a task's progress, the record is read first. The shell
//! reads it (`StoredTasks`).

use std::sync::Arc;

use crate::ids::{TaskId, TenantId, TenantScope};
use crate::record::{IdempotencyRecord, ProgressRecord, TaskRecord};
use crate::task::spec::TaskSpec;

/// The record exists but cannot be decoded. Treating it as absent would let the next write
/// overwrite it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadableRecord;

/// The result of a lookup: `None` if nothing is stored.
pub type StoredLookup<T> = Result<Option<T>, UnreadableRecord>;

/// The lookup of a task that a daemon lists in its Hello.
#[derive(Clone, Debug, Default)]
pub enum TaskLookup {
    /// Not looked up yet, or it was open at the lookup and may have ended since.
    #[default]
    Open,
    /// The task does not exist. A missing task never appears later, so it is not looked up
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

/// A finished task with the keys of its other stored data.
#[derive(Clone, Debug)]
pub struct RemovableTask {
    pub record: Arc<TaskRecord>,
    pub idempotency_key: Option<String>,
    /// The name of a long prompt that is stored beside the records. The core only passes it on.
    pub body: Option<[u8; 32]>,
}

/// The stored submission of an idempotency key.
#[derive(Debug)]
pub struct PriorSubmission {
    pub task: TaskId,
    pub digest: [u8; 32],
    /// The task's record, if it is finished.
    pub finished: Option<Arc<TaskRecord>>,
}

/// Read access to stored tasks that are not live.
pub trait StoredTasks {
    /// `None` also if the task is not finished.
    fn finished(&self, tenant: &TenantId, task: TaskId) -> Option<FinishedTask>;

    /// The same for a daemon, whose frames do not name the tenant.
    fn finished_in_scope(&self, scope: &TenantScope, task: TaskId) -> Option<FinishedTask>;

    fn removable(&self, tenant: &TenantId, task: TaskId) -> Option<RemovableTask>;

    fn idempotency(&self, tenant: &TenantId, key: &str) -> StoredLookup<IdempotencyRecord>;

    /// The newest progress of a live task, durable or not.
    fn progress(&self, tenant: &TenantId, task: TaskId) -> StoredLookup<Arc<ProgressRecord>>;
}

/// The stored records that a command needs.
#[derive(Debug, Default)]
pub struct StoredNeeds {
    /// The finished record, if the task is not live.
    task: Option<(TenantId, TaskId)>,
    /// Whether the progress of `task` is needed, if the task is live.
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

    /// The earlier submission with the same idempotency key.
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

    /// Tasks whose stored records must be current. The task of an idempotency key is not
    /// included: the core has the keys of live tasks, and a task that ended in the same turn
    /// gets the same answer as before.
    pub(crate) fn named_tasks(&self) -> Vec<TaskId> {
        let named = self.task.iter().chain(&self.removable);
        named.map(|(_, task)| *task).collect()
    }

    pub(crate) fn progress_task(&self) -> Option<TaskId> {
        let task = self.task.as_ref().filter(|_| self.adds_progress);
        task.map(|(_, task)| *task)
    }

    /// Reads the records of tasks that are not live.
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
        let finished = self.removable.iter().filter(|(_, task)| !is_live(*task));
        let removable = finished.filter_map(|(tenant, task)| store.removable(tenant, *task));
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
    let finished = (!is_live(known.task)).then(|| store.finished(tenant, known.task));
    Ok(Some(PriorSubmission {
        task: known.task,
        digest: known.digest,
        finished: finished.flatten().map(|finished| finished.record),
    }))
}

/// The stored records that were found.
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
