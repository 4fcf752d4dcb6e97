//! Opening and closing: the lock, the incarnation, the number of starts, and the files that
//! preflight removes.

use std::fs;

use super::super::records::tree::RecordTree;
use super::super::{MetaKey, RecordSchema};
use super::*;

#[test]
fn the_incarnation_stays_and_every_open_raises_the_epoch() {
    let fixture = StoreFixture::new();
    let first = fixture.open();
    let (incarnation, epoch) = (first.incarnation, first.relay_epoch);
    assert_eq!((first.fresh, epoch), (true, 1));
    first.journal.close().unwrap();
    drop(first.store);
    for turn in 1..=50 {
        let mut again = fixture.open();
        assert_eq!((again.fresh, again.incarnation), (false, incarnation));
        assert_eq!(again.relay_epoch, epoch + turn);
        assert_eq!(again.recovery.blob_files, 0);
        commit(&mut again, vec![put(turn.into(), b"here")]);
        again.journal.close().unwrap();
        let stored = again
            .store
            .get(&RecordKey::Meta(MetaKey::RelayEpoch))
            .unwrap()
            .unwrap();
        assert_eq!(stored, (epoch + turn).to_be_bytes().to_vec());
    }
    let last = fixture.open();
    assert!((1..=50).all(|turn| body(&last.store, turn) == Some(b"here".to_vec())));
}

#[test]
fn an_interrupted_creation_starts_over() {
    let fixture = StoreFixture::new();
    fs::create_dir_all(fixture.sled()).unwrap();
    fs::write(fixture.sled().join("conf"), b"half a configuration").unwrap();
    assert!(fixture.open().fresh);
}

#[test]
fn a_second_relay_on_the_directory_is_refused_and_the_first_continues() {
    let fixture = StoreFixture::new();
    let mut first = fixture.open();
    let refusal = fixture.open_refused();
    assert_eq!(refusal.code(), "store_locked");
    assert!(
        refusal.to_string().contains("in use by another relay"),
        "{refusal}"
    );
    commit(&mut first, vec![put(1, b"still writing")]);
}

#[test]
fn a_close_applies_everything_and_writes_the_watermark() {
    let fixture = StoreFixture::new();
    let mut opened = Store::open(fixture.config_without_apply()).unwrap();
    for number in 0..300 {
        opened.journal.append(vec![put(number, b"kept")]).unwrap();
    }
    let last = opened.journal.last();
    opened.journal.close().unwrap();
    assert_eq!(opened.store.durable(), last);
    drop(opened.store);
    let again = fixture.open();
    assert_eq!(
        (again.recovery.journal_entries, again.recovery.torn_tail),
        (0, false)
    );
    assert!((0..300).all(|number| body(&again.store, number).is_some()));
}

#[test]
fn half_written_and_damaged_snapshots_do_not_stop_the_start() {
    let fixture = StoreFixture::new();
    for turn in 0..2 {
        let mut opened = fixture.open();
        commit(&mut opened, vec![put(turn, &patterned_bytes(9_000, 4))]);
    }
    // sled takes the last name for the newest snapshot, whatever its ending.
    fs::write(
        fixture.sled().join("snap.FFFFFFFFFFFFFFFE.generating"),
        b"half",
    )
    .unwrap();
    fs::write(fixture.sled().join("snap.FFFFFFFFFFFFFFFF"), b"").unwrap();
    let opened = fixture.open();
    assert_eq!(opened.recovery.quarantined.len(), 2);
    assert!(opened.recovery.quarantined.iter().all(|path| path.exists()));
    drop(opened);

    let snapshots = super::super::sled::store_paths::snapshots(&fixture.sled()).unwrap();
    assert!(!snapshots.is_empty());
    for path in &snapshots {
        fs::write(path, b"damaged by something else").unwrap();
    }
    let opened = fixture.open();
    assert_eq!(opened.recovery.quarantined.len(), snapshots.len());
    assert!((0..2).all(|number| body(&opened.store, number) == Some(patterned_bytes(9_000, 4))));
}

#[test]
fn data_of_a_newer_version_is_refused_unchanged() {
    let fixture = StoreFixture::new();
    drop(fixture.open());
    let newer = 7_u64.to_be_bytes().to_vec().into();
    fixture.edit_sled_trees(|records, _| {
        let records = RecordTree::new(records.clone(), RecordSchema::CURRENT);
        records
            .put(
                &RecordKey::Meta(MetaKey::Schema).encode(),
                CommitSeq(1),
                &newer,
            )
            .unwrap();
    });
    let before = fs::read(fixture.sled().join("db")).unwrap();
    let accepting = StoreConfig {
        accept_loss: true,
        ..fixture.config()
    };
    let refusal =
        Store::open(accepting).expect_err("no flag allows a start on data of a newer version");
    assert!(
        matches!(refusal, StoreOpenError::NewerSchema { found: 7, .. }),
        "{refusal}"
    );
    assert!(
        before == fs::read(fixture.sled().join("db")).unwrap(),
        "the data was changed"
    );
}
