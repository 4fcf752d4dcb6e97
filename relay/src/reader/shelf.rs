//! What the core asks of the store: of tasks that it does not hold, and of what it adds to.

use std::sync::Arc;

use baton_core::id::{TaskId, TenantId, TenantScope};
use baton_core::input::{Finished, Removable};
use baton_core::record::{IdempotencyRecord, ProgressRecord};
use baton_core::{Looked, Shelf, Stored, Unreadable};

use super::Reader;
use crate::records;

impl Reader {
    /// For an attempt that a daemon lists, whoever's its task is.
    pub(crate) fn looked_within(&self, scope: &TenantScope, task: TaskId) -> Looked {
        let found = match scope {
            TenantScope::One(tenant) => self.newest_task(tenant, task),
            TenantScope::All => {
                let tenants = self.tenants();
                // A list that could not be read is empty as well, and proves nothing.
                if tenants.is_empty() {
                    return Looked::Open;
                }
                tenants
                    .iter()
                    .find_map(|tenant| self.newest_task(tenant, task))
            }
        };
        match found {
            Some((_, record)) if !record.state.is_terminal() => Looked::Open,
            over => Looked::ended(over.map(|(spec, record)| Finished { record, spec })),
        }
    }
}

impl Shelf for Reader {
    /// A task as an input that names a finished one carries it.
    fn finished(&self, tenant: &TenantId, task: TaskId) -> Option<Finished> {
        let (spec, record) = self.newest_task(tenant, task)?;
        let finished = record.state.is_terminal();
        finished.then_some(Finished { record, spec })
    }

    /// The same for a daemon, whose frames do not name the tenant: it is its credential's, or any of them.
    fn finished_within(&self, scope: &TenantScope, task: TaskId) -> Option<Finished> {
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
    fn removable(&self, tenant: &TenantId, task: TaskId) -> Option<Removable> {
        let (key, bytes) = self.bytes(&records::done_key(tenant, task))?;
        let record = self.readable(&key, records::decode_task(&bytes))?;
        let stored = self.bytes(&records::spec_key(tenant, task));
        let spec =
            stored.and_then(|(key, bytes)| self.readable(&key, records::decode_spec(&bytes)));
        let (spec, body) = spec.unzip();
        let key = spec.and_then(|spec| spec.idempotency_key);
        let is_its_own = |key: &String| {
            let known = self.idempotency(tenant, key);
            matches!(known, Ok(Some(known)) if known.task == task)
        };
        Some(Removable {
            record,
            idempotency_key: key.filter(is_its_own),
            body: body.flatten().map(|hash| hash.0),
        })
    }

    fn progress(&self, tenant: &TenantId, task: TaskId) -> Stored<Arc<ProgressRecord>> {
        let key = records::progress_key(tenant, task);
        let stored = self.stored(&key, records::decode_progress);
        stored.map_err(|_counted| Unreadable)
    }

    fn idempotency(&self, tenant: &TenantId, key: &str) -> Stored<IdempotencyRecord> {
        let key = records::idempotency_key(tenant, key);
        let stored = self.stored(&key, records::decode_idempotency);
        stored.map_err(|_counted| Unreadable)
    }
}
