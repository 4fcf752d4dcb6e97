//! Reads over the overlay and the records together: values, pages in both directions, tenants,
//! long records.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::config::MAX_VALUE;
use super::super::{KeyRange, RecordKind, ScanPage};
use super::*;

#[derive(Clone, Debug)]
enum StoreStep {
    Put(u8, usize, u8),
    Delete(u8),
    /// Applies everything to the records before continuing.
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<StoreStep>> {
    let sizes = prop_oneof![0..200_usize, 3_900..4_100_usize, 7_900..20_000_usize];
    let step = prop_oneof![
        6 => (0..12_u8, sizes, any::<u8>()).prop_map(|(key, size, seed)| StoreStep::Put(key, size, seed)),
        3 => (0..12_u8).prop_map(StoreStep::Delete),
        1 => Just(StoreStep::Reopen),
    ];
    proptest::collection::vec(step, 1..40)
}

fn all(store: &Store, limit: usize, reverse: bool) -> Vec<(RecordKey, Vec<u8>)> {
    let range = KeyRange::of_kind(&tenant("acme"), RecordKind::Done);
    let mut page = ScanPage {
        after: None,
        limit,
        reverse,
    };
    let mut found = Vec::new();
    loop {
        let scan = store.scan(&range, &page).unwrap();
        assert_eq!(scan.unreadable, 0);
        assert!(scan.entries.len() <= limit);
        found.extend(
            scan.entries
                .iter()
                .map(|(key, body)| (key.clone(), body.to_vec())),
        );
        page.after = scan.entries.last().map(|(key, _)| key.clone());
        if !scan.has_more {
            return found;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_store_behaves_like_a_plain_map(steps in steps(), limit in 1..5_usize) {
        let fixture = StoreFixture::new();
        let busy = || StoreConfig { apply_after: Duration::from_millis(1), ..fixture.config() };
        let mut opened = Store::open(busy()).unwrap();
        let mut model: BTreeMap<RecordKey, Vec<u8>> = BTreeMap::new();
        for step in steps {
            match step {
                StoreStep::Put(key, size, seed) => {
                    let (key, body) = (done(key.into()), patterned_bytes(size, seed));
                    opened.journal.append(vec![StoreChange::Put(key.clone(), body.clone())]).unwrap();
                    model.insert(key, body);
                }
                StoreStep::Delete(key) => {
                    opened.journal.append(vec![StoreChange::Delete(done(key.into()))]).unwrap();
                    model.remove(&done(key.into()));
                }
                StoreStep::Reopen => {
                    opened.journal.close().unwrap();
                    drop(opened.store);
                    opened = Store::open(busy()).unwrap();
                }
            }
        }
        let expected: Vec<(RecordKey, Vec<u8>)> = model.clone().into_iter().collect();
        let backwards: Vec<_> = expected.iter().rev().cloned().collect();
        prop_assert_eq!(&all(&opened.store, limit, false), &expected);
        prop_assert_eq!(&all(&opened.store, limit, true), &backwards);
        for number in 0..12 {
            prop_assert_eq!(body(&opened.store, number), model.get(&done(number)).cloned());
        }
        opened.journal.close().unwrap();
        prop_assert_eq!(&all(&opened.store, limit, false), &expected);
        let verified = opened.store.verify().unwrap();
        let count = verified.records.get(&RecordKind::Done).copied().unwrap_or(0);
        prop_assert_eq!(count, expected.len() as u64);
        prop_assert_eq!((verified.unreadable, verified.journal_entries, verified.too_long), (0, 0, 0));
    }
}

#[test]
fn values_stay_short_and_a_replaced_record_leaves_no_chunk() {
    let fixture = StoreFixture::new();
    let mut opened = Store::open(fixture.config_without_apply()).unwrap();
    commit(&mut opened, vec![put(1, &patterned_bytes(900_000, 1))]);
    commit(
        &mut opened,
        vec![
            put(2, &patterned_bytes(300_000, 2)),
            put(3, &patterned_bytes(4_000, 3)),
        ],
    );
    let raw_sizes = |tree: &sled::Tree| tree.iter().map(|item| item.unwrap().1.len()).max();
    assert!(raw_sizes(&opened.store.shared.disk.journal).unwrap() <= MAX_VALUE);
    opened.journal.close().unwrap();
    assert!(raw_sizes(&opened.store.shared.disk.records.tree).unwrap() <= MAX_VALUE);
    assert_eq!(opened.store.shared.disk.journal.len(), 0);
    drop(opened.store);

    let mut opened = fixture.open();
    assert_eq!(body(&opened.store, 1), Some(patterned_bytes(900_000, 1)));
    commit(
        &mut opened,
        vec![put(1, b"short"), StoreChange::Delete(done(2))],
    );
    opened.journal.close().unwrap();
    let records = &opened.store.shared.disk.records.tree;
    let pieces = |number| records.scan_prefix(done(number).encode()).count();
    assert_eq!((pieces(1), pieces(2), pieces(3)), (1, 0, 2));
    assert_eq!(
        std::fs::read_dir(fixture.sled().join("blobs"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn tenants_are_found_in_order_and_do_not_mix() {
    let fixture = StoreFixture::new();
    let mut opened = fixture.open();
    let live = |name: &str, number| RecordKey::Live {
        tenant: tenant(name),
        task: Uuid::from_u128(number),
    };
    let names = ["acme", "acme-two", "a", "zeta", "*"];
    for (number, name) in (0..).zip(names) {
        commit(
            &mut opened,
            vec![StoreChange::Put(live(name, number), name.into())],
        );
    }
    commit(
        &mut opened,
        vec![
            StoreChange::Put(live("gone", 9), vec![]),
            StoreChange::Delete(live("gone", 9)),
        ],
    );
    let check = |store: &Store| {
        let found = store.tenants().unwrap();
        let found: Vec<&str> = found.iter().map(KeyText::as_str).collect();
        assert_eq!(found, ["*", "a", "acme", "acme-two", "zeta"]);
        for name in names {
            let range = KeyRange::of_kind(&tenant(name), RecordKind::Live);
            let scan = store.scan(&range, &ScanPage::first(10)).unwrap();
            let bodies: Vec<&[u8]> = scan.entries.iter().map(|(_, body)| &**body).collect();
            assert_eq!(bodies, [name.as_bytes()]);
        }
    };
    check(&opened.store);
    opened.journal.close().unwrap();
    check(&opened.store);
}

#[test]
fn a_scan_over_many_overlay_changes_has_no_gap_or_duplicate() {
    let fixture = StoreFixture::new();
    let mut opened = Store::open(fixture.config_without_apply()).unwrap();
    for number in 0..1_500 {
        opened
            .journal
            .append(vec![put(number, &number.to_be_bytes())])
            .unwrap();
    }
    opened.journal.close().unwrap();
    drop(opened.store);
    let mut opened = Store::open(fixture.config_without_apply()).unwrap();
    for number in 0..1_500 {
        let change = if number % 3 == 0 {
            StoreChange::Delete(done(number))
        } else {
            put(number, b"new")
        };
        opened.journal.append(vec![change]).unwrap();
    }
    let found = all(&opened.store, 100, false);
    let expected: Vec<RecordKey> = (0..1_500)
        .filter(|number| number % 3 != 0)
        .map(done)
        .collect();
    assert!(found.iter().map(|(key, _)| key).eq(expected.iter()));
    assert!(found.iter().all(|(_, body)| body == b"new"));
    let backwards = all(&opened.store, 100, true);
    assert!(backwards.iter().rev().eq(found.iter()));
}
