//! A relay of another version against this daemon: says what a relay said, and wants to hear what a daemon said then.
//! The children are real.

use std::collections::HashMap;
use std::path::PathBuf;

use baton_proto::v1::{HeartbeatAck, RelayFrame, RenewResult, Renewed, relay_frame, renew_result};
use baton_tests::{RawRelay, RawStream, RealDaemon, within};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage, Value};

use crate::frames::{
    DOWN, UP, arm, at, attempt_of, decode, each, encode, kind, list, number, push, set, text,
};
use crate::next;
use crate::releases::{Release, releases};
use crate::tape::Step;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    AsRecorded,
    /// The next version: more fields everywhere, and frames and values that nobody knows.
    More,
}

struct OldRelay<'a> {
    speaks: Speaks,
    pool: &'a DescriptorPool,
    relay: RawRelay,
    stream: Option<RawStream>,
    daemon: Option<RealDaemon>,
    work: PathBuf,
    /// Who speaks in every frame: incarnation and epoch as recorded.
    stamp: (String, u64),
    /// Frames that came and are not awaited yet.
    waiting: Vec<DynamicMessage>,
    attempts: HashMap<String, Heard>,
}

/// What one attempt has said.
#[derive(Debug, Default)]
struct Heard {
    task: String,
    output: Vec<u8>,
    /// The last control frame.
    control: u64,
    /// Which number a control frame of the recording has now.
    numbers: HashMap<u64, u64>,
}

impl<'a> OldRelay<'a> {
    /// What this daemon counted as unknown by its end.
    async fn play(release: &'a Release, speaks: Speaks) -> u64 {
        let relay = RawRelay::start().await;
        let dir = tempfile::tempdir().expect("a temporary directory");
        let work = dir.path().join("work");
        std::fs::create_dir(&work).expect("a directory");
        let daemon = RealDaemon::dial(&relay.url(), "btn_old", |config| {
            config.work_dir.clone_from(&work);
        });
        let mut old = Self {
            speaks,
            pool: &release.pool,
            relay,
            stream: None,
            daemon: Some(daemon),
            work,
            stamp: Default::default(),
            waiting: Vec::new(),
            attempts: HashMap::new(),
        };
        let mut unknown = 0;
        for step in &release.tape.with_fresh_ids().0 {
            if let (Step::Terminate, Some(daemon)) = (step, &old.daemon) {
                unknown = daemon.unknown();
            }
            old.step(step).await;
        }
        unknown
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Submit { .. } | Step::Cancel { .. } | Step::Until { .. } => {}
            Step::Touch { file } => {
                std::fs::write(self.work.join(file), "").expect("a file can be written");
            }
            Step::Cut => self.cut().await,
            Step::Mend => self.relay.admit(true),
            Step::Terminate => {
                let daemon = self.daemon.take().expect("the daemon runs");
                tokio::spawn(daemon.stop());
            }
            Step::Up { kind, bytes } => {
                let recorded = decode(self.pool, UP, bytes);
                // As a whole: heartbeats come for ever.
                within(
                    &format!("{kind} of {}", attempt_of(&recorded)),
                    self.hear(&recorded),
                )
                .await;
            }
            Step::Down { bytes, .. } => {
                let frame = decode(self.pool, DOWN, bytes);
                self.say(frame).await;
            }
            Step::End { task, output, .. } => {
                let attempt = self.attempts.values().find(|one| &one.task == task);
                let heard = attempt.expect("the task was run").output.as_slice();
                assert_eq!(
                    String::from_utf8_lossy(heard),
                    String::from_utf8_lossy(output)
                );
            }
        }
    }

    async fn cut(&mut self) {
        self.relay.admit(false);
        let Some(stream) = self.stream.take() else {
            return;
        };
        if self.speaks == Speaks::More {
            // A reason that nobody knows is like any other: the daemon comes back.
            let mut goodbye = self.frame("goodbye");
            let unknown = Value::EnumNumber(next::VALUE);
            set(&mut goodbye, &["goodbye", "code"], unknown);
            stream.send(encode(&goodbye)).await;
        }
    }

    async fn say(&mut self, mut frame: DynamicMessage) {
        self.stamp = (
            text(&frame, &["incarnation"]),
            number(&frame, &["relay_epoch"]),
        );
        match kind(&frame).as_str() {
            // Heartbeats are answered when they come; the relay's own leaving is no part of this.
            "heartbeat_ack" | "goodbye" => return,
            "ack" => self.renumber(&mut frame),
            "welcome" => self.settle(&mut frame),
            "attempt/dispatch" => {
                let heard = self.attempts.entry(attempt_of(&frame)).or_default();
                heard.task = text(&frame, &["attempt", "ref", "task_id"]);
            }
            _ => {}
        }
        let more = self.speaks == Speaks::More && kind(&frame) == "attempt/lease_confirmed";
        let bytes = self.encoded(&frame);
        let Some(stream) = &self.stream else { return };
        stream.send(bytes).await;
        if more {
            self.say_more(&frame).await;
        }
    }

    fn encoded(&self, frame: &DynamicMessage) -> bytes::Bytes {
        match self.speaks {
            Speaks::AsRecorded => encode(frame),
            Speaks::More => {
                let mut grown = next::grown(frame);
                puzzle(&mut grown);
                encode(&grown)
            }
        }
    }

    /// A frame and a command that nobody knows, where a relay could send them.
    async fn say_more(&mut self, frame: &DynamicMessage) {
        let Some(stream) = &self.stream else { return };
        let mut unknown = self.frame("");
        unknown.set_field_by_name(
            &next::arm_name("frame"),
            Value::String("a frame".to_owned()),
        );
        stream.send(encode(&unknown)).await;
        let mut command = next::grown(frame);
        let body = next::arm_name("body");
        set(
            &mut command,
            &["attempt", &body],
            Value::String("do".to_owned()),
        );
        stream.send(encode(&command)).await;
    }

    /// An empty frame of the next version, with the arm set.
    fn frame(&self, arm: &str) -> DynamicMessage {
        let mut frame = decode(next::next(), DOWN, &[]);
        frame.set_field_by_name("incarnation", Value::String(self.stamp.0.clone()));
        frame.set_field_by_name("relay_epoch", Value::U64(self.stamp.1));
        if let Some(field) = frame.descriptor().get_field_by_name(arm) {
            frame.set_field(&field, Value::default_value_for_field(&field));
        }
        frame
    }

    /// What is durable is what was heard: this daemon may have said less before the wire was cut than that one.
    fn settle(&self, frame: &mut DynamicMessage) {
        each(frame, &["welcome", "settlements"], |settlement| {
            let Some(heard) = self.attempts.get(&text(settlement, &["attempt_id"])) else {
                return;
            };
            if let Some(decision) = arm(settlement, "decision").filter(|it| it != "kill") {
                let (control, offset) = (heard.control, heard.output.len() as u64);
                set(
                    settlement,
                    &[&decision, "acked_control_seq"],
                    Value::U64(control),
                );
                set(settlement, &[&decision, "acked_offset"], Value::U64(offset));
            }
        });
    }

    /// Acks name the numbers that this daemon gave to the same frames.
    fn renumber(&self, frame: &mut DynamicMessage) {
        each(frame, &["ack", "entries"], |entry| {
            let recorded = number(entry, &["control_seq"]);
            let heard = self.attempts.get(&text(entry, &["attempt_id"]));
            let numbers = heard.into_iter().flat_map(|heard| &heard.numbers);
            let through = numbers.filter(|(was, _)| **was <= recorded);
            let now = through.map(|(_, is)| *is).max().unwrap_or(0);
            set(entry, &["control_seq"], Value::U64(now));
        });
    }

    async fn hear(&mut self, recorded: &DynamicMessage) {
        let what = kind(recorded);
        match what.as_str() {
            "hello" => self.open(recorded).await,
            "attempt/stream" => {
                let attempt = attempt_of(recorded);
                let data = at(recorded, &["attempt", "stream", "chunk"]);
                let length = data.and_then(|data| data.as_bytes().map(bytes::Bytes::len));
                let end = number(recorded, &["attempt", "stream", "offset"]);
                let end = usize::try_from(end).expect("a short output") + length.unwrap_or(0);
                while self.stream.is_some() && self.heard(&attempt) < end {
                    let frame = self.next(&what).await;
                    self.waiting.extend(frame);
                }
            }
            // Which phases a daemon reports, and when it renews, is its own affair.
            phase if phase.starts_with("attempt/lifecycle/") => {}
            "heartbeat" => {}
            _ => {
                let attempt = attempt_of(recorded);
                let Some(frame) = self.expect(&what, &attempt).await else {
                    return;
                };
                let was = number(recorded, &["attempt", "control_seq"]);
                let is = number(&frame, &["attempt", "control_seq"]);
                let heard = self.attempts.entry(attempt).or_default();
                heard.numbers.insert(was, is);
            }
        }
    }

    fn heard(&self, attempt: &str) -> usize {
        self.attempts
            .get(attempt)
            .map_or(0, |heard| heard.output.len())
    }

    /// The daemon dials; it is let in once it says of its attempts what it said then.
    async fn open(&mut self, recorded: &DynamicMessage) {
        let states = |hello: &DynamicMessage| -> HashMap<String, Option<i32>> {
            let active = list(hello, &["hello", "active"]);
            let state = |one: &DynamicMessage| {
                let state = at(one, &["state"]).and_then(|state| state.as_enum_number());
                (text(one, &["ref", "attempt_id"]), state)
            };
            active.iter().map(state).collect()
        };
        self.waiting.clear();
        loop {
            let mut stream = self.relay.stream().await;
            let Some(first) = stream.next().await else {
                continue;
            };
            let hello = decode(self.pool, UP, &first);
            assert_eq!(kind(&hello), "hello");
            if states(&hello) == states(recorded) {
                self.stream = Some(stream);
                return;
            }
        }
    }

    /// The frame that was recorded, as it comes now; none when it was sent into a cut wire.
    async fn expect(&mut self, what: &str, attempt: &str) -> Option<DynamicMessage> {
        let wanted = |frame: &DynamicMessage| kind(frame) == what && attempt_of(frame) == attempt;
        if let Some(found) = self.waiting.iter().position(wanted) {
            return Some(self.waiting.remove(found));
        }
        while self.stream.is_some() {
            match self.next(what).await {
                Some(frame) if wanted(&frame) => return Some(frame),
                frame => self.waiting.extend(frame),
            }
        }
        None
    }

    /// The next frame that is no heartbeat; those are answered at once.
    async fn next(&mut self, what: &str) -> Option<DynamicMessage> {
        let stream = self.stream.as_mut()?;
        let Some(bytes) = stream.next().await else {
            panic!("the daemon closed the stream before {what}");
        };
        let frame = decode(self.pool, UP, &bytes);
        if let Some(heard) = self.attempts.get_mut(&attempt_of(&frame)) {
            let control = number(&frame, &["attempt", "control_seq"]);
            heard.control = heard.control.max(control);
        }
        match kind(&frame).as_str() {
            "heartbeat" => {
                let answer = self.renewed(&frame);
                let answer = self.encoded(&decode(self.pool, DOWN, &answer));
                self.stream.as_ref()?.send(answer).await;
                None
            }
            "attempt/stream" => {
                let offset = number(&frame, &["attempt", "stream", "offset"]);
                let data = at(&frame, &["attempt", "stream", "chunk"]);
                let heard = self.attempts.entry(attempt_of(&frame)).or_default();
                // Replayed bytes are the same bytes.
                heard
                    .output
                    .truncate(usize::try_from(offset).expect("a short output"));
                assert_eq!(heard.output.len() as u64, offset, "output has no gap");
                let data = data.and_then(|data| data.as_bytes().cloned());
                heard.output.extend_from_slice(&data.unwrap_or_default());
                Some(frame)
            }
            _ => Some(frame),
        }
    }

    fn renewed(&self, heartbeat: &DynamicMessage) -> Vec<u8> {
        let renew = list(heartbeat, &["heartbeat", "renew"]);
        let results = renew.iter().map(|entry| RenewResult {
            attempt_id: text(entry, &["attempt_id"]),
            result: Some(renew_result::Result::Renewed(Renewed {
                granted_ms: 30_000,
                expires_at: None,
            })),
        });
        let ack = HeartbeatAck {
            seq: number(heartbeat, &["heartbeat", "seq"]),
            results: results.collect(),
            relay_time: None,
            heartbeat_ms: 5_000,
        };
        RelayFrame {
            incarnation: self.stamp.0.clone(),
            relay_epoch: self.stamp.1,
            frame: Some(relay_frame::Frame::HeartbeatAck(ack)),
        }
        .encode_to_vec()
    }
}

/// Values that no version knows yet, in fields that a daemon reads.
fn puzzle(frame: &mut DynamicMessage) {
    match kind(frame).as_str() {
        "welcome" => {
            let word = Value::String(next::FEATURE.to_owned());
            push(frame, &["welcome", "features"], word);
        }
        "attempt/cancel" => {
            let unknown = Value::EnumNumber(next::VALUE);
            set(frame, &["attempt", "cancel", "reason"], unknown);
        }
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_of_every_release_works_with_this_daemon() {
    for release in releases() {
        let unknown = OldRelay::play(release, Speaks::AsRecorded).await;
        assert_eq!(unknown, 0, "release {} is fully known", release.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_of_the_next_version_works_with_this_daemon_and_what_it_does_not_know_is_counted() {
    let release = releases().last().unwrap();
    let unknown = OldRelay::play(release, Speaks::More).await;
    assert!(unknown > 0);
}
