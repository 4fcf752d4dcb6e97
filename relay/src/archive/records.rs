//! What one record says to those who carry or check it: whether it can be read, and what else it names.

use baton_core::Recovered;
use baton_core::record::TaskRecord;
use uuid::Uuid;

use crate::api::profiles::ProfileRecord;
use crate::auth::TokenRecord;
use crate::bodies::BodyHash;
use crate::records;
use crate::store::{Key, KeyText};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fact {
    /// A specification, and the long prompt that it names.
    Spec {
        task: Uuid,
        body: Option<BodyHash>,
    },
    /// A task, and its attempts with the end of their output where that was said.
    Task {
        task: Uuid,
        attempts: Vec<(Uuid, Option<u64>)>,
    },
    /// A submission's key, and the task that it made.
    Idempotency {
        task: Uuid,
    },
    Other,
}

/// Reads the record as the relay would. The error is for people.
pub(super) fn fact(key: &Key, bytes: &[u8]) -> Result<Fact, String> {
    let undecodable = |error: records::Undecodable| error.to_string();
    match key {
        Key::Meta(_) | Key::Body { .. } => Ok(Fact::Other),
        Key::Control { name, .. } => {
            let read = records::decode_control(name.as_str(), bytes, &mut Recovered::default());
            read.map(|()| Fact::Other).map_err(undecodable)
        }
        Key::Spec { tenant, task } => {
            let (spec, body) = records::decode_spec(bytes).map_err(undecodable)?;
            same("tenant", spec.tenant.as_str(), tenant.as_str())?;
            Ok(Fact::Spec { task: *task, body })
        }
        Key::Live { tenant, task } => task_fact(bytes, tenant, *task, false),
        Key::Done { tenant, task } => task_fact(bytes, tenant, *task, true),
        Key::Idempotency { .. } => {
            let record = records::decode_idempotency(bytes).map_err(undecodable)?;
            Ok(Fact::Idempotency {
                task: record.task.0,
            })
        }
        Key::Progress { task, .. } => {
            let record = records::decode_progress(bytes).map_err(undecodable)?;
            same("task", record.task.0, *task).map(|()| Fact::Other)
        }
        Key::Checkpoint { task, number, .. } => {
            let record = records::decode_checkpoint(bytes).map_err(undecodable)?;
            same("task", record.task.0, *task)?;
            same("number", record.number, *number).map(|()| Fact::Other)
        }
        Key::Profile { .. } => {
            records::decode::<ProfileRecord>("profile", bytes).map_err(undecodable)?;
            Ok(Fact::Other)
        }
        Key::Token { token, .. } => {
            let record = records::decode::<TokenRecord>("token", bytes).map_err(undecodable)?;
            same("token", record.id.0, *token).map(|()| Fact::Other)
        }
        Key::Daemon { daemon, .. } => {
            let record = records::decode_daemon(bytes).map_err(undecodable)?;
            same("daemon", record.daemon.0, *daemon).map(|()| Fact::Other)
        }
    }
}

fn task_fact(bytes: &[u8], tenant: &KeyText, task: Uuid, finished: bool) -> Result<Fact, String> {
    let record = records::decode_task(bytes).map_err(|error| error.to_string())?;
    let record: &TaskRecord = &record;
    same("tenant", record.tenant.as_str(), tenant.as_str())?;
    same("task", record.task.0, task)?;
    if record.state.is_terminal() != finished {
        return Err(format!(
            "a task that is {} stands among those that are {}",
            record.state.as_str(),
            if finished { "finished" } else { "open" }
        ));
    }
    let attempts = record.attempts.iter();
    Ok(Fact::Task {
        task,
        attempts: attempts
            .map(|attempt| (attempt.id.0, attempt.final_offset))
            .collect(),
    })
}

/// A record under the key of another one.
fn same<T: PartialEq + std::fmt::Display>(what: &str, inside: T, key: T) -> Result<(), String> {
    if inside == key {
        Ok(())
    } else {
        Err(format!("it names the {what} {inside}, and its key {key}"))
    }
}
