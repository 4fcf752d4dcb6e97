//! A daemon of another version against this relay: plays what a daemon said, with the ids that this relay gives, and
//! wants to hear what a relay said then.

use std::collections::HashMap;

use baton_proto::ShortName;
use baton_proto::v1::{RelayFrame, Role, SubmitResponse, TaskState};
use baton_tests::{Client, RawLink, Relay, raw_unary};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, Value};

use crate::frames::{
    DOWN, Names, UP, arm, at, attempt_of, change, decode, each, encode, kind, list, number, push,
    set, text,
};
use crate::next;
use crate::releases::{Release, releases};
use crate::tape::Step;

/// Who plays the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    /// What was recorded and nothing else.
    AsRecorded,
    /// The next version: more fields everywhere, and frames and values that nobody knows.
    More,
}

struct OldDaemon<'a> {
    speaks: Speaks,
    pool: &'a DescriptorPool,
    client: &'a Client,
    link: Client,
    stream: Option<RawLink>,
    names: Names,
    /// Frames that came and are not awaited yet.
    waiting: Vec<DynamicMessage>,
    /// Control number and output offset that are durable, per attempt.
    acked: HashMap<String, (u64, u64)>,
    /// What was said of each attempt on this stream: the last control number and the end of the output.
    said: HashMap<String, (u64, u64)>,
    /// Per attempt, behind which control frame others were put in between, and how many.
    added: HashMap<String, (u64, u64)>,
}

impl<'a> OldDaemon<'a> {
    async fn play(release: &'a Release, relay: &'a Relay, speaks: Speaks) {
        let mut daemon = Self {
            speaks,
            pool: &release.pool,
            client: relay.admin(),
            link: relay.admin().of_tenant("", Role::Daemon).await,
            stream: None,
            names: Names::default(),
            waiting: Vec::new(),
            acked: HashMap::new(),
            said: HashMap::new(),
            added: HashMap::new(),
        };
        for step in release.tape.as_spoken() {
            daemon.step(step).await;
        }
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Submit { request, response } => self.submit(request, response).await,
            Step::Cancel { task } => {
                self.client.cancel(self.names.now(task)).await;
            }
            Step::Until { task, state } => {
                let state = TaskState::from_short_name(state).expect("a state");
                self.client.until_state(self.names.now(task), state).await;
            }
            // The recording has what its child did.
            Step::Touch { .. } | Step::Mend | Step::Terminate => {}
            Step::Cut => self.cut().await,
            Step::Up { bytes, .. } => {
                let frame = decode(self.pool, UP, bytes);
                self.say(frame).await;
            }
            Step::Down { bytes, .. } => {
                let recorded = decode(self.pool, DOWN, bytes);
                self.hear(&recorded).await;
            }
            Step::End {
                task,
                state,
                output,
            } => {
                let task = self.names.now(task);
                let ended = self.client.get(task).await;
                assert_eq!(ended.state().short_name(), state);
                assert_eq!(ended.attempts.len(), 1, "nothing was run again: {ended:?}");
                assert_eq!(&self.client.output(task).await, output);
            }
        }
    }

    /// The recorded daemon went on behind what its relay had; so must this relay have all that was said.
    async fn cut(&mut self) {
        for (attempt, said) in std::mem::take(&mut self.said) {
            self.until_acked(&attempt, said).await;
        }
        self.stream = None;
    }

    async fn submit(&mut self, request: &[u8], response: &[u8]) {
        let path = "/baton.v1.Tasks/Submit";
        let request = bytes::Bytes::copy_from_slice(request);
        let now = raw_unary(self.client, path, request).await;
        let now = now.expect("this relay takes a client's request of then");
        let submitted = |bytes: &[u8]| decode(self.pool, "baton.v1.SubmitResponse", bytes);
        assert!(SubmitResponse::decode(now.as_ref()).is_ok());
        self.names.learn(&submitted(response), &submitted(&now));
    }

    async fn say(&mut self, mut frame: DynamicMessage) {
        self.names.put(&mut frame);
        self.renumber(&mut frame);
        let what = kind(&frame);
        if what == "hello" {
            self.stream = None;
            let hello = self.encoded(&frame);
            let opened = RawLink::open(&self.link, hello).await;
            self.stream = Some(opened.expect("this relay takes the stream"));
            return;
        }
        let bytes = self.encoded(&frame);
        let Some(stream) = &self.stream else {
            // Sent into a wire that was cut: the relay never got it.
            return;
        };
        stream.send(bytes).await;
        self.note(&frame);
        if self.speaks == Speaks::More {
            self.say_more(&what, &frame).await;
        }
    }

    fn note(&mut self, frame: &DynamicMessage) {
        if arm(frame, "frame").as_deref() == Some("attempt") {
            let chunk = at(frame, &["attempt", "stream", "chunk"]);
            let length = chunk.and_then(|chunk| chunk.as_bytes().map(|bytes| bytes.len() as u64));
            let end = length.map(|length| length + number(frame, &["attempt", "stream", "offset"]));
            let said = self.said.entry(attempt_of(frame)).or_default();
            said.0 = said.0.max(number(frame, &["attempt", "control_seq"]));
            said.1 = said.1.max(end.unwrap_or(0));
        }
    }

    /// As this player's version spells it.
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

    /// Frames that no version knows yet, where a daemon could send them.
    async fn say_more(&mut self, what: &str, frame: &DynamicMessage) {
        let Some(stream) = &self.stream else { return };
        if what == "heartbeat" {
            let mut unknown = decode(next::next(), UP, &[]);
            let arm = next::arm_name("frame");
            unknown.set_field_by_name(&arm, Value::String("a frame".to_owned()));
            stream.send(encode(&unknown)).await;
        }
        if what == "attempt/started" {
            let attempt = attempt_of(frame);
            let said = number(frame, &["attempt", "control_seq"]);
            for (seq, (arm, body)) in (said + 1..).zip([unknown_body(), unknown_phase()]) {
                let mut more = next::grown(frame);
                set(&mut more, &["attempt", "control_seq"], Value::U64(seq));
                set(&mut more, &["attempt", &arm], body);
                stream.send(encode(&more)).await;
            }
            self.added.insert(attempt, (said, 2));
        }
    }

    /// Frames that were put in between took numbers.
    fn renumber(&self, frame: &mut DynamicMessage) {
        if arm(frame, "frame").as_deref() == Some("attempt") {
            let added = self.added.get(&attempt_of(frame)).copied();
            let body = at(frame, &["attempt"]).and_then(|it| arm(it.as_message()?, "body"));
            let after = body.filter(|body| body == "stream" || body == "output_cut");
            match after {
                Some(body) => raise(frame, &["attempt", &body, "after_control_seq"], added),
                None => raise(frame, &["attempt", "control_seq"], added),
            }
        }
        if kind(frame) == "hello" {
            each(frame, &["hello", "active"], |attempt| {
                let id = text(attempt, &["ref", "attempt_id"]);
                let added = self.added.get(&id).copied();
                raise(attempt, &["last_control_seq"], added);
                raise(attempt, &["oldest_control_seq"], added);
            });
        }
    }

    async fn hear(&mut self, recorded: &DynamicMessage) {
        match kind(recorded).as_str() {
            "ack" => self.hear_ack(recorded).await,
            "welcome" => {
                let now = self
                    .expect("welcome", |frame| kind(frame) == "welcome")
                    .await;
                self.names.learn(recorded, &now);
                let decisions = |frame: &DynamicMessage| -> Vec<_> {
                    let settled = list(frame, &["welcome", "settlements"]);
                    settled.iter().map(|one| arm(one, "decision")).collect()
                };
                assert_eq!(decisions(&now), decisions(recorded));
            }
            "heartbeat_ack" => {
                let seq = number(recorded, &["heartbeat_ack", "seq"]);
                let now = self
                    .expect("a heartbeat's answer", |frame| {
                        kind(frame) == "heartbeat_ack"
                            && number(frame, &["heartbeat_ack", "seq"]) == seq
                    })
                    .await;
                let results = |frame: &DynamicMessage| -> Vec<_> {
                    let results = list(frame, &["heartbeat_ack", "results"]);
                    results.iter().map(|one| arm(one, "result")).collect()
                };
                assert_eq!(results(&now), results(recorded));
            }
            "attempt/dispatch" => {
                let task = text(recorded, &["attempt", "ref", "task_id"]);
                let task = self.names.now(&task).to_owned();
                let now = self
                    .expect("the dispatch", |frame| {
                        kind(frame) == "attempt/dispatch"
                            && text(frame, &["attempt", "ref", "task_id"]) == task
                    })
                    .await;
                self.names.learn(recorded, &now);
            }
            command if command.starts_with("attempt/") => {
                let attempt = self.names.now(&attempt_of(recorded)).to_owned();
                self.expect(command, |frame| {
                    kind(frame) == command && attempt_of(frame) == attempt
                })
                .await;
            }
            // Whether and when a relay asks for a drain or leaves is its own affair.
            _ => {}
        }
    }

    async fn hear_ack(&mut self, recorded: &DynamicMessage) {
        for entry in list(recorded, &["ack", "entries"]) {
            let attempt = self.names.now(&text(&entry, &["attempt_id"])).to_owned();
            let added = self.added.get(&attempt).copied();
            let wanted = (
                raised(number(&entry, &["control_seq"]), added),
                number(&entry, &["output_offset"]),
            );
            self.until_acked(&attempt, wanted).await;
        }
    }

    async fn until_acked(&mut self, attempt: &str, wanted: (u64, u64)) {
        while self.stream.is_some() {
            let (control, offset) = self.acked.get(attempt).copied().unwrap_or_default();
            if control >= wanted.0 && offset >= wanted.1 {
                break;
            }
            let what =
                format!("{attempt} to be durable through {wanted:?}, not {control}, {offset}");
            let frame = self.next(&what).await;
            self.waiting.push(frame);
        }
    }

    async fn expect(
        &mut self,
        what: &str,
        wanted: impl Fn(&DynamicMessage) -> bool,
    ) -> DynamicMessage {
        if let Some(found) = self.waiting.iter().position(&wanted) {
            return self.waiting.remove(found);
        }
        loop {
            let frame = self.next(what).await;
            if wanted(&frame) {
                return frame;
            }
            self.waiting.push(frame);
        }
    }

    /// The next frame, by the descriptors of this player's version. Nothing may be refused.
    async fn next(&mut self, what: &str) -> DynamicMessage {
        let stream = self.stream.as_mut();
        let stream = stream.unwrap_or_else(|| panic!("no stream while waiting for {what}"));
        let bytes = match stream.next().await {
            Ok(Some(bytes)) => bytes,
            ended => panic!("the stream ended before {what}: {ended:?}"),
        };
        let frame = decode(self.pool, DOWN, &bytes);
        for entry in list(&frame, &["ack", "entries"]) {
            let acked = (
                number(&entry, &["control_seq"]),
                number(&entry, &["output_offset"]),
            );
            let known = self.acked.entry(text(&entry, &["attempt_id"])).or_default();
            *known = (known.0.max(acked.0), known.1.max(acked.1));
        }
        let kind = kind(&frame);
        assert!(
            kind != "rejected" && kind != "goodbye",
            "before {what} came {:?}",
            RelayFrame::decode(bytes)
        );
        frame
    }
}

fn raise(message: &mut DynamicMessage, path: &[&str], added: Option<(u64, u64)>) {
    change(message, path, |value| {
        if let Value::U64(number) = value {
            *number = raised(*number, added);
        }
    });
}

/// What a recorded number is now that others were put in between.
fn raised(number: u64, added: Option<(u64, u64)>) -> u64 {
    match added {
        Some((behind, count)) if number > behind => number + count,
        Some(_) | None => number,
    }
}

/// Values that no version knows yet, in fields that a relay reads.
fn puzzle(frame: &mut DynamicMessage) {
    let unknown = Value::EnumNumber(next::VALUE);
    match kind(frame).as_str() {
        "hello" => {
            let word = Value::String(next::FEATURE.to_owned());
            push(frame, &["hello", "features"], word);
            let agents = list(frame, &["hello", "agents"]);
            let mut other = agents.first().expect("a recorded agent").clone();
            other.set_field_by_name("name", Value::String("telepath".to_owned()));
            other.set_field_by_name("kind", unknown);
            push(frame, &["hello", "agents"], Value::Message(other));
        }
        "heartbeat" => set(frame, &["heartbeat", "status"], unknown),
        "attempt/stream" => set(frame, &["attempt", "stream", "kind"], unknown),
        _ => {}
    }
}

/// Arm and content of a body that nobody knows.
fn unknown_body() -> (String, Value) {
    let body = Value::String("a body".to_owned());
    (next::arm_name("body"), body)
}

fn unknown_phase() -> (String, Value) {
    let mut lifecycle = decode(next::next(), "baton.v1.TaskLifecycle", &[]);
    set(&mut lifecycle, &["phase"], Value::EnumNumber(next::VALUE));
    ("lifecycle".to_owned(), Value::Message(lifecycle))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_of_every_release_works_with_this_relay() {
    for release in releases() {
        let relay = Relay::start().await;
        OldDaemon::play(release, &relay, Speaks::AsRecorded).await;
        let unknown = relay.counted("unknown_frames") + relay.counted("unknown_values");
        assert_eq!(unknown, 0, "release {} is fully known", release.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_of_the_next_version_works_with_this_relay_and_what_it_does_not_know_is_counted() {
    let release = releases().last().unwrap();
    let relay = Relay::start().await;
    OldDaemon::play(release, &relay, Speaks::More).await;
    let counted = ["unknown_frames", "unknown_values"].map(|name| relay.counted(name));
    assert!(counted.iter().all(|count| *count > 0), "{counted:?}");
}

/// What HEAD's own types read of a recording is all of it.
#[test]
fn every_recorded_frame_is_read_without_a_rest() {
    use baton_proto::v1::{DaemonFrame, RelayFrame};
    for release in releases() {
        for step in &release.tape.0 {
            let (kind, bytes, again) = match step {
                Step::Up { kind, bytes } => {
                    let frame = DaemonFrame::decode(bytes.as_slice()).unwrap();
                    (kind, bytes, frame.encode_to_vec())
                }
                Step::Down { kind, bytes } => {
                    let frame = RelayFrame::decode(bytes.as_slice()).unwrap();
                    (kind, bytes, frame.encode_to_vec())
                }
                Step::Submit { .. }
                | Step::Cancel { .. }
                | Step::Until { .. }
                | Step::Touch { .. }
                | Step::Cut
                | Step::Mend
                | Step::Terminate
                | Step::End { .. } => continue,
            };
            assert_eq!(&again, bytes, "{kind} of release {}", release.name);
        }
    }
}
