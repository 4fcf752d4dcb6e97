//! Lookups in the store that the core needs: tasks that it no longer has in memory, and records
//! that it extends.

use std::sync::Arc;

use baton_core::ids::{TaskId, TenantId, TenantScope};
use baton_core::io::stored_lookup::{FinishedTask, RemovableTask};
use baton_core::record::{IdempotencyRecord, ProgressRecord};
use baton_core::{StoredLookup, StoredTasks, TaskLookup, UnreadableRecord};

use super::RecordReader;
use crate::records;

impl RecordReader {
    /// The task of an attempt that a daemon lists, whichever tenant owns it.
    pub(crate) fn find_task_within(&self, scope: &TenantScope, task: TaskId) -> TaskLookup {
        let found = match scope {
            TenantScope::One(tenant) => self.newest_task(tenant, task),
            TenantScope::All => {
                let tenants = self.tenants();
                // The list is also empty if it could not be read, so an empty list proves
                // nothing.
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
            finished => TaskLookup::from_finished(
                finished.map(|(spec, record)| FinishedTask { record, spec }),
            ),
        }
    }
}

impl StoredTasks for RecordReader {
    /// A finished task, for a command that refers to it.
    fn finished(&self, tenant: &TenantId, task: TaskId) -> Option<FinishedTask> {
        let (spec, record) = self.newest_task(tenant, task)?;
        let finished = record.state.is_terminal();
        finished.then_some(FinishedTask { record, spec })
    }

    /// Like `finished`, for a daemon. Its frames do not name the tenant, which is its
    /// credential's or any of them.
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

    /// A finished task with what it has under other keys. Its prompt is not read.
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
            let stored = self.idempotency(tenant, key);
            matches!(stored, Ok(Some(stored)) if stored.task == task)
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
