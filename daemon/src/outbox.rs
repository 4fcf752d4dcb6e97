//! What one attempt has to say and the relay has not yet acknowledged. Pure and in memory; the disk
//! outbox takes this place later. Two numberings: control frames by `control_seq`, output by byte
//! offset. Records leave in the order in which they were appended, are kept until acknowledged and
//! are replayed after a reconnect. Control frames are never dropped. Output is bounded: the oldest
//! goes first, and what went is itself a record.

use std::collections::VecDeque;

use bytes::Bytes;

/// Unacknowledged output kept per attempt.
pub const OUTPUT_LIMIT: usize = 16 * 1024 * 1024;
/// Bookkeeping charged per record, so that many tiny chunks are bounded too.
const RECORD_COST: usize = 128;

/// Which pipe of the child the bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    Stdout,
    Stderr,
}

/// One record. `T` is when it was observed, `C` the body of a control frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<C, T> {
    Control {
        seq: u64,
        observed_at: T,
        body: C,
    },
    Output {
        offset: u64,
        after_control_seq: u64,
        observed_at: T,
        kind: OutputKind,
        bytes: Bytes,
    },
    /// `length` bytes from `offset` on are gone for good.
    Cut {
        offset: u64,
        length: u64,
        after_control_seq: u64,
        observed_at: T,
    },
}

/// What the relay has in its keeping: everything up to and including these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acked {
    pub control_seq: u64,
    pub output_offset: u64,
}

#[derive(Debug)]
pub struct Outbox<C, T> {
    records: VecDeque<Record<C, T>>,
    /// Records at the front that went out on the present stream.
    sent: usize,
    last_control_seq: u64,
    /// Offset of the next output byte.
    end_offset: u64,
    acked: Acked,
    held: usize,
    limit: usize,
}

impl<C: Clone, T: Clone> Outbox<C, T> {
    pub fn new(limit: usize) -> Self {
        Self {
            records: VecDeque::new(),
            sent: 0,
            last_control_seq: 0,
            end_offset: 0,
            acked: Acked::default(),
            held: 0,
            limit,
        }
    }

    /// Numbers a control frame and keeps it; the number is returned.
    pub fn push_control(&mut self, body: C, observed_at: T) -> u64 {
        self.last_control_seq += 1;
        let seq = self.last_control_seq;
        self.records.push_back(Record::Control {
            seq,
            observed_at,
            body,
        });
        seq
    }

    pub fn push_output(&mut self, kind: OutputKind, bytes: Bytes, observed_at: T) {
        if bytes.is_empty() {
            return;
        }
        let offset = self.end_offset;
        self.end_offset += bytes.len() as u64;
        self.held += bytes.len() + RECORD_COST;
        let after_control_seq = self.last_control_seq;
        self.records.push_back(Record::Output {
            offset,
            after_control_seq,
            observed_at,
            kind,
            bytes,
        });
        while self.held > self.limit && self.drop_oldest_output() {}
    }

    /// The next record to put on the wire, in order.
    pub fn next_unsent(&self) -> Option<&Record<C, T>> {
        self.records.get(self.sent)
    }

    pub fn mark_sent(&mut self) {
        self.sent = (self.sent + 1).min(self.records.len());
    }

    /// A new stream: whatever is not acknowledged goes out again.
    pub fn rewind(&mut self, acked: Acked) {
        self.sent = 0;
        self.ack(acked);
    }

    /// Cumulative per numbering. Older or impossible numbers change nothing.
    pub fn ack(&mut self, acked: Acked) {
        let control_seq = acked.control_seq.min(self.last_control_seq);
        let output_offset = acked.output_offset.min(self.end_offset);
        self.acked.control_seq = self.acked.control_seq.max(control_seq);
        self.acked.output_offset = self.acked.output_offset.max(output_offset);
        self.trim();
    }

    pub fn acked(&self) -> Acked {
        self.acked
    }

    pub fn last_control_seq(&self) -> u64 {
        self.last_control_seq
    }

    pub fn end_offset(&self) -> u64 {
        self.end_offset
    }

    /// Bytes of memory held by output that nobody acknowledged.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Smallest offset that can still be replayed as bytes.
    pub fn oldest_output(&self) -> u64 {
        let held = self.records.iter().find_map(|record| match record {
            Record::Output { offset, .. } => Some(*offset),
            Record::Control { .. } | Record::Cut { .. } => None,
        });
        held.unwrap_or(self.end_offset)
    }

    fn trim(&mut self) {
        let acked = self.acked;
        let mut kept_sent = 0;
        let mut held = 0;
        let mut kept = VecDeque::with_capacity(self.records.len());
        for (index, record) in self.records.drain(..).enumerate() {
            let Some(rest) = unacked_part(record, acked) else {
                continue;
            };
            kept_sent += usize::from(index < self.sent);
            held += output_cost(&rest);
            kept.push_back(rest);
        }
        self.records = kept;
        self.sent = kept_sent;
        self.held = held;
    }

    fn drop_oldest_output(&mut self) -> bool {
        let oldest = self
            .records
            .iter()
            .position(|r| matches!(r, Record::Output { .. }));
        // The newest record always stays: a chunk is far smaller than the limit.
        let Some(index) = oldest.filter(|index| index + 1 < self.records.len()) else {
            return false;
        };
        let record = &mut self.records[index];
        self.held -= output_cost(record);
        if let Record::Output {
            offset,
            after_control_seq,
            observed_at,
            bytes,
            ..
        } = record
        {
            *record = Record::Cut {
                offset: *offset,
                length: bytes.len() as u64,
                after_control_seq: *after_control_seq,
                observed_at: observed_at.clone(),
            };
        }
        self.merge_cut(index);
        true
    }

    /// Joins the cut at `index` to a cut right before it, unless one of them is already on the wire.
    fn merge_cut(&mut self, index: usize) {
        let both_sent = index < self.sent;
        let neither_sent = index > self.sent;
        if index == 0 || !(both_sent || neither_sent) {
            return;
        }
        let Record::Cut { length: added, .. } = self.records[index] else {
            return;
        };
        if let Record::Cut { length, .. } = &mut self.records[index - 1] {
            *length += added;
            self.records.remove(index);
            self.sent -= usize::from(both_sent);
        }
    }
}

fn output_cost<C, T>(record: &Record<C, T>) -> usize {
    match record {
        Record::Output { bytes, .. } => bytes.len() + RECORD_COST,
        Record::Control { .. } | Record::Cut { .. } => 0,
    }
}

/// What of `record` lies beyond `acked`; an acknowledgement may end inside a chunk.
fn unacked_part<C, T>(record: Record<C, T>, acked: Acked) -> Option<Record<C, T>> {
    match record {
        Record::Control {
            seq,
            observed_at,
            body,
        } => (seq > acked.control_seq).then_some(Record::Control {
            seq,
            observed_at,
            body,
        }),
        Record::Output {
            offset,
            after_control_seq,
            observed_at,
            kind,
            mut bytes,
        } => {
            let known = acked
                .output_offset
                .saturating_sub(offset)
                .min(bytes.len() as u64);
            let bytes = bytes.split_off(usize::try_from(known).unwrap_or(bytes.len()));
            let offset = offset + known;
            (!bytes.is_empty()).then_some(Record::Output {
                offset,
                after_control_seq,
                observed_at,
                kind,
                bytes,
            })
        }
        Record::Cut {
            offset,
            length,
            after_control_seq,
            observed_at,
        } => {
            let known = acked.output_offset.saturating_sub(offset).min(length);
            let (offset, length) = (offset + known, length - known);
            (length > 0).then_some(Record::Cut {
                offset,
                length,
                after_control_seq,
                observed_at,
            })
        }
    }
}

#[cfg(test)]
mod tests {
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
}
