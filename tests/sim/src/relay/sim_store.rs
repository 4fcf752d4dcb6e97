//! A store with the written state (`view`) and the state that a crash leaves (`durable`), which
//! is always a prefix of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use baton_core::ids::{AttemptId, DaemonId, TaskId, TenantId, TenantScope};
use baton_core::io::effects::RecordChange;
use baton_core::io::stored_lookup::{FinishedTask, RemovableTask};
use baton_core::record::{
    AttemptRecord, CheckpointRecord, DaemonChangesRecord, DaemonRecord, FenceRecord,
    ForgottenDaemonsRecord, IdempotencyRecord, PausesRecord, ProgressRecord, SchedulerRecord,
    TaskRecord,
};
use baton_core::task::spec::TaskSpec;
use baton_core::{RecoveredState, StoredLookup, StoredTasks};

use crate::checks::record_change;

#[derive(Clone, Debug, Default)]
pub(crate) struct StoreState {
    pub(crate) specs: BTreeMap<TaskId, Arc<TaskSpec>>,
    pub(crate) live: BTreeMap<TaskId, Arc<TaskRecord>>,
    pub(crate) done: BTreeMap<TaskId, Arc<TaskRecord>>,
    /// Tasks that retention removed, in their last state: they cannot be loaded, but earlier
    /// statements about them stay true.
    pub(crate) removed: BTreeMap<TaskId, Arc<TaskRecord>>,
    pub(crate) fences: BTreeMap<AttemptId, FenceRecord>,
    pub(crate) daemons: BTreeMap<DaemonId, Arc<DaemonRecord>>,
    idempotency_keys: BTreeMap<(TenantId, String), IdempotencyRecord>,
    pub(crate) scheduler: SchedulerRecord,
    forgotten: ForgottenDaemonsRecord,
    daemon_changes: DaemonChangesRecord,
    pub(crate) progress: BTreeMap<TaskId, Arc<ProgressRecord>>,
    pub(crate) checkpoints: BTreeMap<(TaskId, u64), Arc<CheckpointRecord>>,
    pub(crate) pauses: PausesRecord,
}

#[derive(Debug, Default)]
pub(crate) struct SimStore {
    pub(crate) view: StoreState,
    pub(crate) durable: StoreState,
    pending: VecDeque<(u64, Vec<RecordChange>)>,
    last_seq: u64,
    /// Backups, oldest first.
    backups: Vec<StoreState>,
}

impl StoreState {
    pub(crate) fn record(&self, task: TaskId) -> Option<&Arc<TaskRecord>> {
        let stored = self.live.get(&task).or_else(|| self.done.get(&task));
        stored.or_else(|| self.removed.get(&task))
    }

    pub(crate) fn attempt(&self, task: TaskId, attempt: AttemptId) -> Option<&AttemptRecord> {
        self.record(task)?.attempt(attempt)
    }

    /// By the attempt alone. A linear search, so for rare messages only.
    pub(crate) fn find_attempt(&self, attempt: AttemptId) -> Option<&AttemptRecord> {
        let records = self.live.values().chain(self.done.values());
        let records = records.chain(self.removed.values());
        records.filter_map(|record| record.attempt(attempt)).next()
    }

    fn apply(&mut self, write: &RecordChange) {
        match write {
            RecordChange::PutSpec { task, spec } => {
                self.specs.insert(*task, Arc::clone(spec));
            }
            RecordChange::PutLive(record) => {
                self.live.insert(record.task, Arc::clone(record));
            }
            RecordChange::PutDone(record) => {
                self.live.remove(&record.task);
                self.done.insert(record.task, Arc::clone(record));
            }
            RecordChange::Reopen(record) => {
                self.done.remove(&record.task);
                self.live.insert(record.task, Arc::clone(record));
            }
            RecordChange::PutIdempotency {
                tenant,
                key,
                record,
            } => {
                self.idempotency_keys
                    .insert((tenant.clone(), key.clone()), record.clone());
            }
            RecordChange::PutDaemon(record) => {
                self.daemons.insert(record.daemon, Arc::clone(record));
            }
            RecordChange::PutScheduler(record) => self.scheduler = record.clone(),
            RecordChange::PutFence(record) => {
                self.fences.insert(record.attempt, record.clone());
            }
            RecordChange::DropFence(attempt) => {
                self.fences.remove(attempt);
            }
            RecordChange::RemoveTask {
                tenant,
                task,
                idempotency_key,
                body: _,
                checkpoints: _,
            } => {
                self.progress.remove(task);
                self.checkpoints.retain(|(of, _), _| of != task);
                self.specs.remove(task);
                self.removed
                    .extend(self.done.remove(task).map(|record| (*task, record)));
                if let Some(key) = idempotency_key {
                    self.idempotency_keys.remove(&(tenant.clone(), key.clone()));
                }
            }
            RecordChange::PutProgress(record) => {
                self.progress.insert(record.task, Arc::clone(record));
            }
            RecordChange::PutCheckpoint(record) => {
                let at = (record.task, record.number);
                self.checkpoints.insert(at, Arc::clone(record));
            }
            RecordChange::DropCheckpoint { task, number, .. } => {
                self.checkpoints.remove(&(*task, *number));
            }
            RecordChange::PutForgotten(record) => self.forgotten = record.clone(),
            RecordChange::PutDaemonChanges(record) => self.daemon_changes = record.clone(),
            RecordChange::PutPauses(record) => self.pauses = record.clone(),
            RecordChange::DropDaemon(record) => {
                self.daemons.remove(&record.daemon);
            }
        }
    }

    /// The state that the shell passes to the core at boot.
    pub(crate) fn recovered_state(&self) -> RecoveredState {
        let mut recovered = RecoveredState {
            daemons: self.daemons.values().cloned().collect(),
            scheduler: self.scheduler.clone(),
            forgotten: self.forgotten.clone(),
            daemon_changes: self.daemon_changes.clone(),
            pauses: self.pauses.clone(),
            fences: self.fences.values().cloned().collect(),
            ..RecoveredState::default()
        };
        for (id, record) in &self.live {
            let spec = Arc::clone(&self.specs[id]);
            if let Some(key) = &spec.idempotency_key
                && let Some(known) = self
                    .idempotency_keys
                    .get(&(spec.tenant.clone(), key.clone()))
            {
                let entry = (spec.tenant.clone(), key.clone(), known.clone());
                recovered.idempotency.push(entry);
            }
            recovered.tasks.push((spec, Arc::clone(record)));
        }
        recovered
    }
}

impl StoredTasks for StoreState {
    fn finished(&self, tenant: &TenantId, task: TaskId) -> Option<FinishedTask> {
        let record = self.done.get(&task).filter(|r| r.tenant == *tenant)?;
        Some(FinishedTask {
            record: Arc::clone(record),
            spec: Arc::clone(self.specs.get(&task)?),
        })
    }

    fn finished_in_scope(&self, scope: &TenantScope, task: TaskId) -> Option<FinishedTask> {
        let tenant = &self.done.get(&task)?.tenant;
        scope.covers(tenant).then(|| self.finished(tenant, task))?
    }

    fn removable(&self, tenant: &TenantId, task: TaskId) -> Option<RemovableTask> {
        let FinishedTask { record, spec } = self.finished(tenant, task)?;
        let is_its_own = |key: &String| {
            let known = self.idempotency(tenant, key);
            matches!(known, Ok(Some(known)) if known.task == task)
        };
        Some(RemovableTask {
            record,
            idempotency_key: spec.idempotency_key.clone().filter(is_its_own),
            body: None,
        })
    }

    fn progress(&self, tenant: &TenantId, task: TaskId) -> StoredLookup<Arc<ProgressRecord>> {
        let known = self.progress.get(&task);
        Ok(known.filter(|known| known.tenant == *tenant).cloned())
    }

    fn idempotency(&self, tenant: &TenantId, key: &str) -> StoredLookup<IdempotencyRecord> {
        Ok(self
            .idempotency_keys
            .get(&(tenant.clone(), key.to_owned()))
            .cloned())
    }
}

impl SimStore {
    /// Visible at once, durable later. Each change of a record is checked here.
    pub(crate) fn apply_checked(&mut self, write: &RecordChange) {
        record_change::check_record_change(&self.view, write);
        self.view.apply(write);
    }

    pub(crate) fn append(&mut self, writes: Vec<RecordChange>) -> u64 {
        self.last_seq += 1;
        self.pending.push_back((self.last_seq, writes));
        self.last_seq
    }

    pub(crate) fn commit(&mut self, upto: u64) {
        while let Some((seq, _)) = self.pending.front() {
            if *seq > upto {
                return;
            }
            if let Some((_, writes)) = self.pending.pop_front() {
                writes.iter().for_each(|write| self.durable.apply(write));
            }
        }
    }

    pub(crate) fn back_up(&mut self) {
        self.backups.push(self.durable.clone());
    }

    pub(crate) fn backup_count(&self) -> usize {
        self.backups.len()
    }

    /// A backup replaces the data; everything since is lost, including later backups.
    pub(crate) fn restore_backup(&mut self, copy: usize) {
        self.backups.truncate(copy + 1);
        if let Some(copy) = self.backups.last() {
            self.durable = copy.clone();
            self.view = copy.clone();
        }
    }

    pub(crate) fn uncommitted(&self) -> usize {
        self.pending.len()
    }

    /// The process has ended: `kept` more appends had reached the disk, the rest is lost.
    pub(crate) fn crash(&mut self, kept: usize) {
        let kept: Vec<_> = self.pending.drain(..).take(kept).collect();
        for (_, writes) in kept {
            writes.iter().for_each(|write| self.durable.apply(write));
        }
        self.view = self.durable.clone();
    }
}
