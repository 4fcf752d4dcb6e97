//! Numbering, the gate, acknowledgement, replay, the bound, and taking over; `world` tries all of them in any order.

use super::entry::RECORD_COST;
use super::*;

mod world;

type Box8 = Outbox<u64, (), ()>;

impl Body for u64 {
    fn size(&self) -> usize {
        8
    }
}

fn out(outbox: &mut Box8, text: &str) {
    let bytes = Bytes::copy_from_slice(text.as_bytes());
    outbox.push_output((), bytes, ());
}

fn control(outbox: &mut Box8, body: u64) -> u64 {
    outbox.push_control(body, (), Leaves::Written)
}

/// Writes everything and syncs it; returns what the file would hold.
fn store(outbox: &mut Box8) -> Vec<Logged<u64, (), ()>> {
    let entries = outbox.log_mut().take();
    let last = entries.last().map_or(0, |logged| logged.serial);
    outbox.log_mut().on_durable(Durable {
        written: last,
        synced: last,
        file_bytes: 0,
    });
    entries
}

fn send_all(outbox: &mut Box8) -> Vec<Record<u64, (), ()>> {
    let mut sent = Vec::new();
    while let Some(record) = outbox.next_unsent().cloned() {
        sent.push(record);
        outbox.mark_sent();
    }
    sent
}

fn acked(control_seq: u64, output_offset: u64) -> Acked {
    Acked {
        control_seq,
        output_offset,
    }
}

#[test]
fn two_numberings_leave_in_one_order_and_are_acked_apart() {
    let mut outbox = Box8::in_memory(OUTPUT_LIMIT);
    assert_eq!(control(&mut outbox, 10), 1);
    out(&mut outbox, "hello ");
    assert_eq!(control(&mut outbox, 20), 2);
    out(&mut outbox, "world");
    let sent = send_all(&mut outbox);
    assert!(matches!(
        sent[1],
        Record::Output {
            offset: 0,
            after_control_seq: 1,
            ..
        }
    ));
    assert!(matches!(
        sent[3],
        Record::Output {
            offset: 6,
            after_control_seq: 2,
            ..
        }
    ));
    outbox.ack(acked(2, 0));
    outbox.settle(acked(1, 8));
    let replayed = send_all(&mut outbox);
    assert_eq!(replayed.len(), 1);
    let Record::Output {
        offset: 8, bytes, ..
    } = &replayed[0]
    else {
        panic!("{replayed:?}")
    };
    assert_eq!(&bytes[..], b"rld");
    outbox.ack(acked(u64::MAX, u64::MAX));
    assert_eq!(outbox.acked(), acked(2, 11));
    assert_eq!((outbox.held(), outbox.next_unsent()), (0, None));
}

#[test]
fn beyond_the_bound_the_oldest_output_becomes_one_cut_and_control_stays() {
    let mut outbox = Box8::new(3 * (10 + RECORD_COST));
    control(&mut outbox, 1);
    for _ in 0..6 {
        out(&mut outbox, "0123456789");
    }
    control(&mut outbox, 2);
    assert_eq!(outbox.oldest_output(), 30);
    let file = store(&mut outbox);
    let restored = Box8::restore(OUTPUT_LIMIT, file);
    assert_eq!(restored.oldest_output(), 30);
    let sent = send_all(&mut outbox);
    assert!(matches!(sent[0], Record::Control { seq: 1, .. }));
    assert!(matches!(
        sent[1],
        Record::Cut {
            offset: 0,
            length: 30,
            why: CutWhy::Overflow,
            ..
        }
    ));
    assert!(matches!(sent[2], Record::Output { offset: 30, .. }));
    assert!(matches!(sent.last(), Some(Record::Control { seq: 2, .. })));
    assert_eq!(sent.len(), 6);
}

#[test]
fn nothing_leaves_before_the_disk_has_it_and_what_counts_waits_for_the_sync() {
    let mut outbox = Box8::new(OUTPUT_LIMIT);
    control(&mut outbox, 1);
    out(&mut outbox, "text");
    outbox.push_control(2, (), Leaves::Synced);
    assert!(!outbox.log().is_begun());
    assert_eq!(outbox.next_unsent(), None);
    assert_eq!(outbox.log_mut().take().len(), 3);
    let mut durable = Durable {
        written: 1,
        ..Durable::default()
    };
    outbox.log_mut().on_durable(durable);
    assert!(outbox.log().is_begun());
    assert_eq!(send_all(&mut outbox).len(), 1);
    assert_eq!(outbox.log().unwritten(), 8 + 4 + 2 * RECORD_COST);
    durable.written = 3;
    outbox.log_mut().on_durable(durable);
    assert_eq!(send_all(&mut outbox).len(), 1, "the last one is not synced");
    durable.synced = 3;
    outbox.log_mut().on_durable(durable);
    assert_eq!(send_all(&mut outbox).len(), 1);
    assert_eq!(outbox.log().unwritten(), 0);
}

#[test]
fn a_disk_that_refuses_opens_the_gate_and_a_new_file_closes_it_again() {
    let mut outbox = Box8::new(OUTPUT_LIMIT);
    control(&mut outbox, 1);
    outbox.log_mut().take();
    outbox.log_mut().on_failed();
    outbox.push_control(2, (), Leaves::Synced);
    assert_eq!(send_all(&mut outbox).len(), 2);
    assert!(!outbox.log().has_pending() && outbox.log().has_failed());
    let file = outbox.image();
    control(&mut outbox, 3);
    assert_eq!(outbox.next_unsent(), None);
    let durable = Durable {
        written: outbox.log_mut().take()[0].serial,
        ..Durable::default()
    };
    outbox.log_mut().on_durable(durable);
    assert_eq!(send_all(&mut outbox).len(), 1);
    let mut restored = Box8::restore(OUTPUT_LIMIT, file);
    assert_eq!(restored.last_control_seq(), 2);
    assert_eq!(restored.next_unsent(), None, "the disk is asked again");
    let written = restored.log_mut().take()[0].serial;
    restored.log_mut().on_durable(Durable {
        written,
        ..Durable::default()
    });
    assert_eq!(send_all(&mut restored).len(), 1, "one needs more than that");
    restored.log_mut().on_durable(Durable {
        written,
        synced: written,
        file_bytes: 0,
    });
    assert_eq!(send_all(&mut restored).len(), 1);
}

#[test]
fn progress_is_stored_with_the_records_and_told_once_it_is_written() {
    let mut outbox = Box8::new(OUTPUT_LIMIT);
    let progress = |consumed, snapshot: &'static str| Progress {
        consumed,
        snapshot: Bytes::from_static(snapshot.as_bytes()),
    };
    outbox.advance(progress(10, "a"));
    control(&mut outbox, 1);
    outbox.advance(progress(20, "a"));
    out(&mut outbox, "text");
    outbox.advance(progress(30, "b"));
    outbox.store_progress();
    outbox.store_progress();
    let file = outbox.log_mut().take();
    let snapshots = |logged: &Logged<u64, (), ()>| logged.progress.snapshot.is_some();
    assert_eq!(
        file.iter().map(snapshots).collect::<Vec<_>>(),
        [true, false, true]
    );
    let durable = Durable {
        written: 2,
        ..Durable::default()
    };
    assert_eq!(outbox.log().stored_consumed(), 0);
    outbox.log_mut().on_durable(durable);
    assert_eq!(outbox.log().stored_consumed(), 20);
    let restored = Box8::restore(OUTPUT_LIMIT, file[..2].to_vec());
    assert_eq!(*restored.progress(), progress(20, "a"));
    assert_eq!(restored.log().stored_consumed(), 20);
    let mut restored = Box8::restore(OUTPUT_LIMIT, file);
    assert_eq!(*restored.progress(), progress(30, "b"));
    let image = restored.image();
    assert_eq!(*Box8::restore(0, image).progress(), progress(30, "b"));
}

#[test]
fn frames_that_only_the_relay_still_knows_are_counted_before_new_ones_are_numbered() {
    let mut first = Box8::new(OUTPUT_LIMIT);
    for body in 1..=5 {
        control(&mut first, body);
    }
    let mut file = store(&mut first);
    send_all(&mut first);
    file.truncate(3);
    // The machine lost two records that the relay has. Two daemons die before they can ask.
    let mut second = Box8::restore(OUTPUT_LIMIT, file.clone());
    second.push_control(90, (), Leaves::Synced);
    file.extend(store(&mut second));
    let mut third = Box8::restore(OUTPUT_LIMIT, file.clone());
    file.extend(store(&mut third));
    third.settle(acked(5, 0));
    assert_eq!(third.last_control_seq(), 6);
    let all = |outbox: &mut Box8, written, synced| {
        outbox.log_mut().on_durable(Durable {
            written,
            synced,
            file_bytes: 0,
        });
    };
    all(&mut third, 1_000, 0);
    assert_eq!(
        third.next_unsent(),
        None,
        "the number is not safe before its record is"
    );
    all(&mut third, 1_000, 1_000);
    let sent = send_all(&mut third);
    assert!(
        matches!(
            sent[..],
            [Record::Control {
                seq: 6,
                body: 90,
                ..
            }]
        ),
        "{sent:?}"
    );
    // Settled is settled: the next daemon keeps the number.
    file.extend(third.log_mut().take());
    let mut fourth = Box8::restore(OUTPUT_LIMIT, file);
    fourth.settle(acked(5, 0));
    assert_eq!(fourth.last_control_seq(), 6);
    fourth.settle(acked(6, 0));
    assert_eq!(fourth.acked(), acked(6, 0));
}

#[test]
fn a_mostly_dead_file_is_rewritten_once_and_not_again_before_it_has_doubled() {
    let mut outbox = Box8::new(OUTPUT_LIMIT);
    out(&mut outbox, "text");
    let written = outbox.log_mut().take().len() as u64;
    let on_durable = |outbox: &mut Box8, written, file_bytes| {
        outbox.log_mut().on_durable(Durable {
            written,
            synced: 0,
            file_bytes,
        });
    };
    on_durable(&mut outbox, written, 1 << 20);
    assert!(
        !outbox.log().wants_new_file(600_000),
        "more than half lives"
    );
    assert!(outbox.log().wants_new_file(outbox.held()));
    let image = outbox.image();
    assert!(!outbox.log().wants_new_file(0), "one is on its way");
    on_durable(&mut outbox, image.last().unwrap().serial, 900_000);
    on_durable(&mut outbox, 0, 1_100_000);
    assert!(!outbox.log().wants_new_file(0));
    on_durable(&mut outbox, 0, 1_800_000);
    assert!(outbox.log().wants_new_file(0));
}

#[test]
fn of_a_fenced_end_the_last_word_and_the_output_before_it_stay_wanted() {
    let mut outbox = Box8::new(OUTPUT_LIMIT);
    control(&mut outbox, 1);
    out(&mut outbox, "text");
    control(&mut outbox, 2);
    let mut file = store(&mut outbox);
    send_all(&mut outbox);
    outbox.keep_last_control();
    file.extend(store(&mut outbox));
    for outbox in [&mut outbox, &mut Box8::restore(OUTPUT_LIMIT, file.clone())] {
        outbox.log_mut().on_failed();
        let sent = send_all(outbox);
        assert!(
            matches!(
                sent[..],
                [Record::Output { .. }, Record::Control { seq: 2, .. }]
            ),
            "{sent:?}"
        );
    }
    let mut outbox = Box8::restore(OUTPUT_LIMIT, file);
    outbox.restart_at(8);
    assert_eq!(control(&mut outbox, 3), 8);
    assert_eq!(outbox.end_offset(), 4);
}

#[test]
fn control_frames_are_charged_until_they_are_acknowledged_or_forgotten() {
    let each = 8 + RECORD_COST;
    let mut outbox = Box8::new(OUTPUT_LIMIT);
    for body in 0..4 {
        control(&mut outbox, body);
        out(&mut outbox, "x");
    }
    assert_eq!(
        (outbox.untold(), outbox.held()),
        (4 * each, 4 * (1 + RECORD_COST))
    );
    assert!(outbox.log().unwritten() >= 4 * each);
    let file = store(&mut outbox);
    outbox.ack(acked(1, 0));
    assert_eq!(outbox.untold(), 3 * each);
    outbox.keep_last_control();
    assert_eq!(outbox.untold(), each);
    outbox.restart_at(9);
    assert_eq!(outbox.untold(), 0);
    let mut restored = Box8::restore(OUTPUT_LIMIT, file);
    assert_eq!(restored.untold(), 4 * each);
    restored.drop_unacked();
    assert_eq!(restored.untold(), 0);
}
