//! Typed reads of what the relay has stored, for the API and the dispatcher.
//!
//! A read sees the newest value, durable or not; `settle` waits until everything read so far is durable, so that no
//! answer tells of something a crash could take back.

use std::sync::Arc;

use baton_core::Recovered;
use baton_core::id::{DaemonId, TaskId, TenantId, TenantScope};
use baton_core::input::Finished;
use baton_core::record::{DaemonRecord, IdempotencyRecord, SchedulerRecord, TaskRecord};
use baton_core::spec::TaskSpec;

use crate::bodies::Bodies;
use crate::records;
use crate::store::{CommitSeq, Key, KeyRange, KeyText, Kind, Page, Stopped, Store};

/// Records that one page of the boot scan reads.
const BOOT_PAGE: usize = 1024;

/// A task as it is stored: what was asked, and what became of it.
pub type StoredTask = (Arc<TaskSpec>, Arc<TaskRecord>);

#[derive(Clone, Debug)]
pub struct Reader {
    store: Store,
    bodies: Bodies,
}

/// One page of a tenant's tasks, newest first.
#[derive(Debug, Default)]
pub struct TaskPage {
    pub tasks: Vec<StoredTask>,
    /// Records that could not be read and were passed over.
    pub unreadable: u64,
    /// Where the next page starts; none at the end.
    pub next: Option<TaskId>,
}

impl Reader {
    pub(crate) fn new(store: Store, bodies: Bodies) -> Self {
        Self { store, bodies }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Waits until everything that was readable at the call is durable.
    pub async fn settle(&self) -> Result<(), Stopped> {
        self.store.wait_durable(self.store.appended()).await
    }

    /// The newest commit that a read now could see.
    pub fn appended(&self) -> CommitSeq {
        self.store.appended()
    }

    /// A task of this tenant, live or finished. An unreadable record counts as missing and is logged.
    pub fn newest_task(&self, tenant: &TenantId, task: TaskId) -> Option<StoredTask> {
        let record = self.record(tenant, task)?;
        Some((self.spec(tenant, task)?, record))
    }

    /// A task as an input that names a finished one carries it.
    pub(crate) fn finished(&self, tenant: &TenantId, task: TaskId) -> Option<Finished> {
        let (spec, record) = self.newest_task(tenant, task)?;
        let finished = record.state.is_terminal();
        finished.then_some(Finished { record, spec })
    }

    /// The same for a daemon, whose frames do not name the tenant: it is its credential's, or any of them.
    pub(crate) fn finished_within(&self, scope: &TenantScope, task: TaskId) -> Option<Finished> {
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

    /// The changing half alone.
    pub fn record(&self, tenant: &TenantId, task: TaskId) -> Option<Arc<TaskRecord>> {
        let live = self.bytes(&records::live_key(tenant, task));
        // Live to done is one commit, so a task that is missing here and there was finished in between: look once more.
        let bytes = live
            .or_else(|| self.bytes(&records::done_key(tenant, task)))
            .or_else(|| self.bytes(&records::live_key(tenant, task)))?;
        self.readable("task", records::decode_task(&bytes))
    }

    pub fn spec(&self, tenant: &TenantId, task: TaskId) -> Option<Arc<TaskSpec>> {
        let bytes = self.bytes(&records::spec_key(tenant, task))?;
        let (mut spec, body) = self.readable("specification", records::decode_spec(&bytes))?;
        if let Some(hash) = body {
            spec.prompt = self.readable("prompt", self.bodies.load(hash))?;
        }
        Some(Arc::new(spec))
    }

    /// Tasks of this tenant below `before`, newest first. Ids are made in time order, so the key order is the list's.
    pub fn tasks(&self, tenant: &TenantId, before: Option<TaskId>, limit: usize) -> TaskPage {
        let text = records::tenant_text(tenant);
        let page = Page {
            after: before.map(|task| records::spec_key(tenant, task)),
            limit,
            reverse: true,
        };
        let Ok(scan) = self.store.scan(&KeyRange::of(&text, Kind::Spec), &page) else {
            return TaskPage {
                unreadable: 1,
                ..TaskPage::default()
            };
        };
        let mut found = TaskPage {
            unreadable: scan.unreadable,
            ..TaskPage::default()
        };
        let mut last = None;
        for (key, _) in &scan.entries {
            let Key::Spec { task, .. } = key else {
                continue;
            };
            last = Some(TaskId(*task));
            match self.newest_task(tenant, TaskId(*task)) {
                Some(task) => found.tasks.push(task),
                None => found.unreadable += 1,
            }
        }
        found.next = if scan.more { last } else { None };
        found
    }

    /// A daemon that has connected with a credential of this scope.
    pub(crate) fn daemon(
        &self,
        scope: &TenantScope,
        daemon: DaemonId,
    ) -> Option<Arc<DaemonRecord>> {
        let bytes = self.bytes(&records::daemon_key(scope, daemon))?;
        self.readable("daemon", records::decode_daemon(&bytes))
    }

    pub(crate) fn idempotency(&self, tenant: &TenantId, key: &str) -> Option<IdempotencyRecord> {
        let bytes = self.bytes(&records::idempotency_key(tenant, key))?;
        self.readable("idempotency key", records::decode_idempotency(&bytes))
    }

    /// Pauses and holds; what they were at first where none is stored.
    pub(crate) fn scheduler(&self) -> SchedulerRecord {
        let bytes = self.bytes(&records::scheduler_key());
        let stored = bytes
            .and_then(|bytes| self.readable("scheduler switch", records::decode_scheduler(&bytes)));
        stored.unwrap_or_default()
    }

    /// Every tenant that has stored anything.
    pub(crate) fn tenants(&self) -> Vec<TenantId> {
        let names = self.store.tenants().unwrap_or_default();
        names
            .iter()
            .filter_map(|name| TenantId::new(name.as_str()))
            .collect()
    }

    /// Everything that a boot hands to the core. Unreadable records are counted, never fatal.
    pub(crate) fn recover(&self) -> (Recovered, u64) {
        let mut recovered = Recovered::default();
        let mut unreadable = 0;
        self.each(
            &KeyRange::relay_wide(Kind::Control),
            &mut unreadable,
            |key, bytes| {
                let Key::Control { name, .. } = key else {
                    return true;
                };
                records::decode_control(name.as_str(), bytes, &mut recovered).is_ok()
            },
        );
        for name in self.store.tenants().unwrap_or_default() {
            self.recover_daemons(&name, &mut recovered, &mut unreadable);
            if let Some(tenant) = TenantId::new(name.as_str()) {
                self.recover_tasks(&tenant, &mut recovered, &mut unreadable);
            }
        }
        (recovered, unreadable)
    }

    fn recover_daemons(&self, owner: &KeyText, recovered: &mut Recovered, unreadable: &mut u64) {
        self.each(
            &KeyRange::of(owner, Kind::Daemon),
            unreadable,
            |_, bytes| {
                records::decode_daemon(bytes)
                    .map(|daemon| recovered.daemons.push(daemon))
                    .is_ok()
            },
        );
    }

    fn recover_tasks(&self, tenant: &TenantId, recovered: &mut Recovered, unreadable: &mut u64) {
        let live = KeyRange::of(&records::tenant_text(tenant), Kind::Live);
        self.each(&live, unreadable, |_, bytes| {
            let Ok(record) = records::decode_task(bytes) else {
                return false;
            };
            let Some(spec) = self.spec(tenant, record.task) else {
                return false;
            };
            if let Some(key) = spec.idempotency_key.clone()
                && let Some(known) = self.idempotency(tenant, &key)
            {
                recovered.idempotency.push((tenant.clone(), key, known));
            }
            recovered.tasks.push((spec, record));
            true
        });
    }

    /// Visits every record of a range; a visit that returns false counts as unreadable.
    fn each(
        &self,
        range: &KeyRange,
        unreadable: &mut u64,
        mut visit: impl FnMut(&Key, &[u8]) -> bool,
    ) {
        let mut page = Page::first(BOOT_PAGE);
        loop {
            let Ok(scan) = self.store.scan(range, &page) else {
                *unreadable += 1;
                return;
            };
            *unreadable += scan.unreadable;
            for (key, bytes) in &scan.entries {
                *unreadable += u64::from(!visit(key, bytes));
            }
            let Some((last, _)) = scan.entries.last().filter(|_| scan.more) else {
                return;
            };
            page.after = Some(last.clone());
        }
    }

    fn bytes(&self, key: &Key) -> Option<bytes::Bytes> {
        self.readable("record", self.store.get(key)).flatten()
    }

    fn readable<T, E: std::fmt::Display>(
        &self,
        what: &'static str,
        read: Result<T, E>,
    ) -> Option<T> {
        read.inspect_err(|error| tracing::error!(what, %error, "a stored record cannot be read; it is passed over")).ok()
    }
}
