//! Decodes a record for an export or a verification: whether it can be read, and what it refers
//! to.

use baton_core::RecoveredState;
use baton_core::record::TaskRecord;
use uuid::Uuid;

use crate::api::operator::profiles::ProfileRecord;
use crate::auth::TokenRecord;
use crate::body_files::BodyHash;
use crate::records;
use crate::store::{KeyText, RecordKey};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum RecordReferences {
    /// A specification, and the long prompt that it refers to.
    Spec {
        task: Uuid,
        body: Option<BodyHash>,
    },
    /// A task, and its attempts with the end of their output if it was reported.
    Task {
        task: Uuid,
        attempts: Vec<(Uuid, Option<u64>)>,
    },
    /// An idempotency key, and the task that it created.
    Idempotency {
        task: Uuid,
    },
    Other,
}

/// Decodes the record like the relay would. The error is a message for people.
pub(super) fn record_references(key: &RecordKey, bytes: &[u8]) -> Result<RecordReferences, String> {
    let undecodable = |error: records::UndecodableRecord| error.to_string();
    match key {
        RecordKey::Meta(_) | RecordKey::Body { .. } => Ok(RecordReferences::Other),
        RecordKey::Control { name, .. } => {
            let read =
                records::decode_control(name.as_str(), bytes, &mut RecoveredState::default());
            read.map(|()| RecordReferences::Other).map_err(undecodable)
        }
        RecordKey::Spec { tenant, task } => {
            let (spec, body) = records::decode_spec(bytes).map_err(undecodable)?;
            check_same("tenant", spec.tenant.as_str(), tenant.as_str())?;
            Ok(RecordReferences::Spec { task: *task, body })
        }
        RecordKey::Live { tenant, task } => task_references(bytes, tenant, *task, false),
        RecordKey::Done { tenant, task } => task_references(bytes, tenant, *task, true),
        RecordKey::Idempotency { .. } => {
            let record = records::decode_idempotency(bytes).map_err(undecodable)?;
            Ok(RecordReferences::Idempotency {
                task: record.task.0,
            })
        }
        RecordKey::Progress { task, .. } => {
            let record = records::decode_progress(bytes).map_err(undecodable)?;
            check_same("task", record.task.0, *task).map(|()| RecordReferences::Other)
        }
        RecordKey::Checkpoint { task, number, .. } => {
            let record = records::decode_checkpoint(bytes).map_err(undecodable)?;
            check_same("task", record.task.0, *task)?;
            check_same("number", record.number, *number).map(|()| RecordReferences::Other)
        }
        RecordKey::Profile { .. } => {
            records::decode::<ProfileRecord>("profile", bytes).map_err(undecodable)?;
            Ok(RecordReferences::Other)
        }
        RecordKey::Token { token, .. } => {
            let record = records::decode::<TokenRecord>("token", bytes).map_err(undecodable)?;
            check_same("token", record.id.0, *token).map(|()| RecordReferences::Other)
        }
        RecordKey::Daemon { daemon, .. } => {
            let record = records::decode_daemon(bytes).map_err(undecodable)?;
            check_same("daemon", record.daemon.0, *daemon).map(|()| RecordReferences::Other)
        }
    }
}

fn task_references(
    bytes: &[u8],
    tenant: &KeyText,
    task: Uuid,
    finished: bool,
) -> Result<RecordReferences, String> {
    let record = records::decode_task(bytes).map_err(|error| error.to_string())?;
    let record: &TaskRecord = &record;
    check_same("tenant", record.tenant.as_str(), tenant.as_str())?;
    check_same("task", record.task.0, task)?;
    if record.state.is_terminal() != finished {
        return Err(format!(
            "a task in state {} is stored among the {} tasks",
            record.state.as_str(),
            if finished { "finished" } else { "open" }
        ));
    }
    let attempts = record.attempts.iter();
    Ok(RecordReferences::Task {
        task,
        attempts: attempts
            .map(|attempt| (attempt.id.0, attempt.final_offset))
            .collect(),
    })
}

/// Checks that a record belongs to its key.
fn check_same<T: PartialEq + std::fmt::Display>(
    what: &str,
    value: T,
    key: T,
) -> Result<(), String> {
    if value == key {
        Ok(())
    } else {
        Err(format!(
            "the record has the {what} {value}, but its key has {key}"
        ))
    }
}
