//! Tests of the limits, order and counters of progress. They need no clock.

use std::sync::Arc;

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::samples::tenant;

fn empty() -> ProgressRecord {
    ProgressRecord::empty(tenant("acme"), TaskId(Uuid::from_u128(1)))
}

fn done(items: impl IntoIterator<Item = String>) -> ProgressUpdate {
    ProgressUpdate {
        completed: items.into_iter().map(Arc::from).collect(),
        ..ProgressUpdate::default()
    }
}

fn failed(item: &str, reason: &str) -> FailedItem {
    FailedItem {
        item: item.into(),
        reason: reason.into(),
    }
}

#[test]
fn the_newest_items_are_kept_and_dropped_ones_stay_counted() {
    let mut progress = empty();
    progress.add_update(done((0..700).map(|n| format!("item {n}"))), WallTime(1));
    assert_eq!(
        (progress.completed.len(), progress.completed_truncated),
        (500, 200)
    );
    assert_eq!(&*progress.completed[0], "item 200");
    progress.add_update(done(["item 700".to_owned()]), WallTime(2));
    assert_eq!(
        (progress.completed.len(), progress.completed_truncated),
        (500, 201)
    );
    assert_eq!(progress.completed_count(), 701);
    assert_eq!(&**progress.completed.last().unwrap(), "item 700");
}

#[test]
fn items_are_unique_and_the_last_failure_reason_wins() {
    let mut progress = empty();
    progress.add_update(
        done(["a".to_owned(), "a".to_owned(), "b".to_owned()]),
        WallTime(1),
    );
    progress.add_update(done(["a".to_owned()]), WallTime(2));
    assert_eq!(progress.completed.len(), 2);
    let update = |list: Vec<FailedItem>| ProgressUpdate {
        failed: list,
        ..ProgressUpdate::default()
    };
    progress.add_update(
        update(vec![
            failed("x", "first"),
            failed("y", "no"),
            failed("x", "last"),
        ]),
        WallTime(3),
    );
    assert_eq!(progress.failed, [failed("y", "no"), failed("x", "last")]);
    progress.add_update(done(["x".to_owned()]), WallTime(4));
    assert_eq!(progress.failed, [failed("y", "no")], "completed later");
}

#[test]
fn blank_items_are_dropped() {
    let mut update = done([" ".to_owned(), "a".to_owned(), String::new()]);
    update.failed = vec![failed("\t", "no"), failed("x", "")];
    update.sanitize();
    assert_eq!(update.completed, [Arc::from("a")]);
    assert_eq!(update.failed, [failed("x", "")]);
}

#[test]
fn absent_fields_stay_and_empty_texts_clear_them() {
    let mut progress = empty();
    let update = |summary: Option<&str>, cursor: Option<&str>| ProgressUpdate {
        summary: summary.map(Arc::from),
        cursor: cursor.map(Arc::from),
        ..ProgressUpdate::default()
    };
    progress.add_update(update(Some("half"), Some("page 3")), WallTime(1));
    progress.add_update(update(None, Some("")), WallTime(2));
    assert_eq!((&*progress.summary, &*progress.cursor), ("half", ""));
    assert_eq!(progress.updated, WallTime(2));
}

#[test]
fn the_largest_progress_record_fits_into_one_append() {
    let long = |n: usize, chars: usize| -> Arc<str> { format!("{n:ü<chars$}").into() };
    let mut update = ProgressUpdate {
        summary: Some(long(0, 9_000)),
        cursor: Some(long(0, 9_000)),
        completed: (0..600).map(|n| long(n, 2_000)).collect(),
        failed: (0..600)
            .map(|n| FailedItem {
                item: long(n, 2_000),
                reason: long(n, 2_000),
            })
            .collect(),
        evidence: (0..60)
            .map(|n| EvidenceItem {
                kind: long(n, 200),
                reference: long(n, 2_000),
                summary: long(n, 2_000),
            })
            .collect(),
    };
    assert!(!update.sanitize());
    let mut progress = empty();
    progress.add_update(update, WallTime(1));
    let bytes = postcard::to_stdvec(&progress).unwrap().len();
    assert!(bytes < 640 * 1024, "{bytes}");
    assert!(progress.completed.len() > 50 && progress.completed_count() == 600);
    assert_eq!(progress.summary.chars().count(), SUMMARY_CHARS);
}

#[test]
fn credentials_are_redacted_in_every_field_before_truncation() {
    let secret = "password=hunter2hunter2";
    let mut update = ProgressUpdate {
        summary: Some(secret.into()),
        completed: vec![secret.into()],
        failed: vec![failed(secret, secret)],
        cursor: Some(secret.into()),
        evidence: vec![EvidenceItem {
            kind: "log".into(),
            reference: secret.into(),
            summary: format!("{}{secret}", "x ".repeat(EVIDENCE_CHARS / 2 - 9)).into(),
        }],
    };
    assert!(update.sanitize());
    assert!(!format!("{update:?}").contains("hunter2"), "{update:?}");
    let mut block = BlockDraft {
        reason: secret.into(),
        hint: Some(secret.into()),
        checkpoint: Some(CheckpointDraft {
            summary: secret.into(),
            state_refs: vec![secret.into()],
            ..CheckpointDraft::default()
        }),
    };
    assert!(block.sanitize());
    assert!(!format!("{block:?}").contains("hunter2"), "{block:?}");
}

proptest! {
    #[test]
    fn updates_keep_limits_whole_characters_and_counters(
        updates in prop::collection::vec(
            (prop::collection::vec("\\PC{0,6}", 0..300), prop::collection::vec(("\\PC{0,3}", "\\PC{0,1100}"), 0..40)),
            1..8,
        )
    ) {
        let mut progress = empty();
        let mut before = (0, 0);
        for (completed, failures) in updates {
            let mut update = done(completed);
            update.failed = failures.iter().map(|(item, reason)| failed(item, reason)).collect();
            update.sanitize();
            progress.add_update(update, WallTime(1));
            prop_assert!(progress.completed.len() <= MAX_ITEMS && progress.failed.len() <= MAX_ITEMS);
            prop_assert!(progress.failed.iter().all(|f| f.reason.chars().count() <= REASON_CHARS));
            let unique: HashSet<_> = progress.completed.iter().collect();
            prop_assert_eq!(unique.len(), progress.completed.len());
            let now = (progress.completed_truncated, progress.failed_truncated);
            prop_assert!(now.0 >= before.0 && now.1 >= before.1);
            before = now;
        }
    }
}
