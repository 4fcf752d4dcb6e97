//! Maps the core's records to the store's keys and bytes, in both directions.
//!
//! The only file that encodes or decodes a record. Recovery and ordinary reads use the same
//! functions.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use baton_core::RecoveredState;
use baton_core::goal::progress::MAX_CHECKPOINTS;
use baton_core::ids::{AttemptId, DaemonId, TaskId, TenantId, TenantScope};
use baton_core::io::effects::RecordChange;
use baton_core::record::{
    CheckpointRecord, DaemonChangesRecord, DaemonRecord, FenceRecord, ForgottenDaemonsRecord,
    IdempotencyRecord, PausesRecord, ProgressRecord, SchedulerRecord, TaskRecord,
};
use baton_core::recovery::damage::RecordDamage;
use baton_core::task::spec::TaskSpec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::body_files::{BODY_INLINE_MAX, BodyHash};
use crate::store::{KeyText, RecordKey, StoreChange};

/// Tenant part of the keys of a fleet shared by all tenants. No tenant can have this name.
const SHARED_FLEET: &str = "*";
const FENCE_PREFIX: &str = "fence/";
const SCHEDULER: &str = "scheduler";
const FORGOTTEN: &str = "forgotten-daemons";
const DAEMON_CHANGES: &str = "daemon-changes";
const PAUSES: &str = "pauses";

/// A stored value that this version cannot decode.
#[derive(Debug, thiserror::Error)]
#[error("the stored {what} cannot be decoded: {source}")]
pub(crate) struct UndecodableRecord {
    what: &'static str,
    source: postcard::Error,
}

/// A task's specification as stored. A long prompt is a separate file, named by its hash.
#[derive(Serialize, Deserialize)]
struct StoredSpec<'a> {
    #[serde(borrow)]
    spec: std::borrow::Cow<'a, TaskSpec>,
    prompt: Option<[u8; 32]>,
}

/// Appends the store changes of one record change of the core.
#[expect(
    clippy::too_many_lines,
    reason = "one short arm for each kind of change"
)]
pub(crate) fn append_changes(change: &RecordChange, into: &mut Vec<StoreChange>) {
    match change {
        RecordChange::PutSpec { task, spec } => {
            let (bytes, body) = encode_spec(spec);
            into.push(StoreChange::Put(spec_key(&spec.tenant, *task), bytes));
            into.extend(body.map(|hash| StoreChange::Put(body_key(hash, *task), Vec::new())));
        }
        RecordChange::PutLive(record) => into.push(StoreChange::Put(
            live_key(&record.tenant, record.task),
            encode(&**record),
        )),
        RecordChange::PutDone(record) => {
            into.push(StoreChange::Put(
                done_key(&record.tenant, record.task),
                encode(&**record),
            ));
            into.push(StoreChange::Delete(live_key(&record.tenant, record.task)));
        }
        RecordChange::Reopen(record) => {
            into.push(StoreChange::Put(
                live_key(&record.tenant, record.task),
                encode(&**record),
            ));
            into.push(StoreChange::Delete(done_key(&record.tenant, record.task)));
        }
        RecordChange::PutIdempotency {
            tenant,
            key,
            record,
        } => {
            into.push(StoreChange::Put(
                idempotency_key(tenant, key),
                encode(record),
            ));
        }
        RecordChange::PutDaemon(record) => {
            into.push(StoreChange::Put(
                daemon_key(&record.scope, record.daemon),
                encode(&**record),
            ));
        }
        RecordChange::PutScheduler(record) => {
            into.push(StoreChange::Put(scheduler_key(), encode(record)))
        }
        RecordChange::PutFence(record) => {
            into.push(StoreChange::Put(fence_key(record.attempt), encode(record)))
        }
        RecordChange::DropFence(attempt) => into.push(StoreChange::Delete(fence_key(*attempt))),
        RecordChange::PutProgress(record) => into.push(StoreChange::Put(
            progress_key(&record.tenant, record.task),
            encode(&**record),
        )),
        RecordChange::PutCheckpoint(record) => into.push(StoreChange::Put(
            checkpoint_key(&record.tenant, record.task, record.number),
            encode(&**record),
        )),
        RecordChange::DropCheckpoint {
            tenant,
            task,
            number,
        } => into.push(StoreChange::Delete(checkpoint_key(tenant, *task, *number))),
        RecordChange::RemoveTask {
            tenant,
            task,
            idempotency_key: key,
            body,
            checkpoints,
        } => {
            into.push(StoreChange::Delete(spec_key(tenant, *task)));
            into.push(StoreChange::Delete(done_key(tenant, *task)));
            remove_goal(tenant, *task, *checkpoints, into);
            into.extend(
                key.iter()
                    .map(|key| StoreChange::Delete(idempotency_key(tenant, key))),
            );
            into.extend(body.map(|hash| StoreChange::Delete(body_key(BodyHash(hash), *task))));
        }
        RecordChange::PutForgotten(record) => {
            into.push(StoreChange::Put(forgotten_key(), encode(record)))
        }
        RecordChange::PutDaemonChanges(record) => {
            into.push(StoreChange::Put(daemon_changes_key(), encode(record)));
        }
        RecordChange::PutPauses(record) => {
            into.push(StoreChange::Put(pauses_key(), encode(record)))
        }
        RecordChange::DropDaemon(record) => {
            into.push(StoreChange::Delete(daemon_key(
                &record.scope,
                record.daemon,
            )));
        }
    }
}

fn remove_goal(tenant: &TenantId, task: TaskId, checkpoints: u64, into: &mut Vec<StoreChange>) {
    into.push(StoreChange::Delete(progress_key(tenant, task)));
    // Includes a checkpoint that was stored ahead of a task record that was never written.
    let kept = checkpoints.saturating_sub(MAX_CHECKPOINTS) + 1..=checkpoints + 1;
    into.extend(kept.map(|n| StoreChange::Delete(checkpoint_key(tenant, task, n))));
}

/// Most records are shorter. Growing the buffer step by step showed in a profile.
const TYPICAL_BYTES: usize = 1024;

pub(crate) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    postcard::to_extend(record, Vec::with_capacity(TYPICAL_BYTES))
        .expect("postcard can encode every record type")
}

pub(crate) fn decode<T: DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
) -> Result<T, UndecodableRecord> {
    postcard::from_bytes(bytes).map_err(|source| UndecodableRecord { what, source })
}

/// Largest specification in one append. It must stay far below the journal's limit of 1 MiB,
/// because a record that is too large to store would stop the relay.
pub(crate) const SPEC_BYTES_MAX: usize = 512 * 1024;

/// Size of the specification's record.
pub(crate) fn spec_bytes(spec: &TaskSpec) -> usize {
    encode_spec(spec).0.len()
}

/// The record, and the body file that contains the prompt if it is too long for the record.
fn encode_spec(spec: &TaskSpec) -> (Vec<u8>, Option<BodyHash>) {
    if spec.prompt.len() <= BODY_INLINE_MAX {
        let stored = StoredSpec {
            spec: std::borrow::Cow::Borrowed(spec),
            prompt: None,
        };
        return (encode(&stored), None);
    }
    let hash = BodyHash::of(spec.prompt.as_bytes());
    let short = TaskSpec {
        prompt: String::new(),
        ..spec.clone()
    };
    let stored = StoredSpec {
        spec: std::borrow::Cow::Owned(short),
        prompt: Some(hash.0),
    };
    (encode(&stored), Some(hash))
}

/// The specification, and the body file from which its prompt must be filled in.
pub(crate) fn decode_spec(bytes: &[u8]) -> Result<(TaskSpec, Option<BodyHash>), UndecodableRecord> {
    let stored: StoredSpec<'_> =
        postcard::from_bytes(bytes).map_err(|source| UndecodableRecord {
            what: "specification",
            source,
        })?;
    Ok((stored.spec.into_owned(), stored.prompt.map(BodyHash)))
}

pub(crate) fn decode_task(bytes: &[u8]) -> Result<Arc<TaskRecord>, UndecodableRecord> {
    decode("task", bytes).map(Arc::new)
}

/// Decodes one relay-wide control record into the recovered state. Other records do not belong
/// to the core and are ignored.
pub(crate) fn decode_control(
    name: &str,
    bytes: &[u8],
    into: &mut RecoveredState,
) -> Result<(), UndecodableRecord> {
    if name == SCHEDULER {
        into.scheduler = decode_scheduler(bytes)?;
    } else if name == FORGOTTEN {
        into.forgotten = decode_forgotten(bytes)?;
    } else if name == DAEMON_CHANGES {
        into.daemon_changes = decode_daemon_changes(bytes)?;
    } else if name == PAUSES {
        into.pauses = decode_pauses(bytes)?;
    } else if name.starts_with(FENCE_PREFIX) {
        into.fences.push(decode::<FenceRecord>("fence", bytes)?);
    }
    Ok(())
}

/// The damage to report to the core for control records that were skipped.
pub(crate) fn control_damage(keys: &[RecordKey], pages: u64) -> RecordDamage {
    let mut damage = if pages > 0 {
        RecordDamage::unknown_extent()
    } else {
        RecordDamage::default()
    };
    let names = keys.iter().filter_map(|key| match key {
        RecordKey::Control { name, .. } => Some(name.as_str()),
        _other_kind => None,
    });
    for name in names {
        damage.scheduler |= name == SCHEDULER;
        damage.pauses |= name == PAUSES;
        let attempt = name.strip_prefix(FENCE_PREFIX).map(str::parse);
        damage
            .fences
            .extend(attempt.and_then(Result::<AttemptId, _>::ok));
    }
    damage
}

pub(crate) fn decode_scheduler(bytes: &[u8]) -> Result<SchedulerRecord, UndecodableRecord> {
    decode("scheduler switch", bytes)
}

pub(crate) fn decode_forgotten(bytes: &[u8]) -> Result<ForgottenDaemonsRecord, UndecodableRecord> {
    decode("list of forgotten daemons", bytes)
}

pub(crate) fn decode_daemon_changes(
    bytes: &[u8],
) -> Result<DaemonChangesRecord, UndecodableRecord> {
    decode("list of changes to daemons", bytes)
}

pub(crate) fn decode_idempotency(bytes: &[u8]) -> Result<IdempotencyRecord, UndecodableRecord> {
    decode("idempotency key", bytes)
}

pub(crate) fn decode_progress(bytes: &[u8]) -> Result<Arc<ProgressRecord>, UndecodableRecord> {
    decode("progress", bytes).map(Arc::new)
}

pub(crate) fn decode_checkpoint(bytes: &[u8]) -> Result<Arc<CheckpointRecord>, UndecodableRecord> {
    decode("checkpoint", bytes).map(Arc::new)
}

pub(crate) fn decode_daemon(bytes: &[u8]) -> Result<Arc<DaemonRecord>, UndecodableRecord> {
    decode("daemon", bytes).map(Arc::new)
}

pub(crate) fn tenant_text(tenant: &TenantId) -> KeyText {
    key_text(tenant.as_str())
}

/// The tenant part of a key for records that one tenant or the shared fleet owns.
pub(crate) fn scope_text(scope: &TenantScope) -> KeyText {
    match scope {
        TenantScope::One(tenant) => tenant_text(tenant),
        TenantScope::All => key_text(SHARED_FLEET),
    }
}

pub(crate) fn spec_key(tenant: &TenantId, task: TaskId) -> RecordKey {
    RecordKey::Spec {
        tenant: tenant_text(tenant),
        task: task.0,
    }
}

pub(crate) fn live_key(tenant: &TenantId, task: TaskId) -> RecordKey {
    RecordKey::Live {
        tenant: tenant_text(tenant),
        task: task.0,
    }
}

pub(crate) fn done_key(tenant: &TenantId, task: TaskId) -> RecordKey {
    RecordKey::Done {
        tenant: tenant_text(tenant),
        task: task.0,
    }
}

pub(crate) fn progress_key(tenant: &TenantId, task: TaskId) -> RecordKey {
    RecordKey::Progress {
        tenant: tenant_text(tenant),
        task: task.0,
    }
}

pub(crate) fn checkpoint_key(tenant: &TenantId, task: TaskId, number: u64) -> RecordKey {
    RecordKey::Checkpoint {
        tenant: tenant_text(tenant),
        task: task.0,
        number,
    }
}

pub(crate) fn idempotency_key(tenant: &TenantId, key: &str) -> RecordKey {
    RecordKey::Idempotency {
        tenant: tenant_text(tenant),
        digest: Sha256::digest(key.as_bytes()).into(),
    }
}

pub(crate) fn daemon_key(scope: &TenantScope, daemon: DaemonId) -> RecordKey {
    RecordKey::Daemon {
        tenant: scope_text(scope),
        daemon: daemon.0,
    }
}

pub(crate) fn body_key(hash: BodyHash, task: TaskId) -> RecordKey {
    RecordKey::Body {
        hash: hash.0,
        task: task.0,
    }
}

pub(crate) fn scheduler_key() -> RecordKey {
    RecordKey::Control {
        tenant: None,
        name: key_text(SCHEDULER),
    }
}

pub(crate) fn decode_pauses(bytes: &[u8]) -> Result<PausesRecord, UndecodableRecord> {
    decode("list of pauses", bytes)
}

pub(crate) fn forgotten_key() -> RecordKey {
    RecordKey::Control {
        tenant: None,
        name: key_text(FORGOTTEN),
    }
}

pub(crate) fn daemon_changes_key() -> RecordKey {
    RecordKey::Control {
        tenant: None,
        name: key_text(DAEMON_CHANGES),
    }
}

pub(crate) fn pauses_key() -> RecordKey {
    RecordKey::Control {
        tenant: None,
        name: key_text(PAUSES),
    }
}

fn fence_key(attempt: AttemptId) -> RecordKey {
    RecordKey::Control {
        tenant: None,
        name: key_text(&format!("{FENCE_PREFIX}{attempt}")),
    }
}

fn key_text(name: &str) -> KeyText {
    KeyText::new(name).expect("tenant names and the constants above are valid key text")
}
