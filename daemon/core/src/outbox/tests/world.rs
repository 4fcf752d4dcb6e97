//! Any order of appending, writing, syncing, sending, acknowledging, losing streams, killing the daemon, cutting the power, filling the
//! disk and rewriting the file. A script stands for the transcript: its position is what is consumed.

use proptest::prelude::*;

use super::*;

const LIMIT: usize = 2_000;

#[derive(Clone, Debug)]
enum Step {
    /// Folds the next items of the script.
    Fold(usize),
    Write(usize),
    Sync,
    Send(usize),
    Ack {
        control: bool,
        output: bool,
    },
    Reconnect,
    Rewrite,
    /// kill -9 of the daemon: what was written is there.
    Kill,
    /// The machine loses some of what was not synced.
    PowerLoss(usize),
    /// The disk refuses, and takes everything anew later.
    DiskFull,
    Repair,
}

fn daemon_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1usize..5).prop_map(Step::Fold),
        5 => (1usize..6).prop_map(Step::Write),
        2 => Just(Step::Sync),
        5 => (1usize..6).prop_map(Step::Send),
        3 => (any::<bool>(), any::<bool>()).prop_map(|(control, output)| Step::Ack { control, output }),
        1 => Just(Step::Reconnect),
        1 => Just(Step::Rewrite),
        1 => Just(Step::Kill),
    ]
}

fn machine_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => daemon_step(),
        1 => (0usize..9).prop_map(Step::PowerLoss),
        1 => Just(Step::DiskFull),
        1 => Just(Step::Repair),
    ]
}

/// What the child does: item `i` is control frame `i`, or output that is all `i`.
#[derive(Clone, Copy, Debug)]
enum Item {
    Control { synced: bool },
    Output(usize),
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        any::<bool>().prop_map(|synced| Item::Control { synced }),
        (1usize..300).prop_map(Item::Output),
    ]
}

/// A relay that applies what continues its knowledge and would notice a hole.
#[derive(Default)]
struct Relay {
    known: Acked,
    bodies: Vec<u64>,
    /// One item per byte; a cut one is `None`.
    output: Vec<Option<u64>>,
}

impl Relay {
    fn receive(&mut self, record: &Record<u64, (), ()>) {
        let (offset, bytes): (u64, Vec<Option<u64>>) = match record {
            Record::Control { seq, body, .. } => {
                assert!(*seq <= self.known.control_seq + 1, "control frame missing");
                if *seq == self.known.control_seq + 1 {
                    self.known.control_seq = *seq;
                    self.bodies.push(*body);
                }
                return;
            }
            Record::Output { offset, bytes, .. } => (
                *offset,
                bytes.iter().map(|byte| Some(u64::from(*byte))).collect(),
            ),
            Record::Cut { offset, length, .. } => (*offset, vec![None; *length as usize]),
        };
        assert!(offset <= self.known.output_offset, "output missing");
        let known = (self.known.output_offset - offset) as usize;
        self.output.extend(bytes.iter().skip(known));
        self.known.output_offset = self.output.len() as u64;
    }
}

struct World {
    script: Vec<Item>,
    outbox: Box8,
    /// On its way to the disk.
    queue: Vec<Logged<u64, (), ()>>,
    disk: Vec<Logged<u64, (), ()>>,
    synced: usize,
    relay: Relay,
    /// Frames may have been seen by the relay and be unknown to the disk.
    forgets: bool,
}

impl World {
    fn new(script: Vec<Item>) -> Self {
        Self {
            script,
            outbox: Box8::new(LIMIT),
            queue: Vec::new(),
            disk: Vec::new(),
            synced: 0,
            relay: Relay::default(),
            forgets: false,
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Fold(count) => self.fold(*count),
            Step::Write(count) => self.write(*count),
            Step::Sync => self.sync(),
            Step::Send(count) => self.send(*count),
            Step::Ack { control, output } => self.outbox.ack(Acked {
                control_seq: if *control {
                    self.relay.known.control_seq
                } else {
                    0
                },
                output_offset: if *output {
                    self.relay.known.output_offset
                } else {
                    0
                },
            }),
            Step::Reconnect => self.outbox.settle(self.relay.known),
            Step::Rewrite => self.rewrite(),
            Step::Kill => self.restart(),
            Step::PowerLoss(lost) => {
                let left = self.disk.len().saturating_sub(*lost).max(self.synced);
                self.forgets |= left < self.disk.len();
                self.disk.truncate(left);
                self.restart();
            }
            Step::DiskFull => {
                self.outbox.log_mut().on_failed();
                self.queue.clear();
            }
            Step::Repair if self.outbox.log().has_failed() => self.rewrite(),
            Step::Repair => {}
        }
    }

    fn fold(&mut self, count: usize) {
        let from = self.outbox.progress().consumed as usize;
        for (index, item) in self.script.iter().enumerate().skip(from).take(count) {
            self.outbox.advance(Progress {
                consumed: index as u64 + 1,
                snapshot: Bytes::new(),
            });
            match item {
                Item::Control { synced } => {
                    let leaves = if *synced {
                        Leaves::Synced
                    } else {
                        Leaves::Written
                    };
                    self.outbox.push_control(index as u64, (), leaves);
                }
                Item::Output(length) => {
                    let bytes = Bytes::from(vec![index as u8; *length]);
                    self.outbox.push_output((), bytes, ());
                }
            }
        }
    }

    fn write(&mut self, count: usize) {
        self.queue.extend(self.outbox.log_mut().take());
        let count = count.min(self.queue.len());
        self.disk.extend(self.queue.drain(..count));
        self.report();
    }

    fn sync(&mut self) {
        self.synced = self.disk.len();
        self.report();
    }

    fn report(&mut self) {
        let serial = |count: usize| {
            count
                .checked_sub(1)
                .map_or(0, |last| self.disk[last].serial)
        };
        let durable = Durable {
            written: serial(self.disk.len()),
            synced: serial(self.synced),
            file_bytes: 0,
        };
        self.outbox.log_mut().on_durable(durable);
    }

    /// What waits is written first, as the writer does it: the new file must not be older than the old one.
    fn rewrite(&mut self) {
        if !self.outbox.log().has_failed() {
            self.write(usize::MAX);
        }
        self.queue.clear();
        self.disk = self.outbox.image();
        self.sync();
    }

    /// The next daemon: reads the disk, syncs it, and asks the relay before it sends anything.
    fn restart(&mut self) {
        self.forgets |= self.outbox.log().has_failed();
        self.queue.clear();
        self.outbox = Box8::restore(LIMIT, self.disk.clone());
        self.sync();
        self.outbox.settle(self.relay.known);
    }

    fn send(&mut self, count: usize) {
        for _ in 0..count {
            let Some(record) = self.outbox.next_unsent().cloned() else {
                return;
            };
            if !self.outbox.log().has_failed() {
                self.assert_stored(&record);
            }
            self.relay.receive(&record);
            self.outbox.mark_sent();
        }
    }

    /// Whoever takes over from the disk as it is would say the same.
    fn assert_stored(&self, record: &Record<u64, (), ()>) {
        let mut next = Box8::restore(LIMIT, self.disk.clone());
        next.log_mut().on_failed();
        match record {
            Record::Control { seq, .. } => assert!(*seq <= next.last_control_seq()),
            Record::Output { offset, bytes, .. } => {
                assert!(offset + bytes.len() as u64 <= next.end_offset());
            }
            Record::Cut { offset, length, .. } => assert!(offset + length <= next.end_offset()),
        }
    }

    fn finish(&mut self) {
        self.fold(usize::MAX);
        if self.outbox.log().has_failed() {
            self.rewrite();
        }
        self.outbox.settle(self.relay.known);
        self.write(usize::MAX);
        self.sync();
        self.send(usize::MAX);
    }

    fn check(&self) {
        let wanted: Vec<u64> = (0..)
            .zip(&self.script)
            .filter_map(|(index, item)| matches!(item, Item::Control { .. }).then_some(index))
            .collect();
        let mut once = self.relay.bodies.clone();
        if self.forgets {
            // What the disk forgot is folded again and said again, never left out.
            let mut seen = std::collections::BTreeSet::new();
            once.retain(|body| seen.insert(*body));
        }
        assert_eq!(once, wanted, "control frames, each once and in order");
        let printed = (0u64..)
            .zip(&self.script)
            .flat_map(|(index, item)| match item {
                Item::Control { .. } => vec![],
                Item::Output(length) => vec![index & 0xff; *length],
            });
        let printed: Vec<u64> = printed.collect();
        assert_eq!(
            self.relay.output.len(),
            printed.len(),
            "no gap, no duplicate"
        );
        for (got, printed) in self.relay.output.iter().zip(&printed) {
            assert!(got.is_none_or(|got| got == *printed));
        }
    }
}

fn live_through(script: Vec<Item>, steps: &[Step]) -> World {
    let mut world = World::new(script);
    for step in steps {
        world.take(step);
        assert!(world.outbox.held() <= LIMIT);
    }
    world.finish();
    world.check();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn whatever_happens_to_the_daemon_the_relay_hears_everything_once_and_in_order(
        script in prop::collection::vec(item(), 0..60),
        steps in prop::collection::vec(daemon_step(), 1..120),
    ) {
        let mut world = live_through(script, &steps);
        prop_assert_eq!(world.relay.known.control_seq, world.outbox.last_control_seq());
        prop_assert_eq!(world.relay.known.output_offset, world.outbox.end_offset());
        world.outbox.ack(world.relay.known);
        prop_assert_eq!((world.outbox.held(), world.outbox.next_unsent()), (0, None));
    }

    #[test]
    fn whatever_happens_to_the_machine_nothing_is_left_out(
        script in prop::collection::vec(item(), 0..60),
        steps in prop::collection::vec(machine_step(), 1..120),
    ) {
        live_through(script, &steps);
    }
}
