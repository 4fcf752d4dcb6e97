//! Migration from one schema to the next, and records that cannot be migrated. tests/migration
//! kills it at every write.

use super::super::{MetaKey, RecordSchema, SchemaStep, StoreReadError, UnreadableReason};
use super::*;

/// A schema 2 that cannot migrate one body.
const NEXT: RecordSchema = RecordSchema::of(&[SchemaStep {
    name: "a word more",
    migrate_record: |_, body| (body != b"odd").then(|| [body, b", next"].concat()),
}]);

fn next_schema(fixture: &StoreFixture) -> StoreConfig {
    StoreConfig {
        schema: NEXT,
        ..fixture.config()
    }
}

fn text(store: &Store, number: u128) -> String {
    String::from_utf8(body(store, number).unwrap()).unwrap()
}

#[test]
fn records_are_migrated_once_and_unmigratable_ones_are_kept_and_counted() {
    let fixture = StoreFixture::new();
    let mut opened = fixture.open();
    let many = (0..200).map(|number| put(number, format!("{number}").as_bytes()));
    commit(&mut opened, many.chain([put(77, b"odd")]).collect());
    opened.journal.close().unwrap();
    drop(opened.store);
    let opened = Store::open(next_schema(&fixture)).unwrap();
    let migrated = opened.recovery.migrated.clone().unwrap();
    assert_eq!(
        (migrated.to, migrated.records, migrated.left_unmigrated),
        (2, 199, 1)
    );
    assert_eq!(text(&opened.store, 150), "150, next");
    let odd = opened.store.get(&done(77)).unwrap_err();
    assert!(
        matches!(
            odd,
            StoreReadError::Unreadable {
                why: UnreadableReason::Step(1),
                ..
            }
        ),
        "{odd}"
    );
    assert_eq!(opened.store.verify().unwrap().unreadable, 1);
    opened.journal.close().unwrap();
    drop(opened.store);
    let mut again = Store::open(next_schema(&fixture)).unwrap();
    assert_eq!(again.recovery.migrated, None);
    assert_eq!(
        text(&again.store, 150),
        "150, next",
        "no record is migrated twice"
    );
    commit(&mut again, vec![put(77, b"whole again")]);
    assert_eq!(text(&again.store, 77), "whole again");
}

#[test]
fn changes_in_the_journal_are_migrated_too() {
    let fixture = StoreFixture::new();
    let mut opened = Store::open(fixture.config_without_apply()).unwrap();
    commit(
        &mut opened,
        vec![put(1, b"one"), put(2, &patterned_bytes(9_000, 3))],
    );
    fixture.crash(opened, vec![put(3, b"three")]);
    let opened = Store::open(next_schema(&fixture)).unwrap();
    assert_eq!(text(&opened.store, 1), "one, next");
    let whole = [&patterned_bytes(9_000, 3)[..], b", next"].concat();
    assert_eq!(body(&opened.store, 2), Some(whole));
}

#[test]
fn an_unmigratable_journal_change_is_refused_until_the_journal_is_empty() {
    let fixture = StoreFixture::new();
    let mut opened = Store::open(fixture.config_without_apply()).unwrap();
    commit(&mut opened, vec![put(1, b"one"), put(2, b"odd")]);
    fixture.crash(opened, vec![put(3, b"three")]);
    let refusal = Store::open(next_schema(&fixture)).unwrap_err();
    assert_eq!(refusal.code(), "store_unmigratable", "{refusal}");
    assert!(!refusal.is_acceptable_loss());
    // As the message says: start the older version and stop it cleanly.
    let older = fixture.open();
    assert_eq!(body(&older.store, 2), Some(b"odd".to_vec()));
    older.journal.close().unwrap();
    drop(older.store);
    let opened = Store::open(next_schema(&fixture)).unwrap();
    assert_eq!(opened.recovery.migrated.clone().unwrap().left_unmigrated, 1);
    assert_eq!(text(&opened.store, 1), "one, next");
}

#[test]
fn a_new_directory_needs_no_migration_and_older_versions_refuse_it() {
    let fixture = StoreFixture::new();
    let mut opened = Store::open(next_schema(&fixture)).unwrap();
    assert_eq!(opened.recovery.migrated, None);
    commit(&mut opened, vec![put(1, b"new")]);
    drop(opened);
    let again = Store::open(next_schema(&fixture)).unwrap();
    assert_eq!(again.recovery.migrated, None);
    assert_eq!(text(&again.store, 1), "new");
    let fact = again
        .store
        .get(&RecordKey::Meta(MetaKey::Migration))
        .unwrap();
    assert_eq!(&*fact.unwrap(), &[0, 2]);
    drop(again);
    assert_eq!(fixture.open_refused().code(), "store_newer_schema");
}
