//! A migration that is killed at each of its writes in turn. It runs in a child process, and
//! the test examines the directory afterwards with the newer and the older version.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use baton_relay::store::{
    DumpItem, OpenedStore, RecordKey, RecordKind, RecordSchema, SchemaStep, Store, StoreChange,
    StoreConfig, StoreOpenError,
};
use baton_tests::copy_directory;
use tempfile::TempDir;
use uuid::Uuid;

use crate::BATON;
use crate::schema_fixture::copy_schema_data;
use crate::write_counter::kill_at_write;

const DIRECTORY_VARIABLE: &str = "BATON_TEST_MIGRATION_DIR";
const LAST_WRITE_VARIABLE: &str = "BATON_TEST_MIGRATION_LAST_WRITE";
/// An upper bound of the writes of a migration.
const WRITES_MAX: i64 = 2_000;
const SIGKILL: i32 = 9;

/// The next schema for these tests: every record gets a prefix.
const NEXT_SCHEMA: RecordSchema = RecordSchema::of(&[SchemaStep {
    name: "add a prefix to every record",
    migrate_record: |key, body| Some(to_next_schema(key, body)),
}]);

fn to_next_schema(key: &RecordKey, body: &[u8]) -> Vec<u8> {
    [b"next ", key.kind().as_str().as_bytes(), b" ", body].concat()
}

type SchemaRecords = BTreeMap<RecordKey, Vec<u8>>;

fn open_store(dir: &Path, schema: RecordSchema) -> Result<OpenedStore, StoreOpenError> {
    let mut config = StoreConfig::new(dir.join("store"), Uuid::now_v7());
    config.schema = schema;
    Store::open(config)
}

/// All records, except the facts about the directory.
fn read_records(opened: &OpenedStore) -> SchemaRecords {
    let mut records = SchemaRecords::new();
    let result = opened.store.dump(|item| {
        match item {
            DumpItem::Record(key, body) => drop(records.insert(key, body.to_vec())),
            DumpItem::Change(StoreChange::Put(key, body)) => drop(records.insert(key, body)),
            DumpItem::Change(StoreChange::Delete(key)) => drop(records.remove(&key)),
            DumpItem::Unreadable(key, why) => return Err(format!("{key:?}: {why}")),
        }
        Ok(())
    });
    result.expect("all records are readable");
    records
}

fn close_store(opened: OpenedStore) {
    opened.journal.close().expect("the store closes");
}

/// The records of the directory, before and after the migration.
fn expected_records() -> (SchemaRecords, SchemaRecords) {
    let dir = copy_schema_data(1);
    let opened = open_store(dir.path(), RecordSchema::CURRENT).expect("the directory opens");
    let before = read_records(&opened);
    close_store(opened);
    let kinds: std::collections::BTreeSet<RecordKind> =
        before.keys().map(RecordKey::kind).collect();
    assert_eq!(kinds.len(), 11, "a record of each kind: {kinds:?}");
    assert!(
        before.values().any(|body| body.len() > 4_000),
        "and one of several parts"
    );
    let after = before
        .iter()
        .map(|(key, body)| (key.clone(), to_next_schema(key, body)));
    let after = after.collect();
    (before, after)
}

/// The process that is killed. Does nothing unless a test below started it.
#[test]
fn process_that_migrates() {
    let Ok(dir) = std::env::var(DIRECTORY_VARIABLE) else {
        return;
    };
    let last = std::env::var(LAST_WRITE_VARIABLE).unwrap().parse().unwrap();
    kill_at_write(last);
    let opened = open_store(Path::new(&dir), NEXT_SCHEMA).expect("the next version opens it");
    close_store(opened);
}

/// False if it was killed.
fn migrate(dir: &Path, last_write: i64) -> bool {
    let status = Command::new(std::env::current_exe().expect("this executable"))
        .args(["--exact", "migration_kills::process_that_migrates"])
        .env(DIRECTORY_VARIABLE, dir)
        .env(LAST_WRITE_VARIABLE, last_write.to_string())
        .stdout(Stdio::null())
        .status()
        .expect("this executable can be started");
    assert!(
        status.success() || status.signal() == Some(SIGKILL),
        "{status:?}"
    );
    status.success()
}

/// Whether the older version refuses the directory. If not, it must find all records unchanged.
fn older_version_refuses(dir: &Path, before: &SchemaRecords) -> bool {
    let copied = TempDir::new().expect("a temporary directory can be created");
    copy_directory(dir, copied.path());
    match open_store(copied.path(), RecordSchema::CURRENT) {
        Ok(opened) => {
            assert_eq!(
                read_records(&opened),
                *before,
                "the migration had not begun"
            );
            close_store(opened);
            false
        }
        Err(refusal) => {
            assert_eq!(refusal.code(), "store_newer_schema", "{refusal}");
            assert!(
                refusal.to_string().contains("start the newer version"),
                "{refusal}"
            );
            true
        }
    }
}

/// The next version's start finishes the migration, and the start after it has nothing left to
/// do.
fn next_version_finishes(dir: &Path, after: &SchemaRecords) {
    let opened = open_store(dir, NEXT_SCHEMA).expect("the next start continues the migration");
    let migrated = opened.recovery.migrated.clone();
    assert!(migrated.is_none_or(|migrated| migrated.left_unmigrated == 0));
    assert_eq!(read_records(&opened), *after);
    close_store(opened);
    let again = open_store(dir, NEXT_SCHEMA).expect("a migrated directory opens");
    assert_eq!(again.recovery.migrated, None);
    assert_eq!(read_records(&again), *after);
    let verified = again.store.verify().expect("the disk can be read");
    assert_eq!(verified.unreadable, 0);
    close_store(again);
}

#[test]
fn a_migration_killed_at_any_write_is_finished_without_loss() {
    let (before, after) = expected_records();
    let (mut refused, mut untouched) = (0, 0);
    for last_write in 1..WRITES_MAX {
        let dir = copy_schema_data(1);
        let finished = migrate(dir.path(), last_write);
        if older_version_refuses(dir.path(), &before) {
            refused += 1;
        } else {
            untouched += 1;
            assert!(!finished, "the older version opens migrated data");
        }
        next_version_finishes(dir.path(), &after);
        if finished {
            println!(
                "{} records, killed at each of {} writes: {untouched} times before anything was newer, \
                 {} times after it",
                before.len(),
                last_write - 1,
                refused - 1
            );
            assert!(untouched > 0 && refused > 1);
            return;
        }
    }
    panic!("the migration does not finish");
}

#[test]
fn a_repeatedly_killed_migration_makes_progress() {
    let (before, after) = expected_records();
    let dir = copy_schema_data(1);
    for last_write in (1..WRITES_MAX).step_by(3) {
        let finished = migrate(dir.path(), last_write);
        older_version_refuses(dir.path(), &before);
        if finished {
            return next_version_finishes(dir.path(), &after);
        }
    }
    panic!("the migration does not finish");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_relay_refuses_migrated_data_with_a_hint() {
    let (_, after) = expected_records();
    let dir = copy_schema_data(1);
    assert!(migrate(dir.path(), i64::MAX));
    let start = ["relay", "--listen", "127.0.0.1:0", "--accept-loss"];
    let refused = BATON.run(dir.path(), &start).await;
    assert!(
        refused.stderr.contains("[store_newer_schema]"),
        "{refused:?}"
    );
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("start the newer version"),
        "{refused:?}"
    );
    let verified = BATON.run(dir.path(), &["verify"]).await;
    assert_eq!(verified.code, Some(1), "{verified:?}");
    assert!(
        verified.stdout.contains("of a newer version"),
        "{verified:?}"
    );
    next_version_finishes(dir.path(), &after);
}
