//! The file: what comes back out of it, torn ends, damage, versions, rewriting.

use std::time::{Duration, SystemTime};

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{AttemptFrame, LeaseToken, TaskComplete, TaskLifecycle};
use baton_proto::worker::outbox_record::Change;
use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::frames;
use crate::outbox::{AckedPosition, OutputCutReason, RequiredDurability, TranscriptProgress};
use crate::spool::ChildPipe;

type FileTestOutbox = FrameOutbox;

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn complete() -> ControlFrame {
    ControlFrame {
        body: Some(Body::Complete(TaskComplete {
            final_offset: 9,
            receipt: Some(frames::no_process_receipt(at(3))),
            ..TaskComplete::default()
        })),
        within_lease: true,
    }
}

/// An outbox with every kind of entry.
fn outbox_with_every_entry() -> FileTestOutbox {
    let mut outbox = FileTestOutbox::new(OUTPUT_LIMIT);
    outbox.push_control(
        frames::accepted().into(),
        at(1),
        RequiredDurability::Written,
    );
    outbox.set_progress(TranscriptProgress {
        consumed: 5,
        snapshot: Bytes::from_static(b"state"),
    });
    outbox.push_output(ChildPipe::Stderr.into(), Bytes::from_static(b"text"), at(2));
    outbox.push_cut(5, OutputCutReason::WorkerCrash, at(2));
    outbox.ack(AckedPosition {
        control_seq: 1,
        output_offset: 2,
    });
    outbox.push_control(complete(), at(3), complete().required_durability());
    outbox
}

fn take_sent(outbox: &mut FileTestOutbox) -> Vec<FrameRecord> {
    outbox.log_mut().on_failed();
    outbox.resend_unacked();
    let mut sent = Vec::new();
    while let Some(record) = outbox.next_unsent().cloned() {
        sent.push(record);
        outbox.mark_sent();
    }
    sent
}

fn outbox_path() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("outbox");
    (dir, path)
}

#[test]
fn appended_entries_are_read_and_the_next_daemon_continues_them() {
    let (_dir, path) = outbox_path();
    let mut outbox = outbox_with_every_entry();
    let mut file = OutboxFile::open(&path, 0).unwrap();
    file.append(&outbox.log_mut().take_pending()).unwrap();
    file.sync().unwrap();
    let mut stored = read_outbox(&path, OutboxTail::MayBeTorn).unwrap();
    assert_eq!(
        (stored.prefix.length, stored.torn_bytes),
        (file.length(), 0)
    );
    assert_eq!(stored.last_control, Some(complete()));
    assert_eq!(stored.outbox.progress(), outbox.progress());
    assert_eq!(stored.outbox.acked(), outbox.acked());
    assert_eq!(take_sent(&mut stored.outbox), take_sent(&mut outbox));

    let mut stored = read_outbox(&path, OutboxTail::MayBeTorn).unwrap();
    let number = stored
        .outbox
        .push_control(complete(), at(4), RequiredDurability::Synced);
    let mut file = OutboxFile::open(&path, stored.prefix.length).unwrap();
    file.append(&stored.outbox.log_mut().take_pending())
        .unwrap();
    let mut again = read_outbox(&path, OutboxTail::MayBeTorn).unwrap();
    assert_eq!((number, again.outbox.last_control_seq()), (3, 3));
    assert_eq!(take_sent(&mut again.outbox), take_sent(&mut stored.outbox));
}

#[test]
fn a_missing_and_an_empty_file_are_an_empty_outbox() {
    let (_dir, path) = outbox_path();
    for _ in 0..2 {
        let mut stored = read_outbox(&path, OutboxTail::MayBeTorn).unwrap();
        assert_eq!((stored.prefix.length, stored.torn_bytes), (0, 0));
        assert_eq!(stored.last_control, None);
        assert_eq!(
            stored
                .outbox
                .push_control(complete(), at(1), RequiredDurability::Synced),
            1
        );
        fs::write(&path, b"").unwrap();
    }
}

#[test]
fn a_torn_end_is_cut_off_at_every_length_and_counted() {
    let (_dir, path) = outbox_path();
    let mut outbox = outbox_with_every_entry();
    let entries = outbox.log_mut().take_pending();
    let mut ends = vec![0];
    let mut whole = OutboxFile::open(&path, 0).unwrap();
    for entry in &entries {
        whole.append(std::slice::from_ref(entry)).unwrap();
        ends.push(whole.length());
    }
    let bytes = fs::read(&path).unwrap();
    for length in 0..=bytes.len() {
        fs::write(&path, &bytes[..length]).unwrap();
        let stored = read_outbox(&path, OutboxTail::MayBeTorn).unwrap();
        let good = ends
            .iter()
            .rev()
            .find(|end| **end <= length as u64)
            .unwrap();
        assert_eq!(stored.prefix.length, *good);
        assert_eq!(stored.torn_bytes, length as u64 - good);
        let mut file = OutboxFile::open(&path, stored.prefix.length).unwrap();
        let count = ends.iter().position(|end| end == good).unwrap();
        file.append(&entries[count..]).unwrap();
        assert_eq!(
            fs::read(&path).unwrap(),
            bytes,
            "it goes on without the torn end"
        );
    }
}

#[test]
fn damage_is_an_error_except_at_the_end_after_a_machine_crash() {
    let (_dir, path) = outbox_path();
    let mut outbox = outbox_with_every_entry();
    let mut file = OutboxFile::open(&path, 0).unwrap();
    let entries = outbox.log_mut().take_pending();
    let (last, first) = entries.split_last().unwrap();
    file.append(first).unwrap();
    let before = file.length();
    file.append(std::slice::from_ref(last)).unwrap();
    let good = fs::read(&path).unwrap();
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, bytes).unwrap();
        let error = read_outbox(&path, OutboxTail::MayBeTorn).unwrap_err();
        assert!(
            matches!(error, OutboxReadError::Damaged { .. }),
            "bit {bit}: {error}"
        );
        let in_last_message = bit as u64 / 8 >= before + 8;
        match read_outbox(&path, OutboxTail::MayBeCorrupt) {
            Ok(stored) => assert!(in_last_message && stored.prefix.length == before),
            Err(_) => assert!(!in_last_message),
        }
    }
    fs::write(&path, [&good[..], &good[..]].concat()).unwrap();
    let error = read_outbox(&path, OutboxTail::MayBeCorrupt).unwrap_err();
    assert!(error.to_string().contains("out of order"), "{error}");
}

#[test]
fn unknown_fields_are_ignored_and_an_unknown_frame_keeps_its_number() {
    let (_dir, path) = outbox_path();
    let mut bytes = Vec::new();
    let frame = |control_seq, body| OutboxRecord {
        serial: control_seq,
        change: Some(Change::Frame(AttemptFrame {
            control_seq,
            body,
            ..AttemptFrame::default()
        })),
        ..OutboxRecord::default()
    };
    let lifecycle = Body::Lifecycle(TaskLifecycle::default());
    assert!(checked_record::append_record(
        &frame(1, Some(lifecycle)),
        &mut bytes
    ));
    assert!(checked_record::append_record(&frame(2, None), &mut bytes));
    // Field 1000 of a record and a change that this version does not know.
    let mut later = frame(3, None);
    later.change = None;
    let mut message = later.encode_to_vec();
    message.extend_from_slice(&[0xc2, 0x3e, 2, b'h', b'i']);
    put_bytes(&message, &mut bytes);
    fs::write(&path, &bytes).unwrap();
    let mut stored = read_outbox(&path, OutboxTail::MayBeTorn).unwrap();
    assert_eq!(stored.outbox.last_control_seq(), 2);
    let sent = take_sent(&mut stored.outbox);
    assert!(matches!(
        &sent[1],
        FrameRecord::Control {
            seq: 2,
            body: ControlFrame { body: None, .. },
            ..
        }
    ));
}

/// A file that the first version wrote. It must stay readable.
const FIRST_VERSION: &[u8] = include_bytes!("first_version.outbox");

#[test]
fn a_file_of_the_first_version_is_read() {
    let (_dir, path) = outbox_path();
    let mut outbox = outbox_with_every_entry();
    fs::write(&path, FIRST_VERSION).unwrap();
    let mut stored = read_outbox(&path, OutboxTail::MayBeTorn).unwrap();
    assert_eq!(stored.prefix.length, FIRST_VERSION.len() as u64);
    assert_eq!(stored.outbox.progress(), outbox.progress());
    assert_eq!(take_sent(&mut stored.outbox), take_sent(&mut outbox));
}

fn put_bytes(message: &[u8], out: &mut Vec<u8>) {
    let number = u32::try_from(message.len()).unwrap().to_be_bytes();
    out.extend_from_slice(&number);
    out.extend_from_slice(&crc32fast::hash(&number).to_be_bytes());
    out.extend_from_slice(&crc32fast::hash(message).to_be_bytes());
    out.extend_from_slice(message);
}

#[test]
fn a_new_file_replaces_the_old_one_atomically() {
    let (dir, path) = outbox_path();
    let mut outbox = outbox_with_every_entry();
    let mut file = OutboxFile::open(&path, 0).unwrap();
    file.append(&outbox.log_mut().take_pending()).unwrap();
    let old = file.length();
    let mut file = OutboxFile::write_draft(&path, &outbox.rewrite_entries()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), old, "not yet");
    OutboxFile::install_draft(&path).unwrap();
    outbox.push_output(ChildPipe::Stdout.into(), Bytes::from_static(b"more"), at(5));
    file.append(&outbox.log_mut().take_pending()).unwrap();
    let mut stored = read_outbox(&path, OutboxTail::MayBeTorn).unwrap();
    assert_eq!(stored.prefix.length, file.length());
    assert_eq!(stored.outbox.acked(), outbox.acked());
    assert_eq!(stored.outbox.progress(), outbox.progress());
    assert_eq!(take_sent(&mut stored.outbox), take_sent(&mut outbox));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    // A daemon killed during a rewrite: the old file is unchanged, the draft is overwritten.
    fs::write(dir.path().join("outbox.new"), b"half").unwrap();
    assert_eq!(
        read_outbox(&path, OutboxTail::MayBeTorn)
            .unwrap()
            .prefix
            .length,
        file.length()
    );
    OutboxFile::write_draft(&path, &outbox.rewrite_entries()).unwrap();
    OutboxFile::install_draft(&path).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn no_token_reaches_the_file() {
    let (_dir, path) = outbox_path();
    let mut outbox = outbox_with_every_entry();
    let token = LeaseToken {
        value: Bytes::from_static(b"thirty-two bytes of a lease token"),
    };
    let record = outbox.log_mut().take_pending();
    let FrameEntry::Frame(first) = &record[0].entry else {
        panic!("{record:?}")
    };
    // The same record as it is sent does contain it.
    let wire =
        frames::encode_attempt_frame(&Default::default(), Some(&token), first).encode_to_vec();
    let holds = |bytes: &[u8]| {
        bytes
            .windows(token.value.len())
            .any(|part| part == token.value)
    };
    assert!(holds(&wire));
    let mut file = OutboxFile::open(&path, 0).unwrap();
    file.append(&record).unwrap();
    assert!(!holds(&fs::read(&path).unwrap()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any bytes in a file give a result, never a panic, and never more than was there.
    #[test]
    fn no_file_makes_the_reader_panic(
        cut in 0usize..2_000,
        noise in prop::collection::vec((0usize..2_000, any::<u8>()), 0..4),
    ) {
        let (_dir, path) = outbox_path();
        let mut file = OutboxFile::open(&path, 0).unwrap();
        file.append(&outbox_with_every_entry().log_mut().take_pending()).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(cut);
        for (at, byte) in noise {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        fs::write(&path, &bytes).unwrap();
        for tail in [OutboxTail::MayBeTorn, OutboxTail::MayBeCorrupt] {
            if let Ok(stored) = read_outbox(&path, tail) {
                prop_assert_eq!(stored.prefix.length + stored.torn_bytes, bytes.len() as u64);
            }
        }
    }
}
