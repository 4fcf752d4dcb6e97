//! A store in memory. It asserts that the core never sends an invalid change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{AttemptId, DaemonId, TaskId, TenantId, TenantScope};
use crate::io::effects::RecordChange;
use crate::io::stored_lookup::{FinishedTask, RemovableTask};
use crate::record::{
    CheckpointRecord, DaemonChangesRecord, DaemonRecord, FenceRecord, ForgottenDaemonsRecord,
    IdempotencyRecord, PausesRecord, ProgressRecord, SchedulerRecord, TaskRecord,
};
use crate::recovery::damage::RecordDamage;
use crate::task::spec::TaskSpec;
use crate::{RecoveredState, StoredLookup, StoredTasks, UnreadableRecord};

#[derive(Default)]
pub(in crate::tests) struct FakeStore {
    pub(in crate::tests) specs: BTreeMap<TaskId, Arc<TaskSpec>>,
    pub(in crate::tests) live: BTreeMap<TaskId, Arc<TaskRecord>>,
    pub(in crate::tests) done: BTreeMap<TaskId, Arc<TaskRecord>>,
    pub(in crate::tests) fences: BTreeMap<AttemptId, FenceRecord>,
    pub(super) daemons: BTreeMap<DaemonId, Arc<DaemonRecord>>,
    pub(in crate::tests) keys: BTreeMap<(TenantId, String), IdempotencyRecord>,
    pub(in crate::tests) scheduler: SchedulerRecord,
    pub(in crate::tests) forgotten: ForgottenDaemonsRecord,
    /// Tasks whose stored progress is unreadable.
    pub(in crate::tests) damaged: BTreeSet<TaskId>,
    pub(in crate::tests) daemon_changes: DaemonChangesRecord,
    pub(in crate::tests) progress: BTreeMap<TaskId, Arc<ProgressRecord>>,
    pub(in crate::tests) checkpoints: BTreeMap<(TaskId, u64), Arc<CheckpointRecord>>,
    pub(in crate::tests) pauses: PausesRecord,
    /// No idempotency key can be read.
    pub(in crate::tests) keys_damaged: bool,
    /// Damage that the next boot reports.
    pub(in crate::tests) damage: RecordDamage,
}

impl FakeStore {
    /// The progress lookup that the shell would pass to the core.
    pub(in crate::tests) fn stored_progress(
        &self,
        task: TaskId,
    ) -> StoredLookup<Arc<ProgressRecord>> {
        if self.damaged.contains(&task) {
            return Err(UnreadableRecord);
        }
        Ok(self.progress.get(&task).cloned())
    }

    /// The state that a boot would recover.
    pub(super) fn recovered(&self) -> RecoveredState {
        let task =
            |(id, record): (&TaskId, &Arc<TaskRecord>)| (self.specs[id].clone(), record.clone());
        RecoveredState {
            tasks: self.live.iter().map(task).collect(),
            daemons: self.daemons.values().cloned().collect(),
            scheduler: self.scheduler.clone(),
            forgotten: self.forgotten.clone(),
            daemon_changes: self.daemon_changes.clone(),
            pauses: self.pauses.clone(),
            fences: self.fences.values().cloned().collect(),
            idempotency: self
                .keys
                .iter()
                .map(|((t, k), r)| (t.clone(), k.clone(), r.clone()))
                .collect(),
            damage: self.damage.clone(),
        }
    }

    pub(in crate::tests) fn finished(&self, task: TaskId) -> Option<FinishedTask> {
        let record = self.done.get(&task)?.clone();
        Some(FinishedTask {
            record,
            spec: self.specs[&task].clone(),
        })
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each kind of change")]
    pub(super) fn apply(&mut self, write: RecordChange) {
        match write {
            RecordChange::PutSpec { task, spec } => {
                assert!(
                    self.specs.insert(task, spec).is_none(),
                    "a spec is written once"
                );
            }
            RecordChange::PutLive(record) => {
                assert!(
                    !self.done.contains_key(&record.task),
                    "a finished task became live without Reopen"
                );
                self.live.insert(record.task, record);
            }
            RecordChange::PutDone(record) => {
                self.live.remove(&record.task);
                self.done.insert(record.task, record);
            }
            RecordChange::Reopen(record) => {
                assert!(
                    self.done.remove(&record.task).is_some(),
                    "only finished tasks are reopened"
                );
                self.live.insert(record.task, record);
            }
            RecordChange::PutIdempotency {
                tenant,
                key,
                record,
            } => {
                self.keys.insert((tenant, key), record);
            }
            RecordChange::PutDaemon(record) => {
                self.daemons.insert(record.daemon, record);
            }
            RecordChange::PutScheduler(record) => self.scheduler = record,
            RecordChange::PutFence(record) => {
                self.fences.insert(record.attempt, record);
            }
            RecordChange::DropFence(attempt) => {
                self.fences.remove(&attempt);
            }
            RecordChange::RemoveTask {
                tenant,
                task,
                idempotency_key,
                body: _,
                checkpoints: _,
            } => {
                self.progress.remove(&task);
                self.checkpoints.retain(|(of, _), _| *of != task);
                assert!(
                    !self.live.contains_key(&task),
                    "a live task is never removed"
                );
                assert!(
                    self.done.remove(&task).is_some(),
                    "only finished tasks are removed"
                );
                self.specs.remove(&task);
                if let Some(key) = idempotency_key {
                    self.keys.remove(&(tenant, key));
                }
            }
            RecordChange::PutProgress(record) => {
                self.progress.insert(record.task, record);
            }
            RecordChange::PutCheckpoint(record) => {
                let first = self
                    .checkpoints
                    .insert((record.task, record.number), record)
                    .is_none();
                assert!(first, "a checkpoint is written once");
            }
            RecordChange::DropCheckpoint { task, number, .. } => {
                assert!(self.checkpoints.remove(&(task, number)).is_some());
            }
            RecordChange::PutForgotten(record) => self.forgotten = record,
            RecordChange::PutDaemonChanges(record) => self.daemon_changes = record,
            RecordChange::PutPauses(record) => self.pauses = record,
            RecordChange::DropDaemon(record) => {
                self.daemons.remove(&record.daemon);
            }
        }
    }
}

/// Filters by no tenant: the core checks it itself.
impl StoredTasks for FakeStore {
    fn finished(&self, _tenant: &TenantId, task: TaskId) -> Option<FinishedTask> {
        FakeStore::finished(self, task)
    }

    fn finished_in_scope(&self, _scope: &TenantScope, task: TaskId) -> Option<FinishedTask> {
        FakeStore::finished(self, task)
    }

    fn removable(&self, _tenant: &TenantId, task: TaskId) -> Option<RemovableTask> {
        let finished = FakeStore::finished(self, task)?;
        Some(RemovableTask {
            idempotency_key: finished.spec.idempotency_key.clone(),
            record: finished.record,
            body: None,
        })
    }

    fn idempotency(&self, tenant: &TenantId, key: &str) -> StoredLookup<IdempotencyRecord> {
        if self.keys_damaged {
            return Err(UnreadableRecord);
        }
        Ok(self.keys.get(&(tenant.clone(), key.to_owned())).cloned())
    }

    fn progress(&self, _tenant: &TenantId, task: TaskId) -> StoredLookup<Arc<ProgressRecord>> {
        self.stored_progress(task)
    }
}
