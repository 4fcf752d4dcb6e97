//! Dumps of the state at one commit, and reading a directory without a relay.

use std::collections::BTreeMap;
use std::fs;

use super::super::{DumpError, DumpItem, OfflineStore};
use super::*;

type DumpedState = BTreeMap<RecordKey, Vec<u8>>;

/// Applies one item, as a consumer of the dump would.
fn apply_dump_item(state: &mut DumpedState, item: DumpItem) {
    match item {
        DumpItem::Record(key, body) => drop(state.insert(key, body.to_vec())),
        DumpItem::Change(StoreChange::Put(key, body)) => drop(state.insert(key, body)),
        DumpItem::Change(StoreChange::Delete(key)) => drop(state.remove(&key)),
        DumpItem::Unreadable(key, why) => panic!("{key:?} {why}"),
    }
}

fn dumped_state(store: &Store) -> (DumpedState, CommitSeq) {
    let mut state = DumpedState::new();
    let head = store.dump(|item| {
        apply_dump_item(&mut state, item);
        Ok::<_, ()>(())
    });
    (state, head.unwrap())
}

/// The change of each number depends on the number alone, so that the state at each number is
/// known.
fn step(number: u64) -> StoreChange {
    let key = done(u128::from(number * 7 % 97));
    if number.is_multiple_of(5) {
        StoreChange::Delete(key)
    } else {
        StoreChange::Put(
            key,
            patterned_bytes(50 + (number as usize * 37) % 9_000, number as u8),
        )
    }
}

fn state_at(first: CommitSeq, head: CommitSeq) -> DumpedState {
    let mut state = DumpedState::new();
    for number in first.0..=head.0 {
        match step(number) {
            StoreChange::Put(key, body) => drop(state.insert(key, body)),
            StoreChange::Delete(key) => drop(state.remove(&key)),
        }
    }
    state
}

#[test]
fn a_dump_beside_a_busy_writer_is_the_state_at_one_commit() {
    let fixture = StoreFixture::new();
    let mut opened = Store::open(StoreConfig {
        apply_after: Duration::from_millis(1),
        apply_bytes: 30_000,
        ..fixture.config()
    })
    .unwrap();
    let first = CommitSeq(opened.journal.last().0 + 1);
    let store = opened.store.clone();
    let (sender, dumps) = std::sync::mpsc::channel::<(CommitSeq, DumpedState, CommitSeq)>();
    let dumper = std::thread::spawn(move || {
        for _ in 0..12 {
            let before = store.durable();
            let (state, head) = dumped_state(&store);
            sender.send((before, state, head)).unwrap();
        }
    });
    let mut received = 0;
    while received < 12 {
        for _ in 0..20 {
            let number = opened.journal.last().0 + 1;
            opened.journal.append(vec![step(number)]).unwrap();
        }
        while let Ok((before, state, head)) = dumps.try_recv() {
            assert!(
                head >= before,
                "the dump must contain everything acknowledged before"
            );
            assert!(state == state_at(first, head), "not the state at {head}");
            received += 1;
        }
    }
    dumper.join().unwrap();
    let last = opened.journal.last();
    opened.journal.close().unwrap();
    assert_eq!(
        opened.store.shared.disk.journal.len(),
        0,
        "a finished dump must not pin the journal"
    );
    assert!(dumped_state(&opened.store) == (state_at(first, last), last));
}

#[test]
fn a_dump_ends_when_its_consumer_fails_or_falls_behind() {
    let fixture = StoreFixture::new();
    let mut opened = Store::open(StoreConfig {
        apply_after: Duration::from_millis(1),
        max_pinned_bytes: 50_000,
        ..fixture.config()
    })
    .unwrap();
    commit(&mut opened, vec![put(1, b"there")]);
    let store = opened.store.clone();
    let failed = store.dump(|_| Err("enough"));
    assert!(matches!(failed, Err(DumpError::Consumer("enough"))));
    let slow = store.dump(|item| {
        if matches!(item, DumpItem::Record(..)) {
            for number in 10..40 {
                commit(&mut opened, vec![put(number, &patterned_bytes(9_000, 1))]);
            }
        }
        Ok::<_, ()>(())
    });
    assert!(matches!(slow, Err(DumpError::FellBehind)), "{slow:?}");
}

fn with_offline_store<T>(fixture: &StoreFixture, check: impl FnOnce(&OfflineStore) -> T) -> T {
    Store::with_offline_store(fixture.config(), check).unwrap()
}

#[test]
fn an_offline_read_includes_the_journal_and_changes_nothing() {
    let fixture = StoreFixture::new();
    let missing = Store::with_offline_store(fixture.config(), |_| ());
    assert!(matches!(missing, Err(StoreOpenError::NoRelayData { .. })));
    assert!(!fixture.dir.path().join("store").exists());

    let mut opened = Store::open(fixture.config_without_apply()).unwrap();
    let incarnation = opened.incarnation;
    commit(&mut opened, vec![put(1, &patterned_bytes(9_000, 1))]);
    let busy = Store::with_offline_store(fixture.config(), |_| ());
    assert!(matches!(busy, Err(StoreOpenError::Locked { .. })));
    fixture.crash(opened, vec![put(2, b"never acknowledged")]);
    let before = files(&fixture);
    for _ in 0..2 {
        with_offline_store(&fixture, |offline| {
            assert_eq!(offline.incarnation, Some(incarnation));
            assert!(offline.refusal.is_none());
            let (state, _) = dumped_state(&offline.store);
            assert_eq!(state.get(&done(1)), Some(&patterned_bytes(9_000, 1)));
            assert_eq!(offline.store.verify().unwrap().unreadable, 0);
        });
        assert!(files(&fixture) == before, "reading offline changed a file");
    }
    assert_eq!(
        body(&fixture.open().store, 1),
        Some(patterned_bytes(9_000, 1))
    );
}

fn files(fixture: &StoreFixture) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for dir in [fixture.sled(), fixture.dir.path().join("store")] {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                all.insert(entry.path(), fs::read(entry.path()).unwrap());
            }
        }
    }
    all
}

#[test]
fn a_refused_directory_can_still_be_read_offline() {
    let fixture = StoreFixture::new();
    let mut opened = fixture.open();
    commit(&mut opened, vec![put(1, b"there")]);
    drop(opened);
    fs::write(fixture.dir.path().join("store/watermark"), b"").unwrap();
    assert_eq!(fixture.open_refused().code(), "store_watermark_missing");
    with_offline_store(&fixture, |offline| {
        let refusal = offline.refusal.as_ref().map(StoreOpenError::code);
        assert_eq!(refusal, Some("store_watermark_missing"));
        assert_eq!(body(&offline.store, 1), Some(b"there".to_vec()));
    });
    assert_eq!(fixture.open_refused().code(), "store_watermark_missing");
}
