//! Random sequences of appending, writing, syncing, sending, acknowledging, stream loss, daemon
//! crash, power loss, full disk and file rewrite. A script stands in for the transcript, and
//! its index is the transcript position.

use proptest::prelude::*;

use super::*;

const LIMIT: usize = 2_000;

#[derive(Clone, Debug)]
enum OutboxTestStep {
    /// Reads the next items of the script.
    ReadScript(usize),
    Write(usize),
    Sync,
    Send(usize),
    Ack {
        control: bool,
        output: bool,
    },
    Reconnect,
    Rewrite,
    /// kill -9 of the daemon: written entries survive.
    Kill,
    /// The machine loses some of the entries that were not synced.
    PowerLoss(usize),
    /// Writes fail until a later rewrite succeeds.
    DiskFull,
    Repair,
}

fn daemon_step() -> impl Strategy<Value = OutboxTestStep> {
    prop_oneof![
        6 => (1usize..5).prop_map(OutboxTestStep::ReadScript),
        5 => (1usize..6).prop_map(OutboxTestStep::Write),
        2 => Just(OutboxTestStep::Sync),
        5 => (1usize..6).prop_map(OutboxTestStep::Send),
        3 => (any::<bool>(), any::<bool>()).prop_map(|(control, output)| OutboxTestStep::Ack { control, output }),
        1 => Just(OutboxTestStep::Reconnect),
        1 => Just(OutboxTestStep::Rewrite),
        1 => Just(OutboxTestStep::Kill),
    ]
}

fn machine_step() -> impl Strategy<Value = OutboxTestStep> {
    prop_oneof![
        12 => daemon_step(),
        1 => (0usize..9).prop_map(OutboxTestStep::PowerLoss),
        1 => Just(OutboxTestStep::DiskFull),
        1 => Just(OutboxTestStep::Repair),
    ]
}

/// What the child does: item `i` is control frame `i`, or output whose bytes are all `i`.
#[derive(Clone, Copy, Debug)]
enum ScriptItem {
    Control { synced: bool },
    Output(usize),
}

fn item() -> impl Strategy<Value = ScriptItem> {
    prop_oneof![
        any::<bool>().prop_map(|synced| ScriptItem::Control { synced }),
        (1usize..300).prop_map(ScriptItem::Output),
    ]
}

/// A relay that applies frames that continue what it has, and fails on a gap.
#[derive(Default)]
struct OutboxTestRelay {
    known: AckedPosition,
    bodies: Vec<u64>,
    /// One item per byte; `None` for a cut byte.
    output: Vec<Option<u64>>,
}

impl OutboxTestRelay {
    fn receive(&mut self, record: &QueuedRecord<u64, (), ()>) {
        let (offset, bytes): (u64, Vec<Option<u64>>) = match record {
            QueuedRecord::Control { seq, body, .. } => {
                assert!(*seq <= self.known.control_seq + 1, "control frame missing");
                if *seq == self.known.control_seq + 1 {
                    self.known.control_seq = *seq;
                    self.bodies.push(*body);
                }
                return;
            }
            QueuedRecord::Output { offset, bytes, .. } => (
                *offset,
                bytes.iter().map(|byte| Some(u64::from(*byte))).collect(),
            ),
            QueuedRecord::Cut { offset, length, .. } => (*offset, vec![None; *length as usize]),
        };
        assert!(offset <= self.known.output_offset, "output missing");
        let known = (self.known.output_offset - offset) as usize;
        self.output.extend(bytes.iter().skip(known));
        self.known.output_offset = self.output.len() as u64;
    }
}

struct OutboxSimulation {
    script: Vec<ScriptItem>,
    outbox: TestOutbox,
    /// Entries that are not written yet.
    queue: Vec<LoggedEntry<u64, (), ()>>,
    disk: Vec<LoggedEntry<u64, (), ()>>,
    synced: usize,
    relay: OutboxTestRelay,
    /// The relay may have frames that the disk has lost.
    may_have_lost_frames: bool,
}

impl OutboxSimulation {
    fn new(script: Vec<ScriptItem>) -> Self {
        Self {
            script,
            outbox: TestOutbox::new(LIMIT),
            queue: Vec::new(),
            disk: Vec::new(),
            synced: 0,
            relay: OutboxTestRelay::default(),
            may_have_lost_frames: false,
        }
    }

    fn run_step(&mut self, step: &OutboxTestStep) {
        match step {
            OutboxTestStep::ReadScript(count) => self.read_script(*count),
            OutboxTestStep::Write(count) => self.write(*count),
            OutboxTestStep::Sync => self.sync(),
            OutboxTestStep::Send(count) => self.send(*count),
            OutboxTestStep::Ack { control, output } => self.outbox.ack(AckedPosition {
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
            OutboxTestStep::Reconnect => self.outbox.apply_settlement(self.relay.known),
            OutboxTestStep::Rewrite => self.rewrite(),
            OutboxTestStep::Kill => self.restart(),
            OutboxTestStep::PowerLoss(lost) => {
                let left = self.disk.len().saturating_sub(*lost).max(self.synced);
                self.may_have_lost_frames |= left < self.disk.len();
                self.disk.truncate(left);
                self.restart();
            }
            OutboxTestStep::DiskFull => {
                self.outbox.log_mut().on_failed();
                self.queue.clear();
            }
            OutboxTestStep::Repair if self.outbox.log().has_failed() => self.rewrite(),
            OutboxTestStep::Repair => {}
        }
    }

    fn read_script(&mut self, count: usize) {
        let from = self.outbox.progress().consumed as usize;
        for (index, item) in self.script.iter().enumerate().skip(from).take(count) {
            self.outbox.set_progress(TranscriptProgress {
                consumed: index as u64 + 1,
                snapshot: Bytes::new(),
            });
            match item {
                ScriptItem::Control { synced } => {
                    let durability = if *synced {
                        RequiredDurability::Synced
                    } else {
                        RequiredDurability::Written
                    };
                    self.outbox.push_control(index as u64, (), durability);
                }
                ScriptItem::Output(length) => {
                    let bytes = Bytes::from(vec![index as u8; *length]);
                    self.outbox.push_output((), bytes, ());
                }
            }
        }
    }

    fn write(&mut self, count: usize) {
        self.queue.extend(self.outbox.log_mut().take_pending());
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
        let durable = DurablePosition {
            written: serial(self.disk.len()),
            synced: serial(self.synced),
            file_bytes: 0,
        };
        self.outbox.log_mut().on_durable(durable);
    }

    /// Writes queued entries first, as the writer does: the new file must not be older than the
    /// old one.
    fn rewrite(&mut self) {
        if !self.outbox.log().has_failed() {
            self.write(usize::MAX);
        }
        self.queue.clear();
        self.disk = self.outbox.rewrite_entries();
        self.sync();
    }

    /// Starts the next daemon: reads the disk, syncs it, and learns the relay's position before
    /// it sends anything.
    fn restart(&mut self) {
        self.may_have_lost_frames |= self.outbox.log().has_failed();
        self.queue.clear();
        self.outbox = TestOutbox::restore(LIMIT, self.disk.clone());
        self.sync();
        self.outbox.apply_settlement(self.relay.known);
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

    /// A daemon that restored the current disk would have this record too.
    fn assert_stored(&self, record: &QueuedRecord<u64, (), ()>) {
        let mut next = TestOutbox::restore(LIMIT, self.disk.clone());
        next.log_mut().on_failed();
        match record {
            QueuedRecord::Control { seq, .. } => assert!(*seq <= next.last_control_seq()),
            QueuedRecord::Output { offset, bytes, .. } => {
                assert!(offset + bytes.len() as u64 <= next.end_offset());
            }
            QueuedRecord::Cut { offset, length, .. } => {
                assert!(offset + length <= next.end_offset())
            }
        }
    }

    fn finish(&mut self) {
        self.read_script(usize::MAX);
        if self.outbox.log().has_failed() {
            self.rewrite();
        }
        self.outbox.apply_settlement(self.relay.known);
        self.write(usize::MAX);
        self.sync();
        self.send(usize::MAX);
    }

    fn check(&self) {
        let wanted: Vec<u64> = (0..)
            .zip(&self.script)
            .filter_map(|(index, item)| matches!(item, ScriptItem::Control { .. }).then_some(index))
            .collect();
        let mut once = self.relay.bodies.clone();
        if self.may_have_lost_frames {
            // Frames that the disk lost are produced and sent again, never left out.
            let mut seen = std::collections::BTreeSet::new();
            once.retain(|body| seen.insert(*body));
        }
        assert_eq!(once, wanted, "every control frame once and in order");
        let printed = (0u64..)
            .zip(&self.script)
            .flat_map(|(index, item)| match item {
                ScriptItem::Control { .. } => vec![],
                ScriptItem::Output(length) => vec![index & 0xff; *length],
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

fn run_steps(script: Vec<ScriptItem>, steps: &[OutboxTestStep]) -> OutboxSimulation {
    let mut world = OutboxSimulation::new(script);
    for step in steps {
        world.run_step(step);
        assert!(world.outbox.output_bytes() <= LIMIT);
    }
    world.finish();
    world.check();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn daemon_crashes_deliver_everything_once_and_in_order(
        script in prop::collection::vec(item(), 0..60),
        steps in prop::collection::vec(daemon_step(), 1..120),
    ) {
        let mut world = run_steps(script, &steps);
        prop_assert_eq!(world.relay.known.control_seq, world.outbox.last_control_seq());
        prop_assert_eq!(world.relay.known.output_offset, world.outbox.end_offset());
        world.outbox.ack(world.relay.known);
        prop_assert_eq!((world.outbox.output_bytes(), world.outbox.next_unsent()), (0, None));
    }

    #[test]
    fn machine_crashes_lose_no_frame(
        script in prop::collection::vec(item(), 0..60),
        steps in prop::collection::vec(machine_step(), 1..120),
    ) {
        run_steps(script, &steps);
    }
}
