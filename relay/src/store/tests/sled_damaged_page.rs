//! One damaged page of sled: it costs its own records, stops a relay that must write to it, and
//! is always reported.

use std::fs;

use super::super::journal::watermark::WatermarkFile;
use super::super::{DumpItem, KeyRange, RecordKind, ScanPage, StoreReadError, UnreadableReason};
use super::*;

/// 300 records; the page of number 150 is damaged.
fn fixture_with_damaged_page() -> StoreFixture {
    let fixture = StoreFixture::new();
    let mut opened = fixture.open();
    for number in 0..300_u128 {
        let body = format!("the body of record {number:04} ").repeat(40);
        opened
            .journal
            .append(vec![put(number, body.as_bytes())])
            .unwrap();
    }
    opened.journal.close().unwrap();
    drop(opened.store);
    // A start writes sled's snapshot. From then on sled does not read the older part of its log
    // when it opens. Where sled puts a page cannot be chosen, so write more until this page is
    // not in the last part.
    for round in 0..20_u128 {
        if damage_page_of_record(&fixture) {
            return fixture;
        }
        let mut opened = fixture.open();
        for number in 0..100 {
            let other = StoreChange::Put(live(1_000 * round + number), patterned_bytes(9_000, 1));
            opened.journal.append(vec![other]).unwrap();
        }
        opened.journal.close().unwrap();
        drop(opened.store);
        drop(fixture.open());
    }
    panic!("the page is always in the last part of the log");
}

fn live(number: u128) -> RecordKey {
    RecordKey::Live {
        tenant: tenant("acme"),
        task: Uuid::from_u128(number),
    }
}

/// Returns false, with all files unchanged, if the page is where a start reads it.
fn damage_page_of_record(fixture: &StoreFixture) -> bool {
    let path = fixture.sled().join("db");
    let sound = fs::read(&path).unwrap();
    let wanted = b"the body of record 0150";
    let hits = (0..sound.len() - wanted.len()).filter(|at| sound[*at..].starts_with(wanted));
    for at in hits {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let hit = Store::with_offline_store(fixture.config(), |offline| {
            offline.refusal.is_none() && offline.store.get(&done(150)).is_err()
        });
        if matches!(hit, Ok(true)) {
            return true;
        }
    }
    fs::write(&path, &sound).unwrap();
    false
}

#[test]
fn a_damaged_page_costs_its_own_records_only() {
    let fixture = fixture_with_damaged_page();
    let mut opened = fixture.open();
    let lost = |number: &u128| match opened.store.get(&done(*number)) {
        Ok(body) => body.is_none(),
        Err(error) => matches!(
            error,
            StoreReadError::Unreadable {
                why: UnreadableReason::DamagedPage,
                ..
            }
        ),
    };
    let lost: Vec<u128> = (0..300).filter(lost).collect();
    assert!(lost.contains(&150) && lost.len() < 60, "{lost:?}");
    let expected: Vec<RecordKey> = (0..300)
        .filter(|number| !lost.contains(number))
        .map(done)
        .collect();
    let range = KeyRange::of_kind(&tenant("acme"), RecordKind::Done);
    for reverse in [false, true] {
        let scan = opened
            .store
            .scan(
                &range,
                &ScanPage {
                    reverse,
                    ..ScanPage::first(1_000)
                },
            )
            .unwrap();
        assert_eq!(scan.unreadable, 1);
        let mut found: Vec<RecordKey> = scan.entries.into_iter().map(|(key, _)| key).collect();
        found.sort();
        assert!(found == expected, "only the damaged page is missing");
    }
    assert_eq!(opened.store.verify().unwrap().unreadable, 1);
    commit(&mut opened, vec![put(1_000, b"elsewhere")]);
    opened.journal.close().unwrap();
}

#[test]
fn a_write_to_a_damaged_page_stops_the_relay_and_later_starts_are_refused() {
    let fixture = fixture_with_damaged_page();
    let mut opened = fixture.open();
    commit(
        &mut opened,
        vec![put(150, b"acknowledged, and then fatal"), put(1, b"new")],
    );
    assert!(opened.journal.close().is_err());
    drop(opened.store);
    assert!(
        fixture
            .fatal
            .lock()
            .unwrap()
            .iter()
            .any(|fatal| fatal.damaged)
    );
    for _ in 0..2 {
        let refusal = fixture.open_refused();
        assert!(matches!(refusal, StoreOpenError::DamagedPage), "{refusal}");
        assert!(refusal.to_string().contains("baton export"), "{refusal}");
    }
    let accepting = StoreConfig {
        accept_loss: true,
        ..fixture.config()
    };
    let refusal = Store::open(accepting).expect_err("no flag allows a write to such a page");
    assert_eq!(refusal.code(), "store_damaged_page");
    let (state, skipped) = Store::with_offline_store(fixture.config(), |offline| {
        let (mut state, mut skipped) = (std::collections::BTreeMap::new(), 0);
        let dumped = offline.store.dump(|item| {
            match item {
                DumpItem::Record(key, body) => drop(state.insert(key, body.to_vec())),
                DumpItem::Unreadable(..) => skipped += 1,
                DumpItem::Change(change) => panic!("unexpected change: {change:?}"),
            }
            Ok::<_, ()>(())
        });
        dumped.unwrap();
        (state, skipped)
    })
    .unwrap();
    assert_eq!(skipped, 1, "one damaged page must be reported once");
    let kept = (0..300).filter(|number| state.contains_key(&done(*number)));
    assert!(kept.count() > 240);
    assert_eq!(state[&done(150)], b"acknowledged, and then fatal");
    assert_eq!(state[&done(1)], b"new");
}

#[test]
fn a_damaged_journal_page_is_refused_and_earlier_entries_are_readable() {
    let fixture = StoreFixture::new();
    let mut opened = Store::open(fixture.config_without_apply()).unwrap();
    // More than one segment of sled: an open always reads the last one, whatever the snapshot
    // covers.
    for number in 0..400 {
        let body = format!("the body of record {number:04} ").repeat(150);
        commit(&mut opened, vec![put(number, body.as_bytes())]);
    }
    let last = opened.journal.last();
    let watermark = fixture.dir.path().join("store/watermark");
    while WatermarkFile::peek(&watermark).unwrap().unwrap().seq < last {
        super::super::sled::store_paths::pause();
    }
    fixture.crash(opened, vec![put(99, b"never acknowledged")]);
    // Two opens: the second one's snapshot is after the entries, so that sled does not read
    // them when it opens.
    for _ in 0..2 {
        fixture.edit_sled_trees(|_, _| {});
    }
    let path = fixture.sled().join("db");
    let mut bytes = fs::read(&path).unwrap();
    let wanted = b"the body of record 0040";
    let hits: Vec<usize> = (0..bytes.len() - wanted.len())
        .filter(|at| bytes[*at..].starts_with(wanted))
        .collect();
    assert!(!hits.is_empty());
    hits.iter().for_each(|at| bytes[*at] ^= 1);
    fs::write(&path, bytes).unwrap();
    let refusal = fixture.open_refused();
    assert!(matches!(refusal, StoreOpenError::DamagedPage), "{refusal}");
    let (found, verified) = Store::with_offline_store(fixture.config(), |offline| {
        let refusal = offline.refusal.as_ref().map(StoreOpenError::code);
        assert_eq!(refusal, Some("store_damaged_page"));
        let found: Vec<u128> = (0..400)
            .filter(|number| body(&offline.store, *number).is_some())
            .collect();
        (found, offline.store.verify().unwrap())
    })
    .unwrap();
    let before = found.len() as u128;
    assert!((1..=40).contains(&before), "{found:?}");
    assert!(
        found.iter().copied().eq(0..before),
        "must be a prefix: {found:?}"
    );
    assert!(verified.broken_journal_entries > 0, "{verified:?}");
}
