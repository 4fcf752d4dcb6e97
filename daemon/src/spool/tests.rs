//! Reading a transcript while it is written, after parts were discarded, and after damage.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;

fn spool() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spool");
    (dir, path)
}

fn read_all(directory: &Path, position: u64, upto: ReadLimit) -> Vec<(ChildPipe, u8)> {
    let mut reader = SpoolReader::open(directory, position);
    let mut seen = Vec::new();
    while let Some(chunk) = reader.next(upto).unwrap() {
        assert_eq!(chunk.end(), reader.position());
        seen.extend(chunk.bytes.iter().map(|byte| (chunk.kind, *byte)));
    }
    seen
}

fn segments(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

#[test]
fn a_reader_follows_a_writer_over_segments_and_reads_nothing_twice() {
    let (_dir, path) = spool();
    let mut writer = SpoolWriter::create(&path).unwrap();
    let mut reader = SpoolReader::open(&path, 0);
    assert_eq!(reader.next(ReadLimit::LastWholeRecord).unwrap(), None);
    for round in 0..40_u8 {
        let end = writer
            .append(ChildPipe::Stdout, u64::from(round), &[round; LARGEST_CHUNK])
            .unwrap();
        let chunk = reader.next(ReadLimit::Position(end)).unwrap().unwrap();
        assert_eq!((chunk.end(), chunk.wall_ms), (end, u64::from(round)));
        assert!(chunk.bytes.iter().all(|byte| *byte == round));
        assert_eq!(reader.next(ReadLimit::Position(end)).unwrap(), None);
    }
    assert_eq!(segments(&path), 3);
}

#[test]
fn consumed_segments_are_removed_and_reading_them_reports_gone() {
    let (_dir, path) = spool();
    let mut writer = SpoolWriter::create(&path).unwrap();
    for _ in 0..40 {
        writer
            .append(ChildPipe::Stderr, 0, &[7; LARGEST_CHUNK])
            .unwrap();
    }
    writer.discard(segment::SEGMENT_BYTES - 1);
    assert_eq!(segments(&path), 3);
    writer.discard(segment::SEGMENT_BYTES);
    assert_eq!(segments(&path), 2);
    writer.discard(u64::MAX);
    assert_eq!(segments(&path), 1, "the segment being written stays");
    let mut late = SpoolReader::open(&path, 5);
    let gone = late.next(ReadLimit::Position(writer.end()));
    assert!(matches!(gone, Err(SpoolError::Gone { position: 5, .. })));
    writer.append(ChildPipe::Stdout, 0, b"more").unwrap();
    let more = read_all(&path, writer.end() - 4, ReadLimit::Position(writer.end()));
    assert_eq!(more.len(), 4);
}

#[test]
fn a_torn_record_is_not_read_and_a_changed_one_is_damage() {
    let (_dir, path) = spool();
    let mut writer = SpoolWriter::create(&path).unwrap();
    writer.append(ChildPipe::Stdout, 0, b"whole").unwrap();
    let end = writer.append(ChildPipe::Stdout, 0, b"torn").unwrap();
    let file = path.join(format!("{:020}", 0));
    let bytes = fs::read(&file).unwrap();
    for length in 0..bytes.len() {
        fs::write(&file, &bytes[..length]).unwrap();
        let seen = read_all(&path, 0, ReadLimit::LastWholeRecord).len();
        let whole = segment::MAGIC.len() + record_header::HEADER_SIZE + 5;
        assert_eq!(seen, if length < whole { 0 } else { 5 }, "cut at {length}");
        let mut reader = SpoolReader::open(&path, 5);
        let read = reader.next(ReadLimit::Position(end));
        assert!(
            matches!(read, Err(SpoolError::Damaged { .. })),
            "cut at {length}"
        );
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        fs::write(&file, &changed).unwrap();
        let mut reader = SpoolReader::open(&path, 0);
        let first = reader.next(ReadLimit::Position(end));
        let both = first.and_then(|_| reader.next(ReadLimit::Position(end)));
        assert!(
            matches!(both, Err(SpoolError::Damaged { .. })),
            "changed at {at}"
        );
    }
}

#[test]
fn a_failed_append_changes_nothing_and_can_be_retried() {
    let (_dir, path) = spool();
    let mut writer = SpoolWriter::create(&path).unwrap();
    let hidden = path.with_extension("away");
    fs::rename(&path, &hidden).unwrap();
    writer.append(ChildPipe::Stdout, 0, b"a").unwrap_err();
    assert_eq!(writer.end(), 0);
    fs::rename(&hidden, &path).unwrap();
    assert_eq!(writer.append(ChildPipe::Stdout, 0, b"a").unwrap(), 1);
    assert_eq!(read_all(&path, 0, ReadLimit::Position(1)).len(), 1);
    SpoolWriter::create(&path).expect_err("a transcript cannot be created twice");
}

proptest! {
    #[test]
    fn every_byte_comes_back_from_every_position(
        chunks in prop::collection::vec((any::<bool>(), 1usize..LARGEST_CHUNK), 1..60),
        from in 0.0f64..1.0,
    ) {
        let (_dir, path) = spool();
        let mut writer = SpoolWriter::create(&path).unwrap();
        let mut written = Vec::new();
        for (index, (is_error, length)) in chunks.into_iter().enumerate() {
            let kind = if is_error { ChildPipe::Stderr } else { ChildPipe::Stdout };
            let bytes = vec![index as u8; length];
            writer.append(kind, 0, &bytes).unwrap();
            written.extend(bytes.iter().map(|byte| (kind, *byte)));
        }
        prop_assert_eq!(writer.end(), written.len() as u64);
        let position = (written.len() as f64 * from) as usize;
        let upto = ReadLimit::Position(writer.end());
        prop_assert!(read_all(&path, position as u64, upto) == written[position..]);
        prop_assert!(read_all(&path, position as u64, ReadLimit::LastWholeRecord) == written[position..]);
    }
}
