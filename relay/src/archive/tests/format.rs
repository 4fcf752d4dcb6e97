//! Reading damaged, truncated and altered export files.

use std::io::Cursor;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::super::item::{ArchiveHead, ArchiveItem, ArchiveTrailer, FORMAT};
use super::super::{ArchiveDamage, ArchiveFault, ArchiveReader, ArchiveWriter};
use crate::output::{CutReason, OutputPiece};
use crate::store::{KeyText, RecordKey, RecordSchema, SCHEMA, SchemaStep};

fn head() -> ArchiveHead {
    ArchiveHead {
        format: FORMAT,
        schema: SCHEMA,
        incarnation: Some(Uuid::from_u128(7)),
        relay_epoch: 3,
        from_revision: 40,
        made_at_ms: 1_800_000_000_000,
        made_by: "0.1.0".to_owned(),
        with_output: true,
        with_tokens: true,
        refusal: None,
    }
}

fn key(number: u128) -> RecordKey {
    RecordKey::Done {
        tenant: KeyText::new("acme").unwrap(),
        task: Uuid::from_u128(number),
    }
}

fn item() -> impl Strategy<Value = ArchiveItem> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from);
    prop_oneof![
        (any::<u128>(), bytes()).prop_map(|(number, body)| ArchiveItem::Put {
            key: key(number),
            body
        }),
        any::<u128>().prop_map(|number| ArchiveItem::Delete(key(number))),
        bytes().prop_map(ArchiveItem::Body),
        (any::<u128>(), any::<u64>(), any::<u8>(), bytes()).prop_map(
            |(attempt, offset, kind, bytes)| ArchiveItem::Output {
                attempt: Uuid::from_u128(attempt),
                piece: OutputPiece::Bytes {
                    offset,
                    observed_at_ms: offset / 3,
                    after_control_seq: offset / 7,
                    kind,
                    bytes
                },
            }
        ),
        (any::<u128>(), 0..u64::MAX / 2, 1..1_000_u64).prop_map(|(attempt, from, len)| {
            ArchiveItem::Output {
                attempt: Uuid::from_u128(attempt),
                piece: OutputPiece::Cut {
                    from,
                    to: from + len,
                    reason: CutReason::Corrupt,
                },
            }
        }),
        (any::<u128>(), any::<u64>()).prop_map(|(attempt, end)| ArchiveItem::Sealed {
            attempt: Uuid::from_u128(attempt),
            end
        }),
    ]
}

/// Writes an export; returns its bytes and the offsets of its frames.
fn write_archive(items: &[ArchiveItem]) -> (Vec<u8>, Vec<usize>) {
    let mut writer = ArchiveWriter::begin(Vec::new(), &head()).unwrap();
    let mut begins = vec![0, 8];
    for item in items {
        begins.push(usize::try_from(writer.written()).unwrap());
        writer.put(item).unwrap();
    }
    begins.push(usize::try_from(writer.written()).unwrap());
    let finished = writer
        .finish(|trailer| {
            trailer.revision = 50;
            trailer.skipped = 2;
        })
        .unwrap();
    let frames = finished.trailer.frames;
    assert_eq!(frames, 1 + items.len() as u64);
    assert_eq!(finished.bytes, finished.out.len() as u64);
    let sha256: [u8; 32] = Sha256::digest(&finished.out).into();
    assert_eq!(finished.sha256, sha256);
    (finished.out, begins)
}

fn read(bytes: &[u8]) -> Result<(Vec<ArchiveItem>, ArchiveTrailer), ArchiveFault> {
    let mut reader = ArchiveReader::open(Cursor::new(bytes))?;
    let mut items = Vec::new();
    while let Some(item) = reader.next_item()? {
        items.push(item);
    }
    assert_eq!(reader.head(), &head());
    Ok((items, reader.trailer().unwrap().clone()))
}

fn some_items() -> Vec<ArchiveItem> {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let items = proptest::collection::vec(item(), 12..13);
    items.new_tree(&mut runner).unwrap().current()
}

proptest! {
    #[test]
    fn written_items_are_read_back(items in proptest::collection::vec(item(), 0..20)) {
        let (bytes, _) = write_archive(&items);
        let (found, trailer) = read(&bytes).unwrap();
        prop_assert_eq!(found, items);
        prop_assert_eq!((trailer.revision, trailer.skipped), (50, 2));
    }

    #[test]
    fn any_altered_bytes_are_refused(
        items in proptest::collection::vec(item(), 0..8),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 1..4),
    ) {
        let (good, _) = write_archive(&items);
        let mut bad = good.clone();
        for (position, by) in changes {
            bad[position.index(good.len())] ^= by;
        }
        prop_assume!(bad != good);
        prop_assert!(read(&bad).is_err());
    }

    #[test]
    fn random_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(read(&bytes).is_err());
        let (mut begun, _) = write_archive(&[]);
        begun.truncate(8);
        begun.extend_from_slice(&bytes);
        prop_assert!(read(&begun).is_err());
    }
}

#[test]
fn an_export_truncated_at_any_byte_is_refused() {
    let (bytes, begins) = write_archive(&some_items());
    for len in 0..bytes.len() {
        let fault = read(&bytes[..len]).expect_err("cut short");
        assert!(
            matches!(fault.damage, ArchiveDamage::CutShort),
            "{len}: {fault}"
        );
        let begun = begins.iter().rev().find(|begin| **begin <= len).unwrap();
        assert_eq!(
            fault.at, *begun as u64,
            "{len}: the fault has the offset of the cut frame"
        );
    }
}

#[test]
fn missing_duplicated_or_moved_frames_are_refused() {
    let (bytes, begins) = write_archive(&some_items());
    let frames: Vec<&[u8]> = begins[1..]
        .windows(2)
        .map(|pair| &bytes[pair[0]..pair[1]])
        .chain([&bytes[*begins.last().unwrap()..]])
        .collect();
    let joined = |frames: &[&[u8]]| [&bytes[..8], &frames.concat()].concat();
    assert!(read(&joined(&frames)).is_ok());
    for index in 0..frames.len() {
        let mut without = frames.clone();
        without.remove(index);
        assert!(read(&joined(&without)).is_err(), "without {index}");
        let mut twice = frames.clone();
        twice.insert(index, frames[index]);
        assert!(read(&joined(&twice)).is_err(), "{index} twice");
        let mut swapped = frames.clone();
        swapped.swap(index, (index + 1) % frames.len());
        assert!(read(&joined(&swapped)).is_err(), "{index} moved");
    }
}

#[test]
fn foreign_files_and_newer_exports_have_their_own_error_codes() {
    let code = |bytes: &[u8]| read(bytes).expect_err("refused").damage.code();
    assert_eq!(code(b"#!/bin/sh\necho"), "not_an_export");
    assert_eq!(code(b""), "export_cut_short");
    for newer in [
        ArchiveHead {
            format: FORMAT + 1,
            ..head()
        },
        ArchiveHead {
            schema: SCHEMA + 1,
            ..head()
        },
    ] {
        let writer = ArchiveWriter::begin(Vec::new(), &newer).unwrap();
        let bytes = writer.finish(|_| {}).unwrap().out;
        assert_eq!(code(&bytes), "newer_export");
    }
    let (mut longer, _) = write_archive(&some_items());
    longer.push(0);
    let fault = read(&longer).expect_err("refused");
    assert!(matches!(fault.damage, ArchiveDamage::Trailing), "{fault}");
}

#[test]
fn records_of_an_older_schema_are_migrated_or_the_export_is_refused() {
    const NEXT: RecordSchema = RecordSchema::of(&[SchemaStep {
        name: "two bytes more",
        migrate_record: |_, body| (body != b"odd").then(|| [body, b"+2"].concat()),
    }]);
    let put = |body: &'static [u8]| ArchiveItem::Put {
        key: key(1),
        body: Bytes::from_static(body),
    };
    let read = |body| {
        let (bytes, _) = write_archive(&[put(body), ArchiveItem::Delete(key(2))]);
        let mut reader = ArchiveReader::open_as(Cursor::new(bytes), NEXT).unwrap();
        let first = reader.next_item()?;
        assert_eq!(reader.next_item()?, Some(ArchiveItem::Delete(key(2))));
        assert_eq!(
            reader.next_item()?,
            None,
            "hash and counts are checked against the original items"
        );
        Ok::<_, ArchiveFault>(first)
    };
    assert_eq!(read(b"one").unwrap(), Some(put(b"one+2")));
    let fault = read(b"odd").unwrap_err();
    assert!(
        matches!(fault.damage, ArchiveDamage::Inconsistent(_)),
        "{fault}"
    );
}
