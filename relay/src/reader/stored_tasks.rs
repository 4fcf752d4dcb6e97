//! What the core asks of the store: of tasks that it does not hold, and of what it adds to.

use std::sync::Arc;

use baton_core::ids::{TaskId, TenantId, TenantScope};
use baton_core::io::stored_lookup::{FinishedTask, RemovableTask};
use baton_core::record::{IdempotencyRecord, ProgressRecord};
use baton_core::{StoredLookup, StoredTasks, TaskLookup, UnreadableRecord};

use super::RecordReader;
use crate::records;

impl RecordReader {
    /// For an attempt that a daemon lists, whoever's its task is.
    pub(crate) fn find_task_within(&self, scope: &TenantScope, task: TaskId) -> TaskLookup {
        let found = match scope {
            TenantScope::One(tenant) => self.newest_task(tenant, task),
            TenantScope::All => {
                let tenants = self.tenants();
                // A list that could not be read is empty as well, and proves nothing.
                if tenants.is_empty() {
                    return TaskLookup::Open;
                }
                tenants
                    .iter()
                    .find_map(|tenant| self.newest_task(tenant, task))
            }
        };
        match found {
            Some((_, record)) if !record.state.is_terminal() => TaskLookup::Open,
            over => {
                TaskLookup::from_finished(over.map(|(spec, record)| FinishedTask { record, spec }))
            }
        }
    }
}

impl StoredTasks for RecordReader {
    /// A task as an input that names a finished one carries it.
    fn finished(&self, tenant: &TenantId, task: TaskId) -> Option<FinishedTask> {
        let (spec, record) = self.newest_task(tenant, task)?;
        let finished = record.state.is_terminal();
        finished.then_some(FinishedTask { record, spec })
    }

    /// The same for a daemon, whose frames do not name the tenant: it is its credential's, or any of them.
    fn finished_in_scope(&self, scope: &TenantScope, task: TaskId) -> Option<FinishedTask> {
        match scope {
            TenantScope::One(tenant) => self.finished(tenant, task),
            TenantScope::All => {
                let tenants = self.tenants();
                tenants
                    .iter()
                    .find_map(|tenant| self.finished(tenant, task))
            }
        }
    }

    /// A finished task with what it has under other keys; its prompt is not read.
    fn removable(&self, tenant: &TenantId, task: TaskId) -> Option<RemovableTask> {
        let (key, bytes) = self.read_bytes(&records::done_key(tenant, task))?;
        let record = self.ok_or_record_unreadable(&key, records::decode_task(&bytes))?;
        let stored = self.read_bytes(&records::spec_key(tenant, task));
        let spec = stored.and_then(|(key, bytes)| {
            self.ok_or_record_unreadable(&key, records::decode_spec(&bytes))
        });
        let (spec, body) = spec.unzip();
        let key = spec.and_then(|spec| spec.idempotency_key);
        let is_its_own = |key: &String| {
            let known = self.idempotency(tenant, key);
            matches!(known, Ok(Some(known)) if known.task == task)
        };
        Some(RemovableTask {
            record,
            idempotency_key: key.filter(is_its_own),
            body: body.flatten().map(|hash| hash.0),
        })
    }

    fn progress(&self, tenant: &TenantId, task: TaskId) -> StoredLookup<Arc<ProgressRecord>> {
        let key = records::progress_key(tenant, task);
        let stored = self.read_decoded(&key, records::decode_progress);
        stored.map_err(|_counted| UnreadableRecord)
    }

    fn idempotency(&self, tenant: &TenantId, key: &str) -> StoredLookup<IdempotencyRecord> {
        let key = records::idempotency_key(tenant, key);
        let stored = self.read_decoded(&key, records::decode_idempotency);
        stored.map_err(|_counted| UnreadableRecord)
    }
}
