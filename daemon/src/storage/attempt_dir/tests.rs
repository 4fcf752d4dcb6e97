//! File names, the stored description, and what a removal deletes and what it leaves.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use baton_proto::v1::{AttemptRef, CompletionContract, RequiredArtifact};
use baton_proto::worker;
use bytes::Bytes;
use prost::Message;

use super::*;
use crate::deadlines::DeadlineLimits;
use crate::receipts::RequiredFiles;
use crate::storage::checked_record;
use crate::storage::checked_record::CheckedRead;

fn meta(id: AttemptId) -> AttemptMeta {
    AttemptMeta {
        attempt: AttemptRef {
            task_id: Uuid::now_v7().to_string(),
            attempt_id: id.to_string(),
            attempt_number: 3,
            incarnation: "of the relay".to_owned(),
            traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned(),
            ..AttemptRef::default()
        },
        agent: "command".to_owned(),
        daemon_id: "d-1".to_owned(),
        boot_id: "b-1".to_owned(),
        deadlines: DeadlineLimits {
            stream_idle: Some(Duration::from_secs(90)),
            total: Some(Duration::from_secs(7200)),
            ..DeadlineLimits::default()
        },
        cleanup_term: Duration::from_millis(2_500),
        conversation_key: Bytes::from_static(&[7; 32]),
        workspace: None,
        tools: None,
        required_files: sample_required_files(),
        is_coding_agent: true,
    }
}

fn sample_required_files() -> Option<RequiredFiles> {
    let contract = CompletionContract {
        required_artifacts: vec![RequiredArtifact {
            path: "out/report.md".to_owned(),
            min_size: Some(1),
            ..RequiredArtifact::default()
        }],
        ..CompletionContract::default()
    };
    RequiredFiles::new(Path::new("/work"), Some(&contract)).unwrap()
}

fn attempts() -> (tempfile::TempDir, AttemptDirectories, AttemptDir) {
    let dir = tempfile::tempdir().unwrap();
    let attempts = AttemptDirectories::open(dir.path()).unwrap();
    let attempt_dir = attempts.attempt_dir(AttemptId(Uuid::now_v7()));
    (dir, attempts, attempt_dir)
}

fn file_names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn only_one_spelling_of_a_uuid_is_a_directory_name() {
    let good = "01936f2e-8a4b-7c1d-9e2f-0123456789ab";
    assert_eq!(good.parse::<AttemptId>().unwrap().to_string(), good);
    for bad in [
        "",
        "..",
        "a-1",
        "../01936f2e-8a4b-7c1d-9e2f-0123456789ab",
        "01936F2E-8A4B-7C1D-9E2F-0123456789AB",
        "01936f2e8a4b7c1d9e2f0123456789ab",
        "{01936f2e-8a4b-7c1d-9e2f-0123456789ab}",
        "urn:uuid:01936f2e-8a4b-7c1d-9e2f-0123456789ab",
        "01936f2e-8a4b-7c1d-9e2f-0123456789ab/",
    ] {
        assert_eq!(bad.parse::<AttemptId>(), Err(InvalidAttemptId), "{bad:?}");
    }
}

#[test]
fn the_description_of_an_attempt_is_stored_privately() {
    let (_dir, attempts, attempt_dir) = attempts();
    assert!(!attempt_dir.has_meta().unwrap());
    attempt_dir.create(&meta(attempt_dir.id)).unwrap();
    attempt_dir.sync().unwrap();
    attempts.sync().unwrap();
    assert_eq!(attempt_dir.read_meta().unwrap(), meta_like(&attempt_dir));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(attempt_dir.path()), 0o700);
    assert_eq!(mode(&attempt_dir.path().join(META_FILE)), 0o600);
    let again = attempt_dir.create(&meta(attempt_dir.id)).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
}

fn meta_like(attempt_dir: &AttemptDir) -> AttemptMeta {
    let stored = attempt_dir.read_meta().unwrap();
    let mut wanted = meta(attempt_dir.id);
    wanted.attempt.task_id.clone_from(&stored.attempt.task_id);
    wanted
}

#[test]
fn a_damaged_file_differs_from_one_of_a_later_format() {
    let (_dir, _, attempt_dir) = attempts();
    attempt_dir.create(&meta(attempt_dir.id)).unwrap();
    let path = attempt_dir.path().join(META_FILE);
    let good = fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad[40] ^= 1;
    fs::write(&path, &bad).unwrap();
    assert!(matches!(
        attempt_dir.read_meta(),
        Err(MetaError::Damaged { .. })
    ));
    fs::write(&path, &good[..good.len() - 1]).unwrap();
    assert!(matches!(
        attempt_dir.read_meta(),
        Err(MetaError::Damaged { .. })
    ));
    let CheckedRead::Whole { message, .. } = checked_record::read_record(&good, 0) else {
        panic!("it was good")
    };
    let mut later = worker::AttemptMeta::decode(message).unwrap();
    later.format = 2;
    let mut bytes = Vec::new();
    assert!(checked_record::append_record(&later, &mut bytes));
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(
        attempt_dir.read_meta(),
        Err(MetaError::Newer { format: 2, .. })
    ));
    fs::remove_file(&path).unwrap();
    assert!(matches!(
        attempt_dir.read_meta(),
        Err(MetaError::Unreadable { .. })
    ));
}

#[test]
fn removal_deletes_known_files_only() {
    let (_dir, attempts, attempt_dir) = attempts();
    attempt_dir.create(&meta(attempt_dir.id)).unwrap();
    fs::create_dir(attempt_dir.spool_path()).unwrap();
    let segment = attempt_dir.spool_path().join("00000000000000000000");
    for path in [
        attempt_dir.outbox_path(),
        attempt_dir.report_path(),
        segment.clone(),
    ] {
        fs::write(path, "x").unwrap();
    }
    fs::write(attempt_dir.path().join("outbox.new"), "x").unwrap();
    attempt_dir.remove().unwrap();
    assert!(!attempt_dir.path().exists());
    attempt_dir.remove().unwrap();

    attempt_dir.create(&meta(attempt_dir.id)).unwrap();
    fs::create_dir(attempt_dir.spool_path()).unwrap();
    fs::write(&segment, "x").unwrap();
    fs::write(attempt_dir.spool_path().join("somebody's"), "x").unwrap();
    assert!(attempt_dir.remove().is_err());
    assert!(
        !attempt_dir.has_meta().unwrap(),
        "it is ignored from now on"
    );
    assert_eq!(file_names(attempt_dir.path()), ["spool"]);
    assert_eq!(file_names(&attempt_dir.spool_path()), ["somebody's"]);
    assert_eq!(attempts.list().unwrap().len(), 1);
}

#[test]
fn attempts_are_listed_oldest_first_and_other_entries_skipped() {
    let (dir, attempts, first) = attempts();
    let second = attempts.attempt_dir(AttemptId(Uuid::now_v7()));
    second.create(&meta(second.id)).unwrap();
    first.create(&meta(first.id)).unwrap();
    let stranger = dir.path().join(ATTEMPTS_DIR).join("lost+found");
    fs::create_dir(&stranger).unwrap();
    let found: Vec<_> = attempts.list().unwrap().iter().map(|dir| dir.id).collect();
    assert_eq!(found, [first.id, second.id]);
    assert!(stranger.exists());
}
