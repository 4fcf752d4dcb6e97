//! Between the core's records and the store's bytes: which key each record has, and how it is written and read.
//!
//! The only file that encodes or decodes a record. Recovery and ordinary reads use the same path.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use baton_core::Recovered;
use baton_core::damage::Damage;
use baton_core::effects::Write;
use baton_core::goal::CHECKPOINTS_KEPT;
use baton_core::id::{AttemptId, DaemonId, TaskId, TenantId, TenantScope};
use baton_core::record::{
    CheckpointRecord, DaemonChangesRecord, DaemonRecord, FenceRecord, ForgottenRecord,
    IdempotencyRecord, PausesRecord, ProgressRecord, SchedulerRecord, TaskRecord,
};
use baton_core::spec::TaskSpec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::bodies::{BODY_INLINE_MAX, BodyHash};
use crate::store::{Change, Key, KeyText};

/// Tenant part of keys that belong to a fleet shared by all tenants. No tenant can have this name.
const SHARED: &str = "*";
const FENCE_PREFIX: &str = "fence/";
const SCHEDULER: &str = "scheduler";
const FORGOTTEN: &str = "forgotten-daemons";
const DAEMON_CHANGES: &str = "daemon-changes";
const PAUSES: &str = "pauses";

/// A stored value that this version cannot read.
#[derive(Debug, thiserror::Error)]
#[error("a stored {what} cannot be read: {source}")]
pub(crate) struct Undecodable {
    what: &'static str,
    source: postcard::Error,
}

/// A task's specification as stored: a long prompt is a file named by its hash.
#[derive(Serialize, Deserialize)]
struct StoredSpec<'a> {
    #[serde(borrow)]
    spec: std::borrow::Cow<'a, TaskSpec>,
    prompt: Option<[u8; 32]>,
}

/// The store changes that one write of the core stands for.
#[expect(
    clippy::too_many_lines,
    reason = "one arm per write, and each only says where it goes"
)]
pub(crate) fn changes(write: &Write, into: &mut Vec<Change>) {
    match write {
        Write::PutSpec { task, spec } => {
            let (bytes, body) = encode_spec(spec);
            into.push(Change::Put(spec_key(&spec.tenant, *task), bytes));
            into.extend(body.map(|hash| Change::Put(body_key(hash, *task), Vec::new())));
        }
        Write::PutLive(record) => into.push(Change::Put(
            live_key(&record.tenant, record.task),
            encode(&**record),
        )),
        Write::PutDone(record) => {
            into.push(Change::Put(
                done_key(&record.tenant, record.task),
                encode(&**record),
            ));
            into.push(Change::Delete(live_key(&record.tenant, record.task)));
        }
        Write::Reopen(record) => {
            into.push(Change::Put(
                live_key(&record.tenant, record.task),
                encode(&**record),
            ));
            into.push(Change::Delete(done_key(&record.tenant, record.task)));
        }
        Write::PutIdempotency {
            tenant,
            key,
            record,
        } => {
            into.push(Change::Put(idempotency_key(tenant, key), encode(record)));
        }
        Write::PutDaemon(record) => {
            into.push(Change::Put(
                daemon_key(&record.scope, record.daemon),
                encode(&**record),
            ));
        }
        Write::PutScheduler(record) => into.push(Change::Put(scheduler_key(), encode(record))),
        Write::PutFence(record) => {
            into.push(Change::Put(fence_key(record.attempt), encode(record)))
        }
        Write::DropFence(attempt) => into.push(Change::Delete(fence_key(*attempt))),
        Write::PutProgress(record) => into.push(Change::Put(
            progress_key(&record.tenant, record.task),
            encode(&**record),
        )),
        Write::PutCheckpoint(record) => into.push(Change::Put(
            checkpoint_key(&record.tenant, record.task, record.number),
            encode(&**record),
        )),
        Write::DropCheckpoint {
            tenant,
            task,
            number,
        } => into.push(Change::Delete(checkpoint_key(tenant, *task, *number))),
        Write::RemoveTask {
            tenant,
            task,
            idempotency_key: key,
            body,
            checkpoints,
        } => {
            into.push(Change::Delete(spec_key(tenant, *task)));
            into.push(Change::Delete(done_key(tenant, *task)));
            remove_goal(tenant, *task, *checkpoints, into);
            into.extend(
                key.iter()
                    .map(|key| Change::Delete(idempotency_key(tenant, key))),
            );
            into.extend(body.map(|hash| Change::Delete(body_key(BodyHash(hash), *task))));
        }
        Write::PutForgotten(record) => into.push(Change::Put(forgotten_key(), encode(record))),
        Write::PutDaemonChanges(record) => {
            into.push(Change::Put(daemon_changes_key(), encode(record)));
        }
        Write::PutPauses(record) => into.push(Change::Put(pauses_key(), encode(record))),
        Write::DropDaemon(record) => {
            into.push(Change::Delete(daemon_key(&record.scope, record.daemon)));
        }
    }
}

fn remove_goal(tenant: &TenantId, task: TaskId, checkpoints: u64, into: &mut Vec<Change>) {
    into.push(Change::Delete(progress_key(tenant, task)));
    // And one that was stored ahead of a record that never came.
    let kept = checkpoints.saturating_sub(CHECKPOINTS_KEPT) + 1..=checkpoints + 1;
    into.extend(kept.map(|n| Change::Delete(checkpoint_key(tenant, task, n))));
}

/// Most records are shorter; growing to it step by step showed in the profile.
const USUAL_BYTES: usize = 1024;

pub(crate) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    postcard::to_extend(record, Vec::with_capacity(USUAL_BYTES))
        .expect("records hold only what postcard can write")
}

pub(crate) fn decode<T: DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
) -> Result<T, Undecodable> {
    postcard::from_bytes(bytes).map_err(|source| Undecodable { what, source })
}

/// What a specification takes in an append, which must stay far below the journal's limit of 1 MiB: a record that is
/// too large to store could only stop the relay.
pub(crate) const SPEC_BYTES_MAX: usize = 512 * 1024;

/// Bytes that the specification's record has.
pub(crate) fn spec_bytes(spec: &TaskSpec) -> usize {
    encode_spec(spec).0.len()
}

/// The record, and the body that holds the prompt where that is too long for it.
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

/// The specification, and the body that its prompt has to be filled from.
pub(crate) fn decode_spec(bytes: &[u8]) -> Result<(TaskSpec, Option<BodyHash>), Undecodable> {
    let stored: StoredSpec<'_> = postcard::from_bytes(bytes).map_err(|source| Undecodable {
        what: "specification",
        source,
    })?;
    Ok((stored.spec.into_owned(), stored.prompt.map(BodyHash)))
}

pub(crate) fn decode_task(bytes: &[u8]) -> Result<Arc<TaskRecord>, Undecodable> {
    decode("task", bytes).map(Arc::new)
}

/// Puts one relay-wide control record where it belongs; others are not the core's.
pub(crate) fn decode_control(
    name: &str,
    bytes: &[u8],
    into: &mut Recovered,
) -> Result<(), Undecodable> {
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

/// What the core is told of control records that were passed over.
pub(crate) fn damage(keys: &[Key], pages: u64) -> Damage {
    let mut damage = if pages > 0 {
        Damage::anywhere()
    } else {
        Damage::default()
    };
    let names = keys.iter().filter_map(|key| match key {
        Key::Control { name, .. } => Some(name.as_str()),
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

pub(crate) fn decode_scheduler(bytes: &[u8]) -> Result<SchedulerRecord, Undecodable> {
    decode("scheduler switch", bytes)
}

pub(crate) fn decode_forgotten(bytes: &[u8]) -> Result<ForgottenRecord, Undecodable> {
    decode("list of forgotten daemons", bytes)
}

pub(crate) fn decode_daemon_changes(bytes: &[u8]) -> Result<DaemonChangesRecord, Undecodable> {
    decode("list of what was done to daemons", bytes)
}

pub(crate) fn decode_idempotency(bytes: &[u8]) -> Result<IdempotencyRecord, Undecodable> {
    decode("idempotency key", bytes)
}

pub(crate) fn decode_progress(bytes: &[u8]) -> Result<Arc<ProgressRecord>, Undecodable> {
    decode("progress", bytes).map(Arc::new)
}

pub(crate) fn decode_checkpoint(bytes: &[u8]) -> Result<Arc<CheckpointRecord>, Undecodable> {
    decode("checkpoint", bytes).map(Arc::new)
}

pub(crate) fn decode_daemon(bytes: &[u8]) -> Result<Arc<DaemonRecord>, Undecodable> {
    decode("daemon", bytes).map(Arc::new)
}

pub(crate) fn tenant_text(tenant: &TenantId) -> KeyText {
    text(tenant.as_str())
}

/// The tenant part of a key for records that one tenant or the shared fleet owns.
pub(crate) fn scope_text(scope: &TenantScope) -> KeyText {
    match scope {
        TenantScope::One(tenant) => tenant_text(tenant),
        TenantScope::All => text(SHARED),
    }
}

pub(crate) fn spec_key(tenant: &TenantId, task: TaskId) -> Key {
    Key::Spec {
        tenant: tenant_text(tenant),
        task: task.0,
    }
}

pub(crate) fn live_key(tenant: &TenantId, task: TaskId) -> Key {
    Key::Live {
        tenant: tenant_text(tenant),
        task: task.0,
    }
}

pub(crate) fn done_key(tenant: &TenantId, task: TaskId) -> Key {
    Key::Done {
        tenant: tenant_text(tenant),
        task: task.0,
    }
}

pub(crate) fn progress_key(tenant: &TenantId, task: TaskId) -> Key {
    Key::Progress {
        tenant: tenant_text(tenant),
        task: task.0,
    }
}

pub(crate) fn checkpoint_key(tenant: &TenantId, task: TaskId, number: u64) -> Key {
    Key::Checkpoint {
        tenant: tenant_text(tenant),
        task: task.0,
        number,
    }
}

pub(crate) fn idempotency_key(tenant: &TenantId, key: &str) -> Key {
    Key::Idempotency {
        tenant: tenant_text(tenant),
        digest: Sha256::digest(key.as_bytes()).into(),
    }
}

pub(crate) fn daemon_key(scope: &TenantScope, daemon: DaemonId) -> Key {
    Key::Daemon {
        tenant: scope_text(scope),
        daemon: daemon.0,
    }
}

pub(crate) fn body_key(hash: BodyHash, task: TaskId) -> Key {
    Key::Body {
        hash: hash.0,
        task: task.0,
    }
}

pub(crate) fn scheduler_key() -> Key {
    Key::Control {
        tenant: None,
        name: text(SCHEDULER),
    }
}

pub(crate) fn decode_pauses(bytes: &[u8]) -> Result<PausesRecord, Undecodable> {
    decode("list of pauses", bytes)
}

pub(crate) fn forgotten_key() -> Key {
    Key::Control {
        tenant: None,
        name: text(FORGOTTEN),
    }
}

pub(crate) fn daemon_changes_key() -> Key {
    Key::Control {
        tenant: None,
        name: text(DAEMON_CHANGES),
    }
}

pub(crate) fn pauses_key() -> Key {
    Key::Control {
        tenant: None,
        name: text(PAUSES),
    }
}

fn fence_key(attempt: AttemptId) -> Key {
    Key::Control {
        tenant: None,
        name: text(&format!("{FENCE_PREFIX}{attempt}")),
    }
}

fn text(name: &str) -> KeyText {
    KeyText::new(name).expect("tenant names and our own words fit into keys")
}
