//! The format of stored records. Data of the current schema is read and encoded again, and must
//! not change by a byte. A change to a record type therefore fails here until it gets a new
//! schema number (the rule is in docs/design/storage.md).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

use baton_core::record::{
    DaemonChangesRecord, DaemonRecord, FenceRecord, ForgottenDaemonsRecord, IdempotencyRecord,
    PausesRecord, SchedulerRecord, TaskRecord,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::*;
use crate::api::operator::profiles::ProfileRecord;
use crate::auth::TokenRecord;
use crate::store::{DumpItem, RecordSchema, Store, StoreConfig};

/// See tests/migration/README.md.
fn schema_fixture_dir(schema: u16) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/migration/schema-{schema}"))
}

/// Copies the recorded store and restores the zeros at the end of its files.
fn copy_store(schema: u16, to: &Path) {
    let lengths = fs::read(schema_fixture_dir(schema).join("lengths.json")).unwrap();
    let lengths: BTreeMap<String, u64> = serde_json::from_slice(&lengths).unwrap();
    for (file, len) in lengths
        .iter()
        .filter(|(file, _)| file.starts_with("store/"))
    {
        let path = to.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(schema_fixture_dir(schema).join("data").join(file), &path).unwrap();
        let copy = File::options().write(true).open(path).unwrap();
        copy.set_len(*len).unwrap();
    }
}

fn reencode<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Vec<u8> {
    encode(&decode::<T>("kept record", bytes).unwrap())
}

/// The bytes that this version writes for a stored record.
fn reencode_record(key: &RecordKey, bytes: &[u8]) -> Vec<u8> {
    match key {
        // The value is empty or is not a record; the key contains everything.
        RecordKey::Meta(_) | RecordKey::Body { .. } => bytes.to_vec(),
        RecordKey::Control { name, .. } if name.as_str() == SCHEDULER => {
            reencode::<SchedulerRecord>(bytes)
        }
        RecordKey::Control { name, .. } if name.as_str() == FORGOTTEN => {
            reencode::<ForgottenDaemonsRecord>(bytes)
        }
        RecordKey::Control { name, .. } if name.as_str() == DAEMON_CHANGES => {
            reencode::<DaemonChangesRecord>(bytes)
        }
        RecordKey::Control { name, .. } if name.as_str() == PAUSES => {
            reencode::<PausesRecord>(bytes)
        }
        RecordKey::Control { .. } => reencode::<FenceRecord>(bytes),
        RecordKey::Spec { .. } => {
            let stored: StoredSpec<'_> = postcard::from_bytes(bytes).unwrap();
            encode(&stored)
        }
        RecordKey::Live { .. } | RecordKey::Done { .. } => reencode::<TaskRecord>(bytes),
        RecordKey::Idempotency { .. } => reencode::<IdempotencyRecord>(bytes),
        RecordKey::Progress { .. } => reencode::<ProgressRecord>(bytes),
        RecordKey::Checkpoint { .. } => reencode::<CheckpointRecord>(bytes),
        RecordKey::Profile { .. } => reencode::<ProfileRecord>(bytes),
        RecordKey::Token { .. } => reencode::<TokenRecord>(bytes),
        RecordKey::Daemon { .. } => reencode::<DaemonRecord>(bytes),
    }
}

#[test]
fn records_of_the_current_schema_are_encoded_byte_for_byte() {
    let number = RecordSchema::CURRENT.number();
    let dir = tempfile::tempdir().unwrap();
    copy_store(number, dir.path());
    let config = StoreConfig::new(dir.path().join("store"), uuid::Uuid::now_v7());
    let mut kinds = BTreeMap::new();
    Store::with_offline_store(config, |offline| {
        let dumped = offline.store.dump(|item| {
            let DumpItem::Record(key, bytes) = item else {
                return Err(format!("{item:?}"));
            };
            let same = reencode_record(&key, &bytes) == *bytes;
            assert!(
                same,
                "{key:?} is encoded differently; tests/migration/README.md explains what to do"
            );
            *kinds.entry(key.kind().as_str()).or_insert(0) += 1;
            Ok(())
        });
        dumped.unwrap();
    })
    .unwrap();
    assert_eq!(
        kinds.len(),
        11,
        "every kind of record must occur: {kinds:?}"
    );
}
