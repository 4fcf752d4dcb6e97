//! When a change counts as durable, what happens if it cannot be, and how a slow disk delays
//! the writer.

use super::super::journal::overlay::{Overlay, RawChange};
use super::*;

#[test]
fn an_append_is_readable_at_once_and_durable_only_after_the_sync() {
    let fixture = StoreFixture::new();
    let mut opened = fixture.open();
    fixture.gate.set(SyncBehavior::Wait);
    let before = opened.store.durable();
    let first = opened
        .journal
        .append(vec![put(1, b"one"), put(2, b"two")])
        .unwrap();
    let second = opened
        .journal
        .append(vec![StoreChange::Delete(done(2))])
        .unwrap();
    assert_eq!(
        (body(&opened.store, 1), body(&opened.store, 2)),
        (Some(b"one".to_vec()), None)
    );
    assert_eq!(opened.store.durable(), before);
    assert_eq!(
        (first.get(), second.get()),
        (before.get() + 1, before.get() + 2)
    );
    fixture.gate.set(SyncBehavior::Pass);
    wait(&opened.store, second).unwrap();
    assert_eq!(opened.store.durable(), second);
}

#[test]
fn a_failed_sync_acknowledges_nothing_and_stops_the_store() {
    let fixture = StoreFixture::new();
    let mut opened = fixture.open();
    let kept = commit(&mut opened, vec![put(1, b"kept")]);
    fixture.gate.set(SyncBehavior::Fail);
    let lost = opened
        .journal
        .append(vec![put(2, b"never acknowledged")])
        .unwrap();
    assert!(wait(&opened.store, lost).is_err());
    assert_eq!(opened.store.durable(), kept);
    let failures = fixture.fatal.lock().unwrap().clone();
    assert_eq!(
        failures.iter().map(|fatal| fatal.op).collect::<Vec<_>>(),
        ["fdatasync"]
    );
    let refused = opened.journal.append(vec![put(3, b"too late")]);
    assert_eq!(
        refused,
        Err(JournalAppendError::Stopped(super::super::StoreStopped))
    );
    assert!(runtime().block_on(opened.journal.wait_for_room()).is_err());
    drop(opened);
    fixture.gate.set(SyncBehavior::Pass);
    assert_eq!(body(&fixture.open().store, 1), Some(b"kept".to_vec()));
}

#[test]
fn a_blocked_disk_makes_the_writer_wait_until_it_continues() {
    let fixture = StoreFixture::new();
    let mut opened = fixture.open();
    fixture.gate.set(SyncBehavior::Wait);
    // The committer must wait at the disk before the queue is filled, so that it takes no more
    // from it.
    opened.journal.append(vec![put(1, b"first")]).unwrap();
    fixture.gate.wait_for_blocked_sync();
    while opened.journal.has_room() {
        opened.journal.append(vec![put(1, b"again")]).unwrap();
    }
    runtime().block_on(async {
        let early =
            tokio::time::timeout(Duration::from_millis(20), opened.journal.wait_for_room()).await;
        assert!(early.is_err(), "no room before the disk continues");
        fixture.gate.set(SyncBehavior::Pass);
        tokio::time::timeout(DEADLINE, opened.journal.wait_for_room())
            .await
            .unwrap()
            .unwrap();
    });
    let last = opened.journal.last();
    wait(&opened.store, last).unwrap();
}

#[test]
fn unapplied_bytes_make_the_writer_wait_until_they_are_applied() {
    let fixture = StoreFixture::new();
    let mut config = fixture.config();
    (config.overlay_bytes, config.apply_bytes) = (200_000, 100_000);
    let mut opened = Store::open(config).unwrap();
    for number in 0..200 {
        runtime().block_on(async {
            tokio::time::timeout(DEADLINE, opened.journal.wait_for_room())
                .await
                .unwrap()
                .unwrap();
        });
        opened
            .journal
            .append(vec![put(number, &patterned_bytes(9_000, 1))])
            .unwrap();
        assert!(opened.store.shared.overlay.bytes() < 400_000);
    }
    assert!((0..200).all(|number| body(&opened.store, number) == Some(patterned_bytes(9_000, 1))));
}

#[test]
fn an_oversized_append_is_refused_completely() {
    let fixture = StoreFixture::new();
    let mut opened = fixture.open();
    let last = opened.journal.last();
    let refused = opened
        .journal
        .append(vec![put(1, b"small"), put(2, &[0; 1 << 20])]);
    assert!(matches!(refused, Err(JournalAppendError::TooLarge { .. })));
    assert_eq!(
        (opened.journal.last(), body(&opened.store, 1)),
        (last, None)
    );
}

#[test]
fn only_durable_values_are_due_and_a_superseded_one_delays_truncation() {
    let change = |key: &'static [u8], body: &'static [u8]| RawChange {
        key: key.into(),
        body: Some(body.into()),
    };
    let overlay = Overlay::default();
    overlay.add(CommitSeq(1), &[change(b"a", b"old"), change(b"b", b"only")]);
    overlay.add(CommitSeq(2), &[change(b"a", b"new")]);
    let due = overlay.due(CommitSeq(1));
    assert_eq!(
        due.changes
            .iter()
            .map(|(key, _)| &**key)
            .collect::<Vec<_>>(),
        [b"b"]
    );
    assert_eq!(due.superseded_by, CommitSeq(2));
    overlay.drop_applied(CommitSeq(1));
    assert!(overlay.get(b"b").is_none());
    assert_eq!(overlay.get(b"a").unwrap().body.unwrap(), "new");
    overlay.drop_applied(CommitSeq(2));
    assert_eq!((overlay.get(b"a").is_none(), overlay.bytes()), (true, 0));
}
