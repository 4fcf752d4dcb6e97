//! Damage on disk: it never causes a silent loss, and one bad record never stops everything.

use std::fs;
use std::path::Path;

use super::super::journal::entry;
use super::super::journal::watermark::{Watermark, WatermarkFile};
use super::super::records::value::chunk_key;
use super::super::{KeyRange, RecordKind, ScanPage, StoreReadError};
use super::*;

/// Three acknowledged entries that are only in the journal, and a fourth that was never
/// acknowledged.
fn four_entries(fixture: &StoreFixture) -> Vec<CommitSeq> {
    let mut opened = Store::open(fixture.config_without_apply()).unwrap();
    let mut seqs: Vec<CommitSeq> = (1..=3)
        .map(|number| commit(&mut opened, vec![put(number, &patterned_bytes(10_000, 5))]))
        .collect();
    fixture.crash(
        opened,
        vec![put(4, &patterned_bytes(10_000, 5)), put(5, b"with it")],
    );
    seqs.push(CommitSeq(seqs[2].0 + 1));
    seqs
}

fn remove_entry(tree: &sled::Tree, seq: CommitSeq) {
    entry::remove(tree, seq, seq).unwrap();
}

fn remove_last_part(tree: &sled::Tree, seq: CommitSeq) {
    let parts = tree.scan_prefix(seq.0.to_be_bytes()).keys();
    tree.remove(parts.last().unwrap().unwrap()).unwrap();
}

#[test]
fn a_crash_loses_nothing_that_was_acknowledged() {
    let fixture = StoreFixture::new();
    four_entries(&fixture);
    let opened = fixture.open();
    assert_eq!(opened.recovery.changes, 3 + 3 + 2);
    assert!((1..=4).all(|number| body(&opened.store, number) == Some(patterned_bytes(10_000, 5))));
}

#[test]
fn a_torn_journal_tail_is_dropped_completely() {
    let fixture = StoreFixture::new();
    let seqs = four_entries(&fixture);
    fixture.edit_sled_trees(|_, journal| remove_last_part(journal, seqs[3]));
    let mut opened = fixture.open();
    assert!(opened.recovery.torn_tail);
    assert!((1..=3).all(|number| body(&opened.store, number) == Some(patterned_bytes(10_000, 5))));
    assert_eq!(
        (body(&opened.store, 4), body(&opened.store, 5)),
        (None, None)
    );
    commit(&mut opened, vec![put(6, b"goes on")]);
    drop(opened);
    let again = fixture.open();
    assert!(!again.recovery.torn_tail);
    assert_eq!(
        (body(&again.store, 4), body(&again.store, 6)),
        (None, Some(b"goes on".to_vec()))
    );
}

#[test]
fn a_journal_gap_is_refused_unless_the_loss_is_accepted() {
    for broken in [remove_entry, remove_last_part] {
        let fixture = StoreFixture::new();
        let seqs = four_entries(&fixture);
        fixture.edit_sled_trees(|_, journal| broken(journal, seqs[1]));
        let refusal = fixture.open_refused();
        assert!(
            matches!(refusal, StoreOpenError::JournalHole { after } if after == seqs[0]),
            "{refusal}"
        );
        let opened = Store::open(StoreConfig {
            accept_loss: true,
            ..fixture.config()
        })
        .unwrap();
        assert!(opened.recovery.accepted_loss.is_some());
        assert!(opened.journal.last() > seqs[3], "no number is used twice");
        assert!(body(&opened.store, 1).is_some());
        assert!((2..=5).all(|number| body(&opened.store, number).is_none()));
    }
}

#[test]
fn an_acknowledged_entry_that_is_torn_is_a_loss() {
    let fixture = StoreFixture::new();
    let seqs = four_entries(&fixture);
    fixture.edit_sled_trees(|_, journal| remove_last_part(journal, seqs[3]));
    let path = fixture.dir.path().join("store/watermark");
    let (mut file, mark) = WatermarkFile::open(&path).unwrap();
    file.write(Watermark {
        seq: seqs[3],
        ..mark.unwrap()
    })
    .unwrap();
    let refusal = fixture.open_refused();
    let expected = (seqs[2], seqs[3]);
    assert!(
        matches!(refusal, StoreOpenError::BehindWatermark { head, watermark } if (head, watermark) == expected),
        "{refusal}"
    );
}

#[test]
fn an_older_copy_is_refused_unchanged_or_accepted_as_a_new_incarnation() {
    let fixture = StoreFixture::new();
    let mut opened = fixture.open();
    let incarnation = opened.incarnation;
    commit(&mut opened, vec![put(1, b"old")]);
    drop(opened);
    let older = tempfile::tempdir().unwrap();
    copy_files(&fixture.sled(), older.path());
    let mut opened = fixture.open();
    let last = commit(&mut opened, vec![put(2, b"new")]);
    drop(opened);
    fs::remove_dir_all(fixture.sled()).unwrap();
    copy_files(older.path(), &fixture.sled());

    let refusal = fixture.open_refused();
    assert!(
        refusal.is_acceptable_loss() && refusal.to_string().contains("--accept-loss"),
        "{refusal}"
    );
    assert!(
        matches!(refusal, StoreOpenError::BehindWatermark { watermark, .. } if watermark == last)
    );
    assert!(
        same_files(older.path(), &fixture.sled()),
        "a refusal must not change files"
    );

    let accepted = Store::open(StoreConfig {
        accept_loss: true,
        ..fixture.config()
    })
    .unwrap();
    assert!(accepted.incarnation != incarnation && accepted.journal.last() > last);
    assert_eq!(
        (body(&accepted.store, 1), body(&accepted.store, 2)),
        (Some(b"old".to_vec()), None)
    );
    let (new_incarnation, epoch) = (accepted.incarnation, accepted.relay_epoch);
    drop(accepted);
    let evidence = fixture.dir.path().join("store/quarantine");
    assert_eq!(fs::read_dir(evidence).unwrap().count(), 1);
    let again = fixture.open();
    assert_eq!(
        (again.incarnation, again.relay_epoch),
        (new_incarnation, epoch + 1)
    );
    assert_eq!(again.recovery.accepted_loss, None);
}

#[test]
fn a_missing_or_foreign_watermark_is_refused() {
    let fixture = StoreFixture::new();
    let mut opened = fixture.open();
    commit(&mut opened, vec![put(1, b"there")]);
    drop(opened);
    let path = fixture.dir.path().join("store/watermark");
    let (mut file, mark) = WatermarkFile::open(&path).unwrap();
    let mark = mark.unwrap();
    for _ in 0..2 {
        file.write(Watermark {
            incarnation: Uuid::now_v7(),
            ..mark
        })
        .unwrap();
    }
    assert_eq!(fixture.open_refused().code(), "store_foreign_watermark");
    fs::write(&path, b"").unwrap();
    assert_eq!(fixture.open_refused().code(), "store_watermark_missing");
    file.write(mark).unwrap();
    assert_eq!(body(&fixture.open().store, 1), Some(b"there".to_vec()));
}

#[test]
fn a_torn_watermark_slot_leaves_the_other_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("watermark");
    let mark = |seq| Watermark {
        seq: CommitSeq(seq),
        incarnation: Uuid::from_u128(7),
    };
    let (mut file, none) = WatermarkFile::open(&path).unwrap();
    assert_eq!(none, None);
    for seq in 1..=4 {
        file.write(mark(seq)).unwrap();
    }
    for torn_at in [0, 4096] {
        let mut bytes = fs::read(&path).unwrap();
        bytes[torn_at + 10] ^= 1;
        let torn = dir.path().join("torn");
        fs::write(&torn, bytes).unwrap();
        let (mut reopened, found) = WatermarkFile::open(&torn).unwrap();
        let left = found.unwrap();
        assert!([mark(3), mark(4)].contains(&left));
        reopened.write(mark(9)).unwrap();
        let (_, newest) = WatermarkFile::open(&torn).unwrap();
        assert_eq!(newest, Some(mark(9)));
    }
}

#[test]
fn an_unreadable_record_is_counted_and_skipped() {
    let fixture = StoreFixture::new();
    let mut opened = fixture.open();
    let changes = (0..6)
        .map(|number| put(number, &patterned_bytes(9_000, 6)))
        .collect();
    commit(&mut opened, changes);
    drop(opened);
    fixture.edit_sled_trees(|records, _| {
        let flip = |key: Vec<u8>| {
            let mut value = records.get(&key).unwrap().unwrap().to_vec();
            value[100] ^= 1;
            records.insert(key, value).unwrap();
        };
        flip(chunk_key(&done(1).encode(), 0));
        flip(chunk_key(&done(3).encode(), 2));
        records.remove(chunk_key(&done(4).encode(), 1)).unwrap();
        records
            .insert(b"acme\0\x63unknown", b"what is this")
            .unwrap();
    });
    let opened = fixture.open();
    let range = KeyRange::of_kind(&tenant("acme"), RecordKind::Done);
    for reverse in [false, true] {
        let page = ScanPage {
            reverse,
            ..ScanPage::first(100)
        };
        let scan = opened.store.scan(&range, &page).unwrap();
        assert_eq!(
            (scan.entries.len(), scan.unreadable, scan.has_more),
            (3, 3, false)
        );
    }
    assert!(matches!(
        opened.store.get(&done(3)),
        Err(StoreReadError::Unreadable { .. })
    ));
    assert_eq!(body(&opened.store, 5), Some(patterned_bytes(9_000, 6)));
    let verified = opened.store.verify().unwrap();
    assert_eq!((verified.unreadable, verified.listed.len()), (4, 4));
    let mut opened = opened;
    commit(
        &mut opened,
        vec![
            put(1, b"whole again"),
            put(4, b"too"),
            StoreChange::Delete(done(3)),
        ],
    );
    opened.journal.close().unwrap();
    assert_eq!(opened.store.verify().unwrap().unreadable, 1);
}

#[test]
fn a_flipped_bit_is_never_a_silent_loss() {
    let fixture = StoreFixture::new();
    for turn in 0..3 {
        let mut opened = fixture.open();
        let changes = (0..40)
            .map(|number| put(turn * 40 + number, &patterned_bytes(700, 7)))
            .collect();
        commit(&mut opened, changes);
    }
    let (sled, good) = (fixture.sled(), tempfile::tempdir().unwrap());
    copy_files(&sled, good.path());
    let watermark = fs::read(fixture.dir.path().join("store/watermark")).unwrap();
    let used = fs::read(sled.join("db")).unwrap().len() as u64;
    let mut refused = 0;
    for turn in 0..24_u64 {
        let mut bytes = fs::read(good.path().join("db")).unwrap();
        let at = usize::try_from(turn * 7_919 * 13 % used.min(700_000)).unwrap();
        bytes[at] ^= 1 << (turn % 8);
        fs::remove_dir_all(&sled).unwrap();
        copy_files(good.path(), &sled);
        fs::write(sled.join("db"), &bytes).unwrap();
        fs::write(fixture.dir.path().join("store/watermark"), &watermark).unwrap();
        match Store::open(fixture.config()) {
            Err(_) => {
                refused += 1;
                let left = fs::read(sled.join("db")).unwrap();
                assert!(left == bytes, "flip at {at}: a refusal changed a file");
            }
            Ok(opened) => {
                let missing =
                    (0..120).filter(|number| matches!(opened.store.get(&done(*number)), Ok(None)));
                assert_eq!(missing.count(), 0, "flip at {at}");
            }
        }
    }
    println!("{refused} of 24 flips refused the start");
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            copy_files(&entry.path(), &to.join(entry.file_name()));
        } else {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

fn same_files(a: &Path, b: &Path) -> bool {
    let read = |dir: &Path| {
        let files = fs::read_dir(dir).unwrap().map(Result::unwrap);
        let files = files.filter(|entry| entry.file_type().unwrap().is_file());
        let mut files: Vec<_> = files
            .map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap()))
            .collect();
        files.sort();
        files
    };
    read(a) == read(b)
}
