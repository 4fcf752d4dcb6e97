//! Typed reads of what the relay has stored, for the API and the dispatcher.
//!
//! A read sees the newest value, durable or not; `settle` waits until everything read so far is durable, so that no
//! answer tells of something a crash could take back.

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

/// Records that one page of the boot scan reads.
const BOOT_PAGE: usize = 1024;

/// A task as it is stored: what was asked, and what became of it.
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
    /// Records that could not be read and were passed over.
    pub unreadable: u64,
    /// Where the next page starts; none at the end.
    pub next: Option<TaskId>,
}

/// One page of a tenant's finished tasks, oldest first.
#[derive(Debug, Default)]
pub(crate) struct FinishedPage {
    pub(crate) tasks: Vec<(Arc<TaskRecord>, u64)>,
    /// Where the next page starts; none at the end.
    pub(crate) next: Option<TaskId>,
}

/// What a task's specification takes.
#[derive(Debug, Default)]
pub(crate) struct SpecSize {
    pub(crate) record: u64,
    pub(crate) body_bytes: u64,
    pub(crate) body: Option<BodyHash>,
}

/// Why nobody knows what stands in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnreadableCause {
    /// It means nothing, and will mean nothing later.
    Record,
    /// The disk did not answer this time.
    Disk,
}

/// What a walk over records met and could not read.
#[derive(Debug, Default)]
pub(crate) struct SkippedRecords {
    pub(crate) keys: Vec<RecordKey>,
    /// Damaged pages have no name, and nobody knows what was on them.
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

    /// For those who look on their own account, and for no client.
    pub(crate) fn without_lookup_counts(&self) -> Self {
        Self {
            lookups: LookupCounter::default(),
            ..self.clone()
        }
    }

    /// Everything that was passed over since the start.
    pub(crate) fn unreadable_records(&self) -> &UnreadableRecords {
        &self.unreadable_records
    }

    pub(crate) fn bodies(&self) -> &BodyFiles {
        &self.bodies
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Waits until everything that was readable at the call is durable.
    pub async fn wait_durable(&self) -> Result<(), StoreStopped> {
        self.store.wait_durable(self.store.appended()).await
    }

    /// The newest commit that a read now could see.
    pub fn newest_commit(&self) -> CommitSeq {
        self.store.appended()
    }

    /// A task of this tenant, live or finished. An unreadable record counts as missing and is logged.
    pub fn newest_task(&self, tenant: &TenantId, task: TaskId) -> Option<StoredTask> {
        let record = self.record(tenant, task)?;
        Some((self.spec(tenant, task)?, record))
    }

    /// The changing half alone.
    pub fn record(&self, tenant: &TenantId, task: TaskId) -> Option<Arc<TaskRecord>> {
        let live = self.read_bytes(&records::live_key(tenant, task));
        // Live to done is one commit, so a task that is missing here and there was finished in between: look once more.
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

    /// One milestone of a task; none where it was pushed out.
    pub(crate) fn checkpoint(
        &self,
        tenant: &TenantId,
        task: TaskId,
        number: u64,
    ) -> Option<Arc<CheckpointRecord>> {
        let (key, bytes) = self.read_bytes(&records::checkpoint_key(tenant, task, number))?;
        self.ok_or_record_unreadable(&key, records::decode_checkpoint(&bytes))
    }

    /// Milestones of a task up to number `upto`, newest first; at most `limit` of them.
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

    /// Finished tasks of this tenant behind `after`, oldest first, each with the size of its record.
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

    /// Bytes that a task's specification takes, and its long body if it has one.
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

    /// Whether any task claims this body; also where that cannot be read.
    pub(crate) fn is_body_claimed(&self, hash: BodyHash) -> bool {
        let claims = self.scan(&KeyRange::claims(&hash.0), &ScanPage::first(1));
        claims.map_or(true, |scan| !scan.entries.is_empty() || scan.unreadable > 0)
    }

    /// Tasks of this tenant below `before`, newest first. Ids are made in time order, so the key order is the list's.
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
        let mut found = TaskPage {
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
                Some(task) => found.tasks.push(task),
                None => found.unreadable += 1,
            }
        }
        found.next = if scan.has_more { last } else { None };
        found
    }

    /// Which tenants are paused, and who paused what.
    pub(crate) fn pauses(&self) -> PausesRecord {
        let stored = self.read_bytes(&records::pauses_key());
        let read = stored.and_then(|(key, bytes)| {
            self.ok_or_record_unreadable(&key, records::decode_pauses(&bytes))
        });
        read.unwrap_or_default()
    }

    /// Which daemons operators had forgotten.
    pub(crate) fn forgotten_daemons(&self) -> Option<ForgottenDaemonsRecord> {
        let (key, bytes) = self.read_bytes(&records::forgotten_key())?;
        self.ok_or_record_unreadable(&key, records::decode_forgotten(&bytes))
    }

    /// What operators did to daemons.
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

    /// For questions to which "not there" and "not readable" are different answers.
    pub(crate) fn read_decoded<T>(
        &self,
        key: &RecordKey,
        decode: impl Fn(&[u8]) -> Result<T, UndecodableRecord>,
    ) -> Result<Option<T>, UnreadableCause> {
        self.lookups.count_record();
        let read = self.store.get(key);
        let hidden = match &read {
            Err(StoreReadError::Disk(_)) => UnreadableCause::Disk,
            Err(StoreReadError::Unreadable { .. }) | Ok(_) => UnreadableCause::Record,
        };
        let bytes = self.ok_or_record_unreadable(key, read).ok_or(hidden)?;
        let decoded = bytes.map(|bytes| {
            self.ok_or_record_unreadable(key, decode(&bytes))
                .ok_or(UnreadableCause::Record)
        });
        decoded.transpose()
    }

    /// Nothing was ever submitted, or nothing of it is left. What cannot be read counts as there.
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

    /// The newest id that a task of this data has.
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

    /// Pauses and holds; what they were at first where none is stored.
    pub(crate) fn scheduler(&self) -> SchedulerRecord {
        let bytes = self.read_bytes(&records::scheduler_key());
        let stored = bytes.and_then(|(key, bytes)| {
            self.ok_or_record_unreadable(&key, records::decode_scheduler(&bytes))
        });
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

    /// Everything that a boot hands to the core. Unreadable records are passed over and counted; only a disk that cannot
    /// be read at all is an error, since nobody could say how much is missing.
    pub(crate) fn recover(&self) -> Result<RecoveredState, StoreReadError> {
        let mut recovered = RecoveredState::default();
        let passed =
            self.for_each_record(&KeyRange::relay_wide(RecordKind::Control), |key, bytes| {
                let RecordKey::Control { name, .. } = key else {
                    return true;
                };
                records::decode_control(name.as_str(), bytes, &mut recovered).is_ok()
            })?;
        recovered.damage = records::control_damage(&passed.keys, passed.pages);
        let mut pages = passed.pages;
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
                && let Ok(Some(known)) = self.idempotency(tenant, &key)
            {
                recovered.idempotency.push((tenant.clone(), key, known));
            }
            recovered.tasks.push((spec, record));
            true
        })
    }

    /// Visits every record of a range; a visit that returns false counts as unreadable. Gives what was passed over.
    pub(crate) fn for_each_record(
        &self,
        range: &KeyRange,
        mut visit: impl FnMut(&RecordKey, &[u8]) -> bool,
    ) -> Result<SkippedRecords, StoreReadError> {
        let (mut page, mut passed) = (ScanPage::first(BOOT_PAGE), SkippedRecords::default());
        loop {
            let scan = self.scan(range, &page)?;
            passed.pages += self.unreadable_records.add_scan(&scan);
            let named = scan
                .skipped_records
                .iter()
                .filter_map(|(key, _)| key.clone());
            passed.keys.extend(named);
            for (key, bytes) in &scan.entries {
                if !visit(key, bytes) {
                    tracing::error!(%key, "a stored record cannot be read; it is passed over");
                    self.unreadable_records.add_record(key);
                    passed.keys.push(key.clone());
                }
            }
            let Some((last, _)) = scan.entries.last().filter(|_| scan.has_more) else {
                return Ok(passed);
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
        let passed_over = |error: &E| {
            tracing::error!(%key, %error, "a stored record cannot be read; it is passed over");
            self.unreadable_records.add_record(key);
        };
        read.inspect_err(passed_over).ok()
    }
}
