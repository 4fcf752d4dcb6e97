//! Telling everything as of one commit, and looking at a directory without a relay.

use std::collections::BTreeMap;
use std::fs;

use super::super::{DumpError, DumpItem, OfflineStore};
use super::*;

type DumpedState = BTreeMap<RecordKey, Vec<u8>>;

/// What a listener ends with.
fn apply_dump_item(state: &mut DumpedState, told: DumpItem) {
    match told {
        DumpItem::Record(key, body) => drop(state.insert(key, body.to_vec())),
        DumpItem::Change(StoreChange::Put(key, body)) => drop(state.insert(key, body)),
        DumpItem::Change(StoreChange::Delete(key)) => drop(state.remove(&key)),
        DumpItem::Unreadable(key, why) => panic!("{key:?} {why}"),
    }
}

fn dumped_state(store: &Store) -> (DumpedState, CommitSeq) {
    let mut state = DumpedState::new();
    let head = store.dump(|told| {
        apply_dump_item(&mut state, told);
        Ok::<_, ()>(())
    });
    (state, head.unwrap())
}

/// One change per number: what it is follows from the number, so that the state at each number is known.
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
fn what_is_told_beside_a_busy_writer_is_the_state_at_one_commit() {
    let rig = StoreFixture::new();
    let mut opened = Store::open(StoreConfig {
        apply_after: Duration::from_millis(1),
        apply_bytes: 30_000,
        ..rig.config()
    })
    .unwrap();
    let first = CommitSeq(opened.journal.last().0 + 1);
    let store = opened.store.clone();
    let (asked, answers) = std::sync::mpsc::channel::<(CommitSeq, DumpedState, CommitSeq)>();
    let telling = std::thread::spawn(move || {
        for _ in 0..12 {
            let before = store.durable();
            let (state, head) = dumped_state(&store);
            asked.send((before, state, head)).unwrap();
        }
    });
    let mut heard = 0;
    while heard < 12 {
        for _ in 0..20 {
            let number = opened.journal.last().0 + 1;
            opened.journal.append(vec![step(number)]).unwrap();
        }
        while let Ok((before, state, head)) = answers.try_recv() {
            assert!(head >= before, "everything acknowledged before is in it");
            assert!(state == state_at(first, head), "not the state at {head}");
            heard += 1;
        }
    }
    telling.join().unwrap();
    let last = opened.journal.last();
    opened.journal.close().unwrap();
    assert_eq!(
        opened.store.shared.disk.journal.len(),
        0,
        "who has heard everything holds nothing back"
    );
    assert!(dumped_state(&opened.store) == (state_at(first, last), last));
}

#[test]
fn a_listener_that_falls_behind_is_told_so_and_one_that_fails_ends_it() {
    let rig = StoreFixture::new();
    let mut opened = Store::open(StoreConfig {
        apply_after: Duration::from_millis(1),
        max_pinned_bytes: 50_000,
        ..rig.config()
    })
    .unwrap();
    commit(&mut opened, vec![put(1, b"there")]);
    let store = opened.store.clone();
    let failed = store.dump(|_| Err("enough"));
    assert!(matches!(failed, Err(DumpError::Consumer("enough"))));
    let slow = store.dump(|told| {
        if matches!(told, DumpItem::Record(..)) {
            for number in 10..40 {
                commit(&mut opened, vec![put(number, &patterned_bytes(9_000, 1))]);
            }
        }
        Ok::<_, ()>(())
    });
    assert!(matches!(slow, Err(DumpError::FellBehind)), "{slow:?}");
}

fn look_offline<T>(rig: &StoreFixture, see: impl FnOnce(&OfflineStore) -> T) -> T {
    Store::with_offline_store(rig.config(), see).unwrap()
}

#[test]
fn a_look_sees_the_journal_too_and_changes_nothing() {
    let rig = StoreFixture::new();
    let missing = Store::with_offline_store(rig.config(), |_| ());
    assert!(matches!(missing, Err(StoreOpenError::NoRelayData { .. })));
    assert!(!rig.dir.path().join("store").exists());

    let mut opened = Store::open(rig.config_without_apply()).unwrap();
    let incarnation = opened.incarnation;
    commit(&mut opened, vec![put(1, &patterned_bytes(9_000, 1))]);
    let busy = Store::with_offline_store(rig.config(), |_| ());
    assert!(matches!(busy, Err(StoreOpenError::Locked { .. })));
    rig.crash(opened, vec![put(2, b"never acknowledged")]);
    let before = files(&rig);
    for _ in 0..2 {
        look_offline(&rig, |looked| {
            assert_eq!(looked.incarnation, Some(incarnation));
            assert!(looked.refusal.is_none());
            let (state, _) = dumped_state(&looked.store);
            assert_eq!(state.get(&done(1)), Some(&patterned_bytes(9_000, 1)));
            assert_eq!(looked.store.verify().unwrap().unreadable, 0);
        });
        assert!(files(&rig) == before, "the look left traces");
    }
    assert_eq!(body(&rig.open().store, 1), Some(patterned_bytes(9_000, 1)));
}

fn files(rig: &StoreFixture) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for dir in [rig.sled(), rig.dir.path().join("store")] {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                all.insert(entry.path(), fs::read(entry.path()).unwrap());
            }
        }
    }
    all
}

#[test]
fn a_directory_that_is_refused_can_still_be_looked_at() {
    let rig = StoreFixture::new();
    let mut opened = rig.open();
    commit(&mut opened, vec![put(1, b"there")]);
    drop(opened);
    fs::write(rig.dir.path().join("store/watermark"), b"").unwrap();
    assert_eq!(rig.open_refused().code(), "store_watermark_missing");
    look_offline(&rig, |looked| {
        let refusal = looked.refusal.as_ref().map(StoreOpenError::code);
        assert_eq!(refusal, Some("store_watermark_missing"));
        assert_eq!(body(&looked.store, 1), Some(b"there".to_vec()));
    });
    assert_eq!(rig.open_refused().code(), "store_watermark_missing");
}
