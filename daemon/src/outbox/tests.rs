//! Numbering, acknowledgement, replay and the bound; and that no sequence of them makes a hole.

use super::*;
use proptest::prelude::*;

type Box8 = Outbox<u64, ()>;

fn out(outbox: &mut Box8, text: &str) {
    outbox.push_output(
        OutputKind::Stdout,
        Bytes::copy_from_slice(text.as_bytes()),
        (),
    );
}

fn send_all(outbox: &mut Box8) -> Vec<Record<u64, ()>> {
    let mut sent = Vec::new();
    while let Some(record) = outbox.next_unsent().cloned() {
        sent.push(record);
        outbox.mark_sent();
    }
    sent
}

#[test]
fn two_numberings_leave_in_one_order_and_are_acked_apart() {
    let mut outbox = Box8::new(OUTPUT_LIMIT);
    assert_eq!(outbox.push_control(10, ()), 1);
    out(&mut outbox, "hello ");
    assert_eq!(outbox.push_control(20, ()), 2);
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
    outbox.ack(Acked {
        control_seq: 2,
        output_offset: 0,
    });
    outbox.rewind(Acked {
        control_seq: 1,
        output_offset: 8,
    });
    let replayed = send_all(&mut outbox);
    assert_eq!(replayed.len(), 1);
    let Record::Output {
        offset: 8, bytes, ..
    } = &replayed[0]
    else {
        panic!("{replayed:?}")
    };
    assert_eq!(&bytes[..], b"rld");
    outbox.ack(Acked {
        control_seq: u64::MAX,
        output_offset: u64::MAX,
    });
    assert_eq!(
        outbox.acked(),
        Acked {
            control_seq: 2,
            output_offset: 11
        }
    );
    assert_eq!((outbox.held(), outbox.next_unsent()), (0, None));
}

#[test]
fn beyond_the_bound_the_oldest_output_becomes_one_cut_and_control_stays() {
    let mut outbox = Box8::new(3 * (10 + RECORD_COST));
    outbox.push_control(1, ());
    for _ in 0..6 {
        out(&mut outbox, "0123456789");
    }
    outbox.push_control(2, ());
    assert_eq!(outbox.oldest_output(), 30);
    let sent = send_all(&mut outbox);
    assert!(matches!(sent[0], Record::Control { seq: 1, .. }));
    assert!(matches!(
        sent[1],
        Record::Cut {
            offset: 0,
            length: 30,
            ..
        }
    ));
    assert!(matches!(sent[2], Record::Output { offset: 30, .. }));
    assert!(matches!(sent.last(), Some(Record::Control { seq: 2, .. })));
    assert_eq!(sent.len(), 6);
}

#[derive(Clone, Debug)]
enum Step {
    Control,
    Output(usize),
    Send(usize),
    Ack(bool, bool),
    Reconnect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::Control),
        (0usize..200).prop_map(Step::Output),
        (0usize..6).prop_map(Step::Send),
        (any::<bool>(), any::<bool>()).prop_map(|(c, o)| Step::Ack(c, o)),
        Just(Step::Reconnect),
    ]
}

/// A relay that applies what continues its knowledge and would notice a hole.
#[derive(Default)]
struct Relay {
    known: Acked,
    cut: u64,
}

impl Relay {
    fn receive(&mut self, record: &Record<u64, ()>) {
        let (offset, length, cut) = match record {
            Record::Control { seq, .. } => {
                assert!(*seq <= self.known.control_seq + 1, "control frame missing");
                self.known.control_seq = self.known.control_seq.max(*seq);
                return;
            }
            Record::Output { offset, bytes, .. } => (*offset, bytes.len() as u64, false),
            Record::Cut { offset, length, .. } => (*offset, *length, true),
        };
        assert!(offset <= self.known.output_offset, "output missing");
        let fresh = (offset + length).saturating_sub(self.known.output_offset);
        self.known.output_offset += fresh;
        self.cut += if cut { fresh } else { 0 };
    }
}

proptest! {
    #[test]
    fn the_relay_never_sees_a_hole(steps in prop::collection::vec(step(), 1..120)) {
        let mut outbox = Box8::new(2_000);
        let mut relay = Relay::default();
        let pump = |outbox: &mut Box8, relay: &mut Relay, count: usize| {
            for _ in 0..count {
                let Some(record) = outbox.next_unsent().cloned() else { return };
                relay.receive(&record);
                outbox.mark_sent();
            }
        };
        for step in steps {
            match step {
                Step::Control => { outbox.push_control(0, ()); }
                Step::Output(n) => out(&mut outbox, &"x".repeat(n)),
                Step::Send(n) => pump(&mut outbox, &mut relay, n),
                Step::Ack(control, output) => outbox.ack(Acked {
                    control_seq: if control { relay.known.control_seq } else { 0 },
                    output_offset: if output { relay.known.output_offset } else { 0 },
                }),
                Step::Reconnect => outbox.rewind(relay.known),
            }
            prop_assert!(outbox.held() <= 2_000);
        }
        outbox.rewind(relay.known);
        pump(&mut outbox, &mut relay, usize::MAX);
        prop_assert_eq!(relay.known.control_seq, outbox.last_control_seq());
        prop_assert_eq!(relay.known.output_offset, outbox.end_offset());
        outbox.ack(relay.known);
        prop_assert_eq!((outbox.held(), outbox.next_unsent()), (0, None));
    }
}
