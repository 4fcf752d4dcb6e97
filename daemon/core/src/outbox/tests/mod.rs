//! Numbering, durability before sending, acknowledgement, replay, the output limit and
//! take-over. `simulation` combines all of them in random order.

use super::entry::RECORD_OVERHEAD;
use super::*;

mod simulation;

type TestOutbox = Outbox<u64, (), ()>;

impl ControlBody for u64 {
    fn size(&self) -> usize {
        8
    }
}

fn push_text(outbox: &mut TestOutbox, text: &str) {
    let bytes = Bytes::copy_from_slice(text.as_bytes());
    outbox.push_output((), bytes, ());
}

fn control(outbox: &mut TestOutbox, body: u64) -> u64 {
    outbox.push_control(body, (), RequiredDurability::Written)
}

/// Writes everything and syncs it; returns the content of the file.
fn write_and_sync(outbox: &mut TestOutbox) -> Vec<LoggedEntry<u64, (), ()>> {
    let entries = outbox.log_mut().take_pending();
    let last = entries.last().map_or(0, |logged| logged.serial);
    outbox.log_mut().on_durable(DurablePosition {
        written: last,
        synced: last,
        file_bytes: 0,
    });
    entries
}

fn send_all(outbox: &mut TestOutbox) -> Vec<QueuedRecord<u64, (), ()>> {
    let mut sent = Vec::new();
    while let Some(record) = outbox.next_unsent().cloned() {
        sent.push(record);
        outbox.mark_sent();
    }
    sent
}

fn acked(control_seq: u64, output_offset: u64) -> AckedPosition {
    AckedPosition {
        control_seq,
        output_offset,
    }
}

#[test]
fn control_and_output_are_sent_in_one_order_and_acked_separately() {
    let mut outbox = TestOutbox::in_memory(OUTPUT_LIMIT);
    assert_eq!(control(&mut outbox, 10), 1);
    push_text(&mut outbox, "hello ");
    assert_eq!(control(&mut outbox, 20), 2);
    push_text(&mut outbox, "world");
    let sent = send_all(&mut outbox);
    assert!(matches!(
        sent[1],
        QueuedRecord::Output {
            offset: 0,
            after_control_seq: 1,
            ..
        }
    ));
    assert!(matches!(
        sent[3],
        QueuedRecord::Output {
            offset: 6,
            after_control_seq: 2,
            ..
        }
    ));
    outbox.ack(acked(2, 0));
    outbox.apply_settlement(acked(1, 8));
    let replayed = send_all(&mut outbox);
    assert_eq!(replayed.len(), 1);
    let QueuedRecord::Output {
        offset: 8, bytes, ..
    } = &replayed[0]
    else {
        panic!("{replayed:?}")
    };
    assert_eq!(&bytes[..], b"rld");
    outbox.ack(acked(u64::MAX, u64::MAX));
    assert_eq!(outbox.acked(), acked(2, 11));
    assert_eq!((outbox.output_bytes(), outbox.next_unsent()), (0, None));
}

#[test]
fn past_the_limit_the_oldest_output_becomes_one_cut_and_control_stays() {
    let mut outbox = TestOutbox::new(3 * (10 + RECORD_OVERHEAD));
    control(&mut outbox, 1);
    for _ in 0..6 {
        push_text(&mut outbox, "0123456789");
    }
    control(&mut outbox, 2);
    assert_eq!(outbox.oldest_output_offset(), 30);
    let file = write_and_sync(&mut outbox);
    let restored = TestOutbox::restore(OUTPUT_LIMIT, file);
    assert_eq!(restored.oldest_output_offset(), 30);
    let sent = send_all(&mut outbox);
    assert!(matches!(sent[0], QueuedRecord::Control { seq: 1, .. }));
    assert!(matches!(
        sent[1],
        QueuedRecord::Cut {
            offset: 0,
            length: 30,
            reason: OutputCutReason::Overflow,
            ..
        }
    ));
    assert!(matches!(sent[2], QueuedRecord::Output { offset: 30, .. }));
    assert!(matches!(
        sent.last(),
        Some(QueuedRecord::Control { seq: 2, .. })
    ));
    assert_eq!(sent.len(), 6);
}

#[test]
fn records_are_sent_after_the_write_and_important_ones_after_the_sync() {
    let mut outbox = TestOutbox::new(OUTPUT_LIMIT);
    control(&mut outbox, 1);
    push_text(&mut outbox, "text");
    outbox.push_control(2, (), RequiredDurability::Synced);
    assert!(!outbox.log().has_stored_entries());
    assert_eq!(outbox.next_unsent(), None);
    assert_eq!(outbox.log_mut().take_pending().len(), 3);
    let mut durable = DurablePosition {
        written: 1,
        ..DurablePosition::default()
    };
    outbox.log_mut().on_durable(durable);
    assert!(outbox.log().has_stored_entries());
    assert_eq!(send_all(&mut outbox).len(), 1);
    assert_eq!(outbox.log().unwritten_bytes(), 8 + 4 + 2 * RECORD_OVERHEAD);
    durable.written = 3;
    outbox.log_mut().on_durable(durable);
    assert_eq!(send_all(&mut outbox).len(), 1, "the last one is not synced");
    durable.synced = 3;
    outbox.log_mut().on_durable(durable);
    assert_eq!(send_all(&mut outbox).len(), 1);
    assert_eq!(outbox.log().unwritten_bytes(), 0);
}

#[test]
fn after_a_write_error_records_are_sent_from_memory_until_a_rewrite() {
    let mut outbox = TestOutbox::new(OUTPUT_LIMIT);
    control(&mut outbox, 1);
    outbox.log_mut().take_pending();
    outbox.log_mut().on_failed();
    outbox.push_control(2, (), RequiredDurability::Synced);
    assert_eq!(send_all(&mut outbox).len(), 2);
    assert!(!outbox.log().has_pending() && outbox.log().has_failed());
    let file = outbox.rewrite_entries();
    control(&mut outbox, 3);
    assert_eq!(outbox.next_unsent(), None);
    let durable = DurablePosition {
        written: outbox.log_mut().take_pending()[0].serial,
        ..DurablePosition::default()
    };
    outbox.log_mut().on_durable(durable);
    assert_eq!(send_all(&mut outbox).len(), 1);
    let mut restored = TestOutbox::restore(OUTPUT_LIMIT, file);
    assert_eq!(restored.last_control_seq(), 2);
    assert_eq!(
        restored.next_unsent(),
        None,
        "entries must be confirmed by the disk again"
    );
    let written = restored.log_mut().take_pending()[0].serial;
    restored.log_mut().on_durable(DurablePosition {
        written,
        ..DurablePosition::default()
    });
    assert_eq!(send_all(&mut restored).len(), 1, "one record needs a sync");
    restored.log_mut().on_durable(DurablePosition {
        written,
        synced: written,
        file_bytes: 0,
    });
    assert_eq!(send_all(&mut restored).len(), 1);
}

#[test]
fn progress_is_stored_with_records_and_reported_once_written() {
    let mut outbox = TestOutbox::new(OUTPUT_LIMIT);
    let progress = |consumed, snapshot: &'static str| TranscriptProgress {
        consumed,
        snapshot: Bytes::from_static(snapshot.as_bytes()),
    };
    outbox.set_progress(progress(10, "a"));
    control(&mut outbox, 1);
    outbox.set_progress(progress(20, "a"));
    push_text(&mut outbox, "text");
    outbox.set_progress(progress(30, "b"));
    outbox.store_progress();
    outbox.store_progress();
    let file = outbox.log_mut().take_pending();
    let snapshots = |logged: &LoggedEntry<u64, (), ()>| logged.progress.snapshot.is_some();
    assert_eq!(
        file.iter().map(snapshots).collect::<Vec<_>>(),
        [true, false, true]
    );
    let durable = DurablePosition {
        written: 2,
        ..DurablePosition::default()
    };
    assert_eq!(outbox.log().stored_consumed(), 0);
    outbox.log_mut().on_durable(durable);
    assert_eq!(outbox.log().stored_consumed(), 20);
    let restored = TestOutbox::restore(OUTPUT_LIMIT, file[..2].to_vec());
    assert_eq!(*restored.progress(), progress(20, "a"));
    assert_eq!(restored.log().stored_consumed(), 20);
    let mut restored = TestOutbox::restore(OUTPUT_LIMIT, file);
    assert_eq!(*restored.progress(), progress(30, "b"));
    let image = restored.rewrite_entries();
    assert_eq!(*TestOutbox::restore(0, image).progress(), progress(30, "b"));
}

#[test]
fn new_frames_are_numbered_after_frames_that_only_the_relay_has() {
    let mut first = TestOutbox::new(OUTPUT_LIMIT);
    for body in 1..=5 {
        control(&mut first, body);
    }
    let mut file = write_and_sync(&mut first);
    send_all(&mut first);
    file.truncate(3);
    // The machine lost two records that the relay has. Two daemons die before they reach the
    // relay.
    let mut second = TestOutbox::restore(OUTPUT_LIMIT, file.clone());
    second.push_control(90, (), RequiredDurability::Synced);
    file.extend(write_and_sync(&mut second));
    let mut third = TestOutbox::restore(OUTPUT_LIMIT, file.clone());
    file.extend(write_and_sync(&mut third));
    third.apply_settlement(acked(5, 0));
    assert_eq!(third.last_control_seq(), 6);
    let all = |outbox: &mut TestOutbox, written, synced| {
        outbox.log_mut().on_durable(DurablePosition {
            written,
            synced,
            file_bytes: 0,
        });
    };
    all(&mut third, 1_000, 0);
    assert_eq!(
        third.next_unsent(),
        None,
        "a renumbered frame waits for the sync"
    );
    all(&mut third, 1_000, 1_000);
    let sent = send_all(&mut third);
    assert!(
        matches!(
            sent[..],
            [QueuedRecord::Control {
                seq: 6,
                body: 90,
                ..
            }]
        ),
        "{sent:?}"
    );
    // The renumbering is settled: the next daemon keeps the number.
    file.extend(third.log_mut().take_pending());
    let mut fourth = TestOutbox::restore(OUTPUT_LIMIT, file);
    fourth.apply_settlement(acked(5, 0));
    assert_eq!(fourth.last_control_seq(), 6);
    fourth.apply_settlement(acked(6, 0));
    assert_eq!(fourth.acked(), acked(6, 0));
}

#[test]
fn a_mostly_obsolete_file_is_rewritten_and_next_when_it_has_doubled() {
    let mut outbox = TestOutbox::new(OUTPUT_LIMIT);
    push_text(&mut outbox, "text");
    let written = outbox.log_mut().take_pending().len() as u64;
    let on_durable = |outbox: &mut TestOutbox, written, file_bytes| {
        outbox.log_mut().on_durable(DurablePosition {
            written,
            synced: 0,
            file_bytes,
        });
    };
    on_durable(&mut outbox, written, 1 << 20);
    assert!(
        !outbox.log().needs_rewrite(600_000),
        "more than half is still needed"
    );
    assert!(outbox.log().needs_rewrite(outbox.output_bytes()));
    let image = outbox.rewrite_entries();
    assert!(
        !outbox.log().needs_rewrite(0),
        "a rewrite is already running"
    );
    on_durable(&mut outbox, image.last().unwrap().serial, 900_000);
    on_durable(&mut outbox, 0, 1_100_000);
    assert!(!outbox.log().needs_rewrite(0));
    on_durable(&mut outbox, 0, 1_800_000);
    assert!(outbox.log().needs_rewrite(0));
}

#[test]
fn a_fenced_end_keeps_its_last_control_frame_and_all_output() {
    let mut outbox = TestOutbox::new(OUTPUT_LIMIT);
    control(&mut outbox, 1);
    push_text(&mut outbox, "text");
    control(&mut outbox, 2);
    let mut file = write_and_sync(&mut outbox);
    send_all(&mut outbox);
    outbox.drop_all_but_last_control();
    file.extend(write_and_sync(&mut outbox));
    for outbox in [
        &mut outbox,
        &mut TestOutbox::restore(OUTPUT_LIMIT, file.clone()),
    ] {
        outbox.log_mut().on_failed();
        let sent = send_all(outbox);
        assert!(
            matches!(
                sent[..],
                [
                    QueuedRecord::Output { .. },
                    QueuedRecord::Control { seq: 2, .. }
                ]
            ),
            "{sent:?}"
        );
    }
    let mut outbox = TestOutbox::restore(OUTPUT_LIMIT, file);
    outbox.restart_at(8);
    assert_eq!(control(&mut outbox, 3), 8);
    assert_eq!(outbox.end_offset(), 4);
}

#[test]
fn control_frames_are_charged_until_acknowledged_or_dropped() {
    let each = 8 + RECORD_OVERHEAD;
    let mut outbox = TestOutbox::new(OUTPUT_LIMIT);
    for body in 0..4 {
        control(&mut outbox, body);
        push_text(&mut outbox, "x");
    }
    assert_eq!(
        (outbox.control_bytes(), outbox.output_bytes()),
        (4 * each, 4 * (1 + RECORD_OVERHEAD))
    );
    assert!(outbox.log().unwritten_bytes() >= 4 * each);
    let file = write_and_sync(&mut outbox);
    outbox.ack(acked(1, 0));
    assert_eq!(outbox.control_bytes(), 3 * each);
    outbox.drop_all_but_last_control();
    assert_eq!(outbox.control_bytes(), each);
    outbox.restart_at(9);
    assert_eq!(outbox.control_bytes(), 0);
    let mut restored = TestOutbox::restore(OUTPUT_LIMIT, file);
    assert_eq!(restored.control_bytes(), 4 * each);
    restored.discard_unacked();
    assert_eq!(restored.control_bytes(), 0);
}
