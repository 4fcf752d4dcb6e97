//! Typed reads of stored records, for the API and the dispatcher.
//!
//! A read returns the newest value, durable or not. `wait_durable` waits until everything read
//! so far is durable, so that no reply contains something that a crash could undo.

mod stored_tasks;

use std::sync::Arc;

use baton_core::ids::{DaemonId, TaskId, TenantId, TenantScope};
use baton_core::record::{
    CheckpointRecord, DaemonChangesRecord, DaemonRecord, ForgottenDaemonsRecord, PausesRecord,
    SchedulerRecord, TaskRecord,
};
use baton_core::task::spec::TaskSpec;
use baton_core::{RecoveredState, StoredTasks};

use crate::body_files::{BodyFiles, BodyHash};
use crate::lookup_counter::LookupCounter;
use crate::records::{self, UndecodableRecord};
use crate::store::{
    CommitSeq, KeyRange, KeyText, RecordKey, RecordKind, ScanPage, ScannedRecords, Store,
    StoreReadError, StoreStopped,
};
use crate::telemetry::Telemetry;
use crate::unreadable_records::UnreadableRecords;

/// Records read in one page of the boot scan.
const BOOT_PAGE: usize = 1024;

/// A task as stored: its specification and its record.
pub type StoredTask = (Arc<TaskSpec>, Arc<TaskRecord>);

#[derive(Clone, Debug)]
pub struct RecordReader {
    store: Store,
    bodies: BodyFiles,
    unreadable_records: UnreadableRecords,
    lookups: LookupCounter,
}

/// One page of a tenant's tasks, newest first.
#[derive(Debug, Default)]
pub struct TaskPage {
    pub tasks: Vec<StoredTask>,
    /// Records that could not be read and were skipped.
    pub unreadable: u64,
    /// Where the next page starts; `None` at the end.
    pub next: Option<TaskId>,
}

/// One page of a tenant's finished tasks, oldest first.
#[derive(Debug, Default)]
pub(crate) struct FinishedPage {
    pub(crate) tasks: Vec<(Arc<TaskRecord>, u64)>,
    /// Where the next page starts; `None` at the end.
    pub(crate) next: Option<TaskId>,
}

/// The size of a task's specification.
#[derive(Debug, Default)]
pub(crate) struct SpecSize {
    pub(crate) record: u64,
    pub(crate) body_bytes: u64,
    pub(crate) body: Option<BodyHash>,
}

/// Why a record could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnreadableCause {
    /// The stored value cannot be decoded, now or later.
    Record,
    /// The disk returned an error this time.
    Disk,
}

/// Records that a scan met and could not read.
#[derive(Debug, Default)]
pub(crate) struct SkippedRecords {
    pub(crate) keys: Vec<RecordKey>,
    /// Damaged pages, which have no key; their content is unknown.
    pub(crate) pages: u64,
}

impl RecordReader {
    pub(crate) fn new(store: Store, bodies: BodyFiles, telemetry: &Telemetry) -> Self {
        Self {
            store,
            bodies,
            unreadable_records: UnreadableRecords::new(telemetry.clone()),
            lookups: telemetry.lookups().clone(),
        }
    }

    /// A reader for the relay's own work, whose lookups are not counted as a client's.
    pub(crate) fn without_lookup_counts(&self) -> Self {
        Self {
            lookups: LookupCounter::default(),
            ..self.clone()
        }
    }

    /// All records that were skipped since the start.
    pub(crate) fn unreadable_records(&self) -> &UnreadableRecords {
        &self.unreadable_records
    }

    pub(crate) fn bodies(&self) -> &BodyFiles {
        &self.bodies
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Waits until everything that was readable at the time of the call is durable.
    pub async fn wait_durable(&self) -> Result<(), StoreStopped> {
        self.store.wait_durable(self.store.appended()).await
    }

    /// The newest commit that a read could return now.
    pub fn newest_commit(&self) -> CommitSeq {
        self.store.appended()
    }

    /// A task of this tenant, live or finished. An unreadable record counts as missing and is
    /// logged.
    pub fn newest_task(&self, tenant: &TenantId, task: TaskId) -> Option<StoredTask> {
        let record = self.record(tenant, task)?;
        Some((self.spec(tenant, task)?, record))
    }

    /// The task's record without its specification.
    pub fn record(&self, tenant: &TenantId, task: TaskId) -> Option<Arc<TaskRecord>> {
        let live = self.read_bytes(&records::live_key(tenant, task));
        // A task moves from live to done in one commit. If both reads miss it, it was moved
        // back in between, so read the live record once more.
        let (key, bytes) = live
            .or_else(|| self.read_bytes(&records::done_key(tenant, task)))
            .or_else(|| self.read_bytes(&records::live_key(tenant, task)))?;
        self.ok_or_record_unreadable(&key, records::decode_task(&bytes))
    }

    pub fn spec(&self, tenant: &TenantId, task: TaskId) -> Option<Arc<TaskSpec>> {
        let (key, bytes) = self.read_bytes(&records::spec_key(tenant, task))?;
        let (mut spec, body) = self.ok_or_record_unreadable(&key, records::decode_spec(&bytes))?;
        if let Some(hash) = body {
            spec.prompt = self.ok_or_record_unreadable(&key, self.bodies.load(hash))?;
        }
        Some(Arc::new(spec))
    }

    /// One checkpoint of a task; `None` if newer ones have replaced it.
    pub(crate) fn checkpoint(
        &self,
        tenant: &TenantId,
        task: TaskId,
        number: u64,
    ) -> Option<Arc<CheckpointRecord>> {
        let (key, bytes) = self.read_bytes(&records::checkpoint_key(tenant, task, number))?;
        self.ok_or_record_unreadable(&key, records::decode_checkpoint(&bytes))
    }

    /// Checkpoints of a task up to number `upto`, newest first, at most `limit`.
    pub(crate) fn checkpoints(
        &self,
        tenant: &TenantId,
        task: TaskId,
        upto: u64,
        limit: usize,
    ) -> Vec<Arc<CheckpointRecord>> {
        let page = ScanPage {
            after: Some(records::checkpoint_key(
                tenant,
                task,
                upto.saturating_add(1),
            )),
            limit,
            reverse: true,
        };
        let range = KeyRange::checkpoints(&records::tenant_text(tenant), &task.0);
        let Ok(scan) = self.scan(&range, &page) else {
            return Vec::new();
        };
        self.unreadable_records.add_scan(&scan);
        let entries = scan.entries.iter();
        entries
            .filter_map(|(key, bytes)| {
                self.ok_or_record_unreadable(key, records::decode_checkpoint(bytes))
            })
            .collect()
    }

    /// Finished tasks of this tenant after `after`, oldest first, each with the size of its
    /// record.
    pub(crate) fn finished_after(
        &self,
        tenant: &TenantId,
        after: Option<TaskId>,
        limit: usize,
    ) -> FinishedPage {
        let page = ScanPage {
            after: after.map(|task| records::done_key(tenant, task)),
            limit,
            reverse: false,
        };
        let done = KeyRange::of_kind(&records::tenant_text(tenant), RecordKind::Done);
        let Ok(scan) = self.scan(&done, &page) else {
            return FinishedPage::default();
        };
        self.unreadable_records.add_scan(&scan);
        let last = scan.entries.last().and_then(|(key, _)| {
            let RecordKey::Done { task, .. } = key else {
                return None;
            };
            Some(TaskId(*task))
        });
        let decoded = scan.entries.iter().filter_map(|(key, bytes)| {
            let record = self.ok_or_record_unreadable(key, records::decode_task(bytes))?;
            Some((record, bytes.len() as u64))
        });
        FinishedPage {
            tasks: decoded.collect(),
            next: last.filter(|_| scan.has_more),
        }
    }

    /// The size of a task's specification, and of its long body if it has one.
    pub(crate) fn spec_size(&self, tenant: &TenantId, task: TaskId) -> SpecSize {
        let Some((_, bytes)) = self.read_bytes(&records::spec_key(tenant, task)) else {
            return SpecSize::default();
        };
        let body = records::decode_spec(&bytes).ok().and_then(|(_, body)| body);
        SpecSize {
            record: bytes.len() as u64,
            body_bytes: body.map_or(0, |hash| self.bodies.len(hash)),
            body,
        }
    }

    /// Whether any task claims this body. Returns true if that cannot be read.
    pub(crate) fn is_body_claimed(&self, hash: BodyHash) -> bool {
        let claims = self.scan(&KeyRange::claims(&hash.0), &ScanPage::first(1));
        claims.map_or(true, |scan| !scan.entries.is_empty() || scan.unreadable > 0)
    }

    /// Tasks of this tenant older than `before`, newest first. Ids rise with time, so key order
    /// is list order.
    pub fn tasks(&self, tenant: &TenantId, before: Option<TaskId>, limit: usize) -> TaskPage {
        let text = records::tenant_text(tenant);
        let page = ScanPage {
            after: before.map(|task| records::spec_key(tenant, task)),
            limit,
            reverse: true,
        };
        let Ok(scan) = self.scan(&KeyRange::of_kind(&text, RecordKind::Spec), &page) else {
            return TaskPage {
                unreadable: 1,
                ..TaskPage::default()
            };
        };
        self.unreadable_records.add_scan(&scan);
        let mut task_page = TaskPage {
            unreadable: scan.unreadable,
            ..TaskPage::default()
        };
        let mut last = None;
        for (key, _) in &scan.entries {
            let RecordKey::Spec { task, .. } = key else {
                continue;
            };
            last = Some(TaskId(*task));
            match self.newest_task(tenant, TaskId(*task)) {
                Some(task) => task_page.tasks.push(task),
                None => task_page.unreadable += 1,
            }
        }
        task_page.next = if scan.has_more { last } else { None };
        task_page
    }

    /// The paused tenants and tasks, and who paused them.
    pub(crate) fn pauses(&self) -> PausesRecord {
        let stored = self.read_bytes(&records::pauses_key());
        let read = stored.and_then(|(key, bytes)| {
            self.ok_or_record_unreadable(&key, records::decode_pauses(&bytes))
        });
        read.unwrap_or_default()
    }

    /// The daemons that operators have forgotten.
    pub(crate) fn forgotten_daemons(&self) -> Option<ForgottenDaemonsRecord> {
        let (key, bytes) = self.read_bytes(&records::forgotten_key())?;
        self.ok_or_record_unreadable(&key, records::decode_forgotten(&bytes))
    }

    /// The changes that operators made to daemons.
    pub(crate) fn daemon_changes(&self) -> Option<DaemonChangesRecord> {
        let (key, bytes) = self.read_bytes(&records::daemon_changes_key())?;
        self.ok_or_record_unreadable(&key, records::decode_daemon_changes(&bytes))
    }

    /// A daemon that has connected with a credential of this scope.
    pub(crate) fn daemon(
        &self,
        scope: &TenantScope,
        daemon: DaemonId,
    ) -> Result<Option<Arc<DaemonRecord>>, UnreadableCause> {
        self.read_decoded(&records::daemon_key(scope, daemon), records::decode_daemon)
    }

    /// Reads a record for callers that must distinguish a missing record from an unreadable
    /// one.
    pub(crate) fn read_decoded<T>(
        &self,
        key: &RecordKey,
        decode: impl Fn(&[u8]) -> Result<T, UndecodableRecord>,
    ) -> Result<Option<T>, UnreadableCause> {
        self.lookups.count_record();
        let read = self.store.get(key);
        let cause = match &read {
            Err(StoreReadError::Disk(_)) => UnreadableCause::Disk,
            Err(StoreReadError::Unreadable { .. }) | Ok(_) => UnreadableCause::Record,
        };
        let bytes = self.ok_or_record_unreadable(key, read).ok_or(cause)?;
        let decoded = bytes.map(|bytes| {
            self.ok_or_record_unreadable(key, decode(&bytes))
                .ok_or(UnreadableCause::Record)
        });
        decoded.transpose()
    }

    /// Whether no task is stored. An unreadable record counts as a task.
    pub(crate) fn has_no_task(&self) -> bool {
        let Ok(tenants) = self.store.tenants() else {
            return false;
        };
        let none = |tenant: &KeyText, kind| {
            let scan = self
                .store
                .scan(&KeyRange::of_kind(tenant, kind), &ScanPage::first(1));
            scan.is_ok_and(|scan| scan.entries.is_empty() && scan.unreadable == 0)
        };
        tenants.iter().all(|tenant| {
            [RecordKind::Spec, RecordKind::Live, RecordKind::Done]
                .into_iter()
                .all(|kind| none(tenant, kind))
        })
    }

    /// The newest id of any stored task.
    pub(crate) fn newest_task_id(&self) -> Option<TaskId> {
        let newest = ScanPage {
            after: None,
            limit: 1,
            reverse: true,
        };
        let tenants = self.store.tenants().unwrap_or_default();
        let ids = tenants.iter().filter_map(|tenant| {
            let scan = self.scan(&KeyRange::of_kind(tenant, RecordKind::Spec), &newest);
            let RecordKey::Spec { task, .. } = scan.ok()?.entries.pop()?.0 else {
                return None;
            };
            Some(TaskId(task))
        });
        ids.max()
    }

    /// The scheduler's state, or its default if none is stored.
    pub(crate) fn scheduler(&self) -> SchedulerRecord {
        let bytes = self.read_bytes(&records::scheduler_key());
        let stored = bytes.and_then(|(key, bytes)| {
            self.ok_or_record_unreadable(&key, records::decode_scheduler(&bytes))
        });
        stored.unwrap_or_default()
    }

    /// Every tenant with stored records.
    pub(crate) fn tenants(&self) -> Vec<TenantId> {
        let names = self.store.tenants().unwrap_or_default();
        names
            .iter()
            .filter_map(|name| TenantId::new(name.as_str()))
            .collect()
    }

    /// Everything that the core needs at boot. Unreadable records are skipped and counted. Only
    /// a disk that cannot be read at all is an error, because the amount of missing data would
    /// then be unknown.
    pub(crate) fn recover(&self) -> Result<RecoveredState, StoreReadError> {
        let mut recovered = RecoveredState::default();
        let skipped =
            self.for_each_record(&KeyRange::relay_wide(RecordKind::Control), |key, bytes| {
                let RecordKey::Control { name, .. } = key else {
                    return true;
                };
                records::decode_control(name.as_str(), bytes, &mut recovered).is_ok()
            })?;
        recovered.damage = records::control_damage(&skipped.keys, skipped.pages);
        let mut pages = skipped.pages;
        for name in self.store.tenants()? {
            pages += self.recover_daemons(&name, &mut recovered)?.pages;
            if let Some(tenant) = TenantId::new(name.as_str()) {
                pages += self.recover_tasks(&tenant, &mut recovered)?.pages;
            }
        }
        self.unreadable_records.add_pages(pages);
        Ok(recovered)
    }

    fn recover_daemons(
        &self,
        owner: &KeyText,
        recovered: &mut RecoveredState,
    ) -> Result<SkippedRecords, StoreReadError> {
        self.for_each_record(&KeyRange::of_kind(owner, RecordKind::Daemon), |_, bytes| {
            records::decode_daemon(bytes)
                .map(|daemon| recovered.daemons.push(daemon))
                .is_ok()
        })
    }

    fn recover_tasks(
        &self,
        tenant: &TenantId,
        recovered: &mut RecoveredState,
    ) -> Result<SkippedRecords, StoreReadError> {
        let live = KeyRange::of_kind(&records::tenant_text(tenant), RecordKind::Live);
        self.for_each_record(&live, |_, bytes| {
            let Ok(record) = records::decode_task(bytes) else {
                return false;
            };
            let Some(spec) = self.spec(tenant, record.task) else {
                return false;
            };
            if let Some(key) = spec.idempotency_key.clone()
                && let Ok(Some(stored)) = self.idempotency(tenant, &key)
            {
                recovered.idempotency.push((tenant.clone(), key, stored));
            }
            recovered.tasks.push((spec, record));
            true
        })
    }

    /// Calls `visit` for every record of a range. A record for which it returns false counts as
    /// unreadable. Returns what was skipped.
    pub(crate) fn for_each_record(
        &self,
        range: &KeyRange,
        mut visit: impl FnMut(&RecordKey, &[u8]) -> bool,
    ) -> Result<SkippedRecords, StoreReadError> {
        let (mut page, mut skipped) = (ScanPage::first(BOOT_PAGE), SkippedRecords::default());
        loop {
            let scan = self.scan(range, &page)?;
            skipped.pages += self.unreadable_records.add_scan(&scan);
            let keys = scan
                .skipped_records
                .iter()
                .filter_map(|(key, _)| key.clone());
            skipped.keys.extend(keys);
            for (key, bytes) in &scan.entries {
                if !visit(key, bytes) {
                    tracing::error!(%key, "skipping an unreadable record");
                    self.unreadable_records.add_record(key);
                    skipped.keys.push(key.clone());
                }
            }
            let Some((last, _)) = scan.entries.last().filter(|_| scan.has_more) else {
                return Ok(skipped);
            };
            page.after = Some(last.clone());
        }
    }

    fn scan(&self, range: &KeyRange, page: &ScanPage) -> Result<ScannedRecords, StoreReadError> {
        self.lookups.count_record();
        self.store.scan(range, page)
    }

    fn read_bytes(&self, key: &RecordKey) -> Option<(RecordKey, bytes::Bytes)> {
        self.lookups.count_record();
        let bytes = self
            .ok_or_record_unreadable(key, self.store.get(key))
            .flatten()?;
        Some((key.clone(), bytes))
    }

    fn ok_or_record_unreadable<T, E: std::fmt::Display>(
        &self,
        key: &RecordKey,
        read: Result<T, E>,
    ) -> Option<T> {
        let log_and_count = |error: &E| {
            tracing::error!(%key, %error, "skipping an unreadable record");
            self.unreadable_records.add_record(key);
        };
        read.inspect_err(log_and_count).ok()
    }
}
