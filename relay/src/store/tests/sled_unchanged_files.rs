//! Reading offline and refused starts leave every file unchanged, and damage that sled would
//! skip without an error is refused. `BATON_FLIPS=400 cargo test -p baton-relay --lib
//! sled_unchanged_files -- --nocapture` makes more flips.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::sled::log_format::{
    PageEffect, SEGMENT, SEGMENT_HEAD, SledLog, SledMessage, SledSegmentHead, SledSnapshot,
    segment_start,
};
use super::super::sled::log_repair::DamageHandling;
use super::super::sled::offline_store::examine_file_copy;
use super::super::sled::store_paths::{StorePaths, newest_snapshot, pause, snapshots};
use super::*;

const FLIPS: u64 = 24;
const KEYS: u128 = 30;
const ROUNDS: u8 = 60;

/// Every file below a directory.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for path in super::super::sled::store_paths::files(dir).unwrap() {
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let bytes = fs::read(&path).unwrap();
            found.insert(path, bytes);
        }
    }
    found
}

fn write_files(files: &BTreeMap<PathBuf, Vec<u8>>, dir: &Path) {
    fs::remove_dir_all(dir).unwrap();
    for (path, bytes) in files {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

fn version(number: u128, round: u8) -> Vec<u8> {
    patterned_bytes(2_500, round ^ number as u8)
}

/// Writes each key many times, so that a lost write shows as an older body. Closes cleanly.
fn write(fixture: &StoreFixture, rounds: u8) {
    let mut opened = fixture.open();
    for round in 1..=rounds {
        let changes = (0..KEYS).map(|key| put(key, &version(key, round)));
        commit(&mut opened, changes.collect());
    }
    opened.journal.close().unwrap();
    drop(opened.store);
}

/// Keys that do not have their last written value and are not reported as unreadable.
fn lost_without_error(store: &Store, rounds: u8) -> Vec<u128> {
    let whole = |key: &u128| match store.get(&done(*key)) {
        Ok(body) => body.is_some_and(|body| *body == version(*key, rounds)),
        Err(_) => true,
    };
    (0..KEYS).filter(|key| !whole(key)).collect()
}

fn log(fixture: &StoreFixture) -> SledLog {
    SledLog::open(&fixture.sled().join("db")).unwrap()
}

#[test]
fn offline_reads_and_refused_starts_change_no_file_after_a_bit_flip() {
    let fixture = StoreFixture::new();
    write(&fixture, 10);
    write(&fixture, ROUNDS);
    let store = fixture.dir.path().join("store");
    let sound = files(&store);
    let flips = std::env::var("BATON_FLIPS").map_or(FLIPS, |text| text.parse().unwrap());
    let (mut refused, mut accepted) = (0, 0);
    for flip in 0..flips {
        let mut bad = sound.clone();
        // Every sixth flip hits a snapshot.
        let mut wanted = bad.iter_mut().filter(|(path, _)| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with(if flip % 6 == 5 { "snap." } else { "db" })
        });
        let (path, bytes) = wanted.next().unwrap();
        let bit = (flip + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) % (bytes.len() as u64 * 8);
        bytes[usize::try_from(bit / 8).unwrap()] ^= 1 << (bit % 8);
        let what = format!("bit {bit} of {}", path.display());
        write_files(&bad, &store);
        let has_refusal =
            Store::with_offline_store(fixture.config(), |offline| offline.refusal.is_some());
        assert!(
            files(&store) == bad,
            "{what}: reading offline changed a file"
        );
        match Store::open(fixture.config()) {
            Ok(opened) => {
                let lost = lost_without_error(&opened.store, ROUNDS);
                assert!(lost.is_empty(), "{what}: {lost:?}");
                assert!(matches!(has_refusal, Ok(false)), "{what}: {has_refusal:?}");
            }
            Err(refusal) => {
                refused += 1;
                assert!(
                    files(&store) == bad,
                    "{what}: a refused start changed a file"
                );
                assert!(!matches!(has_refusal, Ok(false)), "{what}: {refusal}");
                accepted += u64::from(refusal.is_acceptable_loss());
                if refusal.is_acceptable_loss() {
                    accept_loss_and_check_copy(&fixture, &bad, &what);
                }
            }
        }
    }
    println!("{flips} flips: {refused} refused, {accepted} of them accepted");
}

fn accept_loss_and_check_copy(
    fixture: &StoreFixture,
    bad: &BTreeMap<PathBuf, Vec<u8>>,
    what: &str,
) {
    let accepting = StoreConfig {
        accept_loss: true,
        ..fixture.config()
    };
    drop(Store::open(accepting).unwrap());
    let quarantine = fixture.dir.path().join("store/quarantine");
    let kept = super::super::sled::store_paths::files(&quarantine).unwrap();
    let kept = kept.iter().find(|path| path.is_dir()).unwrap();
    for (path, bytes) in bad
        .iter()
        .filter(|(path, _)| path.starts_with(fixture.sled()))
    {
        let copy = kept.join(path.file_name().unwrap());
        assert!(
            fs::read(&copy).unwrap() == *bytes,
            "{what}: {}",
            copy.display()
        );
    }
}

/// Rounds of a [`write`] that begins one or two new segments.
const FEW_ROUNDS: u8 = 8;

/// A directory whose last open has zeroed the segment before the newest one, to which the
/// newest one's header refers. That happens on any relay with little work for a while.
fn fixture_with_log_gap() -> StoreFixture {
    let fixture = StoreFixture::new();
    for _ in 0..20 {
        write(&fixture, FEW_ROUNDS);
        let opened = fixture.open();
        // sled's cleaning thread moves the last pages out of segments that are nearly empty.
        for _ in 0..60 {
            pause();
        }
        opened.journal.close().unwrap();
        drop(opened.store);
        fixture.open().journal.close().unwrap();
        let log = log(&fixture);
        if !log.has_segment_at(log.stable()) {
            return fixture;
        }
    }
    panic!("sled never zeroed the segment before its newest one");
}

#[test]
fn a_missing_or_damaged_snapshot_loses_no_data() {
    let fixture = fixture_with_log_gap();
    let store = fixture.dir.path().join("store");
    let sound = files(&store);
    for damaged in [false, true] {
        write_files(&sound, &store);
        for path in snapshots(&fixture.sled()).unwrap() {
            if damaged {
                let mut bytes = fs::read(&path).unwrap();
                bytes[20] ^= 1;
                fs::write(&path, bytes).unwrap();
            } else {
                fs::remove_file(&path).unwrap();
            }
        }
        let before = files(&store);
        let result = Store::with_offline_store(fixture.config(), |offline| {
            assert!(offline.refusal.is_none(), "{:?}", offline.refusal);
            lost_without_error(&offline.store, FEW_ROUNDS)
        });
        assert!(result.unwrap().is_empty());
        assert!(files(&store) == before, "reading offline changed a file");
        let opened = fixture.open();
        assert!(lost_without_error(&opened.store, FEW_ROUNDS).is_empty());
        assert_eq!(opened.recovery.quarantined.len(), usize::from(damaged));
    }
}

/// Keys that are written once, in order, so that their pages stay where they were first
/// written.
const WRITTEN_ONCE_KEYS: u128 = 400;

fn write_once(fixture: &StoreFixture) {
    let mut opened = fixture.open();
    for first in (0..WRITTEN_ONCE_KEYS).step_by(5) {
        let changes = (first..first + 5).map(|key| put(key, &version(key, 1)));
        commit(&mut opened, changes.collect());
    }
    opened.journal.close().unwrap();
    drop(opened.store);
}

/// How many of them have their written value.
fn count_written_once(store: &Store) -> usize {
    let has_written_value = |key: &u128| {
        let body = store.get(&done(*key)).ok().flatten();
        body.is_some_and(|body| *body == version(*key, 1))
    };
    (0..WRITTEN_ONCE_KEYS).filter(has_written_value).count()
}

/// The positions of each page that is not in the snapshot. Only pages with later ones after
/// them, and without a message at the log's end, which sled reads in another way.
fn new_pages(log: &SledLog, snapshot: &SledSnapshot) -> Vec<Vec<usize>> {
    let mut pages: BTreeMap<u64, Vec<Option<usize>>> = BTreeMap::new();
    for (number, head) in (0..).zip(&log.heads) {
        let SledSegmentHead::Whole { lsn, .. } = head else {
            continue;
        };
        if *lsn < segment_start(snapshot.end) {
            continue;
        }
        let (bytes, mut at) = (log.segment(number).unwrap(), SEGMENT_HEAD);
        while let Some(message) = SledMessage::read(&bytes, at) {
            let new = message.page >= snapshot.pages.len() as u64 && message.page < u64::MAX;
            if message.effect == PageEffect::Replace && new {
                let place = usize::try_from(number).unwrap() * SEGMENT + at + message.len / 2;
                let place = (*lsn < log.stable()).then_some(place);
                pages.entry(message.page).or_default().push(place);
            }
            at += message.len;
        }
    }
    pages.pop_last();
    let inside = |places: Vec<Option<usize>>| places.into_iter().collect::<Option<Vec<usize>>>();
    pages.into_values().filter_map(inside).collect()
}

#[test]
fn a_completely_lost_page_leaves_the_other_pages_readable() {
    let fixture = StoreFixture::new();
    write_once(&fixture);
    let (log, snapshot) = (
        log(&fixture),
        newest_snapshot(&fixture.sled()).unwrap().unwrap(),
    );
    let pages = new_pages(&log, &SledSnapshot::read(&snapshot).unwrap().unwrap());
    assert!(!pages.is_empty(), "writing keys must create pages");
    let store = fixture.dir.path().join("store");
    let (sound, mut holes) = (files(&store), 0);
    for page in pages.into_iter().take(12) {
        let mut bad = sound.clone();
        for at in &page {
            bad.get_mut(&fixture.sled().join("db")).unwrap()[*at] ^= 1;
        }
        write_files(&bad, &store);
        let result = Store::with_offline_store(fixture.config(), |offline| {
            let refusal = offline.refusal.as_ref().map(StoreOpenError::code);
            (count_written_once(&offline.store), refusal)
        });
        let (readable, refusal) = result.unwrap_or_else(|error| panic!("{page:?}: {error}"));
        assert_eq!(refusal, Some("store_damaged"), "{page:?}");
        assert!(
            readable > WRITTEN_ONCE_KEYS as usize * 3 / 4,
            "{page:?}: {readable}"
        );
        assert!(
            files(&store) == bad,
            "{page:?}: reading offline changed a file"
        );
        let places = StorePaths::in_dir(&fixture.config().dir);
        holes +=
            u64::from(examine_file_copy(&fixture.config(), &places, DamageHandling::Skip).is_err());
    }
    assert!(
        holes > 0,
        "sled must fail to open some of them when damage is skipped"
    );
}

#[test]
fn damage_that_sled_would_ignore_is_refused_and_the_rest_is_readable() {
    let fixture = StoreFixture::new();
    write_once(&fixture);
    let (log, snapshot) = (
        log(&fixture),
        newest_snapshot(&fixture.sled()).unwrap().unwrap(),
    );
    let from = SledSnapshot::read(&snapshot).unwrap().unwrap().end;
    let middle = |head: &SledSegmentHead| match head {
        SledSegmentHead::Whole { lsn, .. } => (segment_start(from)..log.stable()).contains(lsn),
        SledSegmentHead::Empty | SledSegmentHead::Damaged => false,
    };
    let store = fixture.dir.path().join("store");
    let (sound, mut refused) = (files(&store), 0);
    let segments = (0..).zip(&log.heads).filter(|(_, head)| middle(head));
    let places = segments.flat_map(|(number, _)| {
        let inside = [5, 90_000, 170_000, 260_000, 350_000, 440_000];
        inside.map(|at: usize| number * SEGMENT + at)
    });
    for at in places {
        let mut bad = sound.clone();
        bad.get_mut(&fixture.sled().join("db")).unwrap()[at] ^= 1;
        write_files(&bad, &store);
        match Store::open(fixture.config()) {
            Ok(opened) => assert_eq!(
                count_written_once(&opened.store),
                WRITTEN_ONCE_KEYS as usize,
                "{at}"
            ),
            Err(refusal) => {
                refused += 1;
                assert_eq!(refusal.code(), "store_damaged", "{at}: {refusal}");
                assert!(refusal.to_string().contains("baton export"), "{refusal}");
                assert!(files(&store) == bad, "{at}: a refused start changed a file");
                let result = Store::with_offline_store(fixture.config(), |offline| {
                    let refusal = offline.refusal.as_ref().map(StoreOpenError::code);
                    (count_written_once(&offline.store), refusal)
                });
                let (readable, refusal) = result.unwrap();
                assert_eq!(refusal, Some("store_damaged"));
                assert!(
                    readable > WRITTEN_ONCE_KEYS as usize * 3 / 4,
                    "{at}: {readable}"
                );
            }
        }
    }
    assert!(
        refused > 0,
        "some of the damage must hit a page's only position"
    );
}
