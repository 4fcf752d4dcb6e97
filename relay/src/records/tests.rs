//! The shape of stored records. Data of schema 1 is read and written again byte for byte: whoever changes what a record
//! holds finds out here that it needs a new schema number (ARCHITECTURE.md has the rule).

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

/// A copy of the kept store, with the zeros at the end of its files.
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

/// What this version writes for the record that it reads.
fn reencode_record(key: &RecordKey, bytes: &[u8]) -> Vec<u8> {
    match key {
        // The key says it all.
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
fn what_a_schema_left_is_written_again_byte_for_byte() {
    let number = RecordSchema::CURRENT.number();
    let dir = tempfile::tempdir().unwrap();
    copy_store(number, dir.path());
    let config = StoreConfig::new(dir.path().join("store"), uuid::Uuid::now_v7());
    let mut kinds = BTreeMap::new();
    Store::with_offline_store(config, |looked| {
        let told = looked.store.dump(|told| {
            let DumpItem::Record(key, bytes) = told else {
                return Err(format!("{told:?}"));
            };
            let same = reencode_record(&key, &bytes) == *bytes;
            assert!(
                same,
                "{key:?} has another shape; tests/migration/README.md says what to do"
            );
            *kinds.entry(key.kind().as_str()).or_insert(0) += 1;
            Ok(())
        });
        told.unwrap();
    })
    .unwrap();
    assert_eq!(kinds.len(), 11, "something of each kind: {kinds:?}");
}
