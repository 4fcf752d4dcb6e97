//! Replays a daemon of another version against this relay: sends the recorded frames with this
//! relay's ids, and expects the recorded answers.

use std::collections::HashMap;

use baton_proto::ShortName;
use baton_proto::v1::{RelayFrame, Role, SubmitResponse, TaskState};
use baton_tests::{EmbeddedRelay, RawDaemonLink, TestClient, call_raw_unary};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, Value};

use crate::dynamic_frames::{
    DAEMON_FRAME, RELAY_FRAME, RecordedNames, attempt_id_of, change_at, change_each_at, decode,
    encode, frame_kind, messages_at, number_at, oneof_arm, push_at, set_at, text_at, value_at,
};
use crate::next_version;
use crate::releases::{RecordedRelease, releases};
use crate::tape::RecordedStep;

/// The version that is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DaemonVersion {
    /// The recorded frames only.
    AsRecorded,
    /// The next version: additional fields everywhere, and unknown frames and values.
    NextVersion,
}

struct DaemonPlayer<'a> {
    version: DaemonVersion,
    pool: &'a DescriptorPool,
    client: &'a TestClient,
    link: TestClient,
    stream: Option<RawDaemonLink>,
    names: RecordedNames,
    /// Received frames that are not expected yet.
    unread_frames: Vec<DynamicMessage>,
    /// Acknowledged control number and output offset, per attempt.
    acked: HashMap<String, (u64, u64)>,
    /// Positions sent on this stream per attempt: the last control number and the end of the
    /// output.
    sent_positions: HashMap<String, (u64, u64)>,
    /// Per attempt: the control frame after which frames were inserted, and their number.
    inserted_frames: HashMap<String, (u64, u64)>,
}

impl<'a> DaemonPlayer<'a> {
    async fn play_release(
        release: &'a RecordedRelease,
        relay: &'a EmbeddedRelay,
        speaks: DaemonVersion,
    ) {
        let mut daemon = Self {
            version: speaks,
            pool: &release.pool,
            client: relay.admin(),
            link: relay.admin().client_of_tenant("", Role::Daemon).await,
            stream: None,
            names: RecordedNames::default(),
            unread_frames: Vec::new(),
            acked: HashMap::new(),
            sent_positions: HashMap::new(),
            inserted_frames: HashMap::new(),
        };
        for step in release.tape.in_daemon_order() {
            daemon.play_step(step).await;
        }
    }

    async fn play_step(&mut self, step: &RecordedStep) {
        match step {
            RecordedStep::Submit { request, response } => {
                self.submit_recorded(request, response).await
            }
            RecordedStep::Cancel { task } => {
                self.client.cancel(self.names.current_id(task)).await;
            }
            RecordedStep::Until { task, state } => {
                let state = TaskState::from_short_name(state).expect("a state");
                self.client
                    .wait_for_state(self.names.current_id(task), state)
                    .await;
            }
            // The recording contains the result of these steps.
            RecordedStep::Touch { .. } | RecordedStep::Restore | RecordedStep::Terminate => {}
            RecordedStep::Cut => self.cut_stream().await,
            RecordedStep::Up { bytes, .. } => {
                let frame = decode(self.pool, DAEMON_FRAME, bytes);
                self.send_recorded_frame(frame).await;
            }
            RecordedStep::Down { bytes, .. } => {
                let recorded = decode(self.pool, RELAY_FRAME, bytes);
                self.expect_recorded_frame(&recorded).await;
            }
            RecordedStep::End {
                task,
                state,
                output,
            } => {
                let task = self.names.current_id(task);
                let ended = self.client.get(task).await;
                assert_eq!(ended.state().short_name(), state);
                assert_eq!(ended.attempts.len(), 1, "the task ran once: {ended:?}");
                assert_eq!(&self.client.read_output_to_end(task).await, output);
            }
        }
    }

    /// The recorded daemon continued after the positions of its relay, so this relay must first
    /// have all frames that were sent.
    async fn cut_stream(&mut self) {
        for (attempt, positions) in std::mem::take(&mut self.sent_positions) {
            self.wait_until_acked(&attempt, positions).await;
        }
        self.stream = None;
    }

    async fn submit_recorded(&mut self, request: &[u8], response: &[u8]) {
        let path = "/baton.v1.Tasks/Submit";
        let request = bytes::Bytes::copy_from_slice(request);
        let now = call_raw_unary(self.client, path, request).await;
        let now = now.expect("this relay accepts the recorded request");
        let submitted = |bytes: &[u8]| decode(self.pool, "baton.v1.SubmitResponse", bytes);
        assert!(SubmitResponse::decode(now.as_ref()).is_ok());
        self.names
            .learn_message(&submitted(response), &submitted(&now));
    }

    async fn send_recorded_frame(&mut self, mut frame: DynamicMessage) {
        self.names.replace_in_message(&mut frame);
        self.renumber_control_frames(&mut frame);
        let what = frame_kind(&frame);
        if what == "hello" {
            self.stream = None;
            let hello = self.encode_for_version(&frame);
            let opened = RawDaemonLink::open(&self.link, hello).await;
            self.stream = Some(opened.expect("this relay accepts the stream"));
            return;
        }
        let bytes = self.encode_for_version(&frame);
        let Some(stream) = &self.stream else {
            // Sent into a cut connection: the relay never got it.
            return;
        };
        stream.send(bytes).await;
        self.note_sent_position(&frame);
        if self.version == DaemonVersion::NextVersion {
            self.send_unknown_frames(&what, &frame).await;
        }
    }

    fn note_sent_position(&mut self, frame: &DynamicMessage) {
        if oneof_arm(frame, "frame").as_deref() == Some("attempt") {
            let chunk = value_at(frame, &["attempt", "stream", "chunk"]);
            let length = chunk.and_then(|chunk| chunk.as_bytes().map(|bytes| bytes.len() as u64));
            let end =
                length.map(|length| length + number_at(frame, &["attempt", "stream", "offset"]));
            let positions = self.sent_positions.entry(attempt_id_of(frame)).or_default();
            positions.0 = positions
                .0
                .max(number_at(frame, &["attempt", "control_seq"]));
            positions.1 = positions.1.max(end.unwrap_or(0));
        }
    }

    /// Encodes the frame in this player's version.
    fn encode_for_version(&self, frame: &DynamicMessage) -> bytes::Bytes {
        match self.version {
            DaemonVersion::AsRecorded => encode(frame),
            DaemonVersion::NextVersion => {
                let mut extended = next_version::as_next_version(frame);
                set_unknown_values(&mut extended);
                encode(&extended)
            }
        }
    }

    /// Sends frames that no version defines, at points where a daemon could send them.
    async fn send_unknown_frames(&mut self, what: &str, frame: &DynamicMessage) {
        let Some(stream) = &self.stream else { return };
        if what == "heartbeat" {
            let mut unknown = decode(next_version::next_version_pool(), DAEMON_FRAME, &[]);
            let arm = next_version::extra_arm_name("frame");
            unknown.set_field_by_name(&arm, Value::String("a frame".to_owned()));
            stream.send(encode(&unknown)).await;
        }
        if what == "attempt/started" {
            let attempt = attempt_id_of(frame);
            let last_seq = number_at(frame, &["attempt", "control_seq"]);
            for (seq, (arm, body)) in (last_seq + 1..).zip([unknown_body(), unknown_phase()]) {
                let mut more = next_version::as_next_version(frame);
                set_at(&mut more, &["attempt", "control_seq"], Value::U64(seq));
                set_at(&mut more, &["attempt", &arm], body);
                stream.send(encode(&more)).await;
            }
            self.inserted_frames.insert(attempt, (last_seq, 2));
        }
    }

    /// Shifts numbers, because inserted frames used some.
    fn renumber_control_frames(&self, frame: &mut DynamicMessage) {
        if oneof_arm(frame, "frame").as_deref() == Some("attempt") {
            let added = self.inserted_frames.get(&attempt_id_of(frame)).copied();
            let body =
                value_at(frame, &["attempt"]).and_then(|it| oneof_arm(it.as_message()?, "body"));
            let after = body.filter(|body| body == "stream" || body == "output_cut");
            match after {
                Some(body) => {
                    raise_number_at(frame, &["attempt", &body, "after_control_seq"], added)
                }
                None => raise_number_at(frame, &["attempt", "control_seq"], added),
            }
        }
        if frame_kind(frame) == "hello" {
            change_each_at(frame, &["hello", "active"], |attempt| {
                let id = text_at(attempt, &["ref", "attempt_id"]);
                let added = self.inserted_frames.get(&id).copied();
                raise_number_at(attempt, &["last_control_seq"], added);
                raise_number_at(attempt, &["oldest_control_seq"], added);
            });
        }
    }

    async fn expect_recorded_frame(&mut self, recorded: &DynamicMessage) {
        match frame_kind(recorded).as_str() {
            "ack" => self.expect_recorded_ack(recorded).await,
            "welcome" => {
                let now = self
                    .expect_frame("welcome", |frame| frame_kind(frame) == "welcome")
                    .await;
                self.names.learn_message(recorded, &now);
                let decisions = |frame: &DynamicMessage| -> Vec<_> {
                    let settled = messages_at(frame, &["welcome", "settlements"]);
                    settled
                        .iter()
                        .map(|one| oneof_arm(one, "decision"))
                        .collect()
                };
                assert_eq!(decisions(&now), decisions(recorded));
            }
            "heartbeat_ack" => {
                let seq = number_at(recorded, &["heartbeat_ack", "seq"]);
                let now = self
                    .expect_frame("a heartbeat's answer", |frame| {
                        frame_kind(frame) == "heartbeat_ack"
                            && number_at(frame, &["heartbeat_ack", "seq"]) == seq
                    })
                    .await;
                let results = |frame: &DynamicMessage| -> Vec<_> {
                    let results = messages_at(frame, &["heartbeat_ack", "results"]);
                    results.iter().map(|one| oneof_arm(one, "result")).collect()
                };
                assert_eq!(results(&now), results(recorded));
            }
            "attempt/dispatch" => {
                let task = text_at(recorded, &["attempt", "ref", "task_id"]);
                let task = self.names.current_id(&task).to_owned();
                let now = self
                    .expect_frame("the dispatch", |frame| {
                        frame_kind(frame) == "attempt/dispatch"
                            && text_at(frame, &["attempt", "ref", "task_id"]) == task
                    })
                    .await;
                self.names.learn_message(recorded, &now);
            }
            command if command.starts_with("attempt/") => {
                let attempt = self.names.current_id(&attempt_id_of(recorded)).to_owned();
                self.expect_frame(command, |frame| {
                    frame_kind(frame) == command && attempt_id_of(frame) == attempt
                })
                .await;
            }
            // When a relay drains or disconnects is not part of the recording.
            _ => {}
        }
    }

    async fn expect_recorded_ack(&mut self, recorded: &DynamicMessage) {
        for entry in messages_at(recorded, &["ack", "entries"]) {
            let attempt = self
                .names
                .current_id(&text_at(&entry, &["attempt_id"]))
                .to_owned();
            let added = self.inserted_frames.get(&attempt).copied();
            let expected = (
                raised_number(number_at(&entry, &["control_seq"]), added),
                number_at(&entry, &["output_offset"]),
            );
            self.wait_until_acked(&attempt, expected).await;
        }
    }

    async fn wait_until_acked(&mut self, attempt: &str, expected: (u64, u64)) {
        while self.stream.is_some() {
            let (control, offset) = self.acked.get(attempt).copied().unwrap_or_default();
            if control >= expected.0 && offset >= expected.1 {
                break;
            }
            let what =
                format!("{attempt} to be durable through {expected:?}, not {control}, {offset}");
            let frame = self.next_frame(&what).await;
            self.unread_frames.push(frame);
        }
    }

    async fn expect_frame(
        &mut self,
        what: &str,
        expected: impl Fn(&DynamicMessage) -> bool,
    ) -> DynamicMessage {
        if let Some(found) = self.unread_frames.iter().position(&expected) {
            return self.unread_frames.remove(found);
        }
        loop {
            let frame = self.next_frame(what).await;
            if expected(&frame) {
                return frame;
            }
            self.unread_frames.push(frame);
        }
    }

    /// The next frame, decoded with this player's version. No frame may be rejected.
    async fn next_frame(&mut self, what: &str) -> DynamicMessage {
        let stream = self.stream.as_mut();
        let stream = stream.unwrap_or_else(|| panic!("no stream while waiting for {what}"));
        let bytes = match stream.next().await {
            Ok(Some(bytes)) => bytes,
            ended => panic!("the stream ended before {what}: {ended:?}"),
        };
        let frame = decode(self.pool, RELAY_FRAME, &bytes);
        for entry in messages_at(&frame, &["ack", "entries"]) {
            let acked = (
                number_at(&entry, &["control_seq"]),
                number_at(&entry, &["output_offset"]),
            );
            let known = self
                .acked
                .entry(text_at(&entry, &["attempt_id"]))
                .or_default();
            *known = (known.0.max(acked.0), known.1.max(acked.1));
        }
        let kind = frame_kind(&frame);
        assert!(
            kind != "rejected" && kind != "goodbye",
            "got {:?} before {what}",
            RelayFrame::decode(bytes)
        );
        frame
    }
}

fn raise_number_at(message: &mut DynamicMessage, path: &[&str], added: Option<(u64, u64)>) {
    change_at(message, path, |value| {
        if let Value::U64(number) = value {
            *number = raised_number(*number, added);
        }
    });
}

/// The current number of a recorded frame, shifted by the inserted frames.
fn raised_number(number: u64, added: Option<(u64, u64)>) -> u64 {
    match added {
        Some((behind, count)) if number > behind => number + count,
        Some(_) | None => number,
    }
}

/// Values that no version defines, in fields that a relay reads.
fn set_unknown_values(frame: &mut DynamicMessage) {
    let unknown = Value::EnumNumber(next_version::UNKNOWN_ENUM_VALUE);
    match frame_kind(frame).as_str() {
        "hello" => {
            let feature = Value::String(next_version::UNKNOWN_FEATURE.to_owned());
            push_at(frame, &["hello", "features"], feature);
            let agents = messages_at(frame, &["hello", "agents"]);
            let mut other = agents.first().expect("a recorded agent").clone();
            other.set_field_by_name("name", Value::String("telepath".to_owned()));
            other.set_field_by_name("kind", unknown);
            push_at(frame, &["hello", "agents"], Value::Message(other));
        }
        "heartbeat" => set_at(frame, &["heartbeat", "status"], unknown),
        "attempt/stream" => set_at(frame, &["attempt", "stream", "kind"], unknown),
        _ => {}
    }
}

/// Arm and content of an unknown body.
fn unknown_body() -> (String, Value) {
    let body = Value::String("a body".to_owned());
    (next_version::extra_arm_name("body"), body)
}

fn unknown_phase() -> (String, Value) {
    let mut lifecycle = decode(
        next_version::next_version_pool(),
        "baton.v1.TaskLifecycle",
        &[],
    );
    set_at(
        &mut lifecycle,
        &["phase"],
        Value::EnumNumber(next_version::UNKNOWN_ENUM_VALUE),
    );
    ("lifecycle".to_owned(), Value::Message(lifecycle))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_of_every_release_works_with_this_relay() {
    for release in releases() {
        let relay = EmbeddedRelay::start().await;
        DaemonPlayer::play_release(release, &relay, DaemonVersion::AsRecorded).await;
        let unknown = relay.counter_value("unknown_frames") + relay.counter_value("unknown_values");
        assert_eq!(unknown, 0, "release {} has nothing unknown", release.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_of_the_next_version_works_and_unknown_items_are_counted() {
    let release = releases().last().unwrap();
    let relay = EmbeddedRelay::start().await;
    DaemonPlayer::play_release(release, &relay, DaemonVersion::NextVersion).await;
    let counted = ["unknown_frames", "unknown_values"].map(|name| relay.counter_value(name));
    assert!(counted.iter().all(|count| *count > 0), "{counted:?}");
}

/// The current types decode a recording completely.
#[test]
fn every_recorded_frame_is_decoded_completely() {
    use baton_proto::v1::{DaemonFrame, RelayFrame};
    for release in releases() {
        for step in &release.tape.0 {
            let (kind, bytes, again) = match step {
                RecordedStep::Up { kind, bytes } => {
                    let frame = DaemonFrame::decode(bytes.as_slice()).unwrap();
                    (kind, bytes, frame.encode_to_vec())
                }
                RecordedStep::Down { kind, bytes } => {
                    let frame = RelayFrame::decode(bytes.as_slice()).unwrap();
                    (kind, bytes, frame.encode_to_vec())
                }
                RecordedStep::Submit { .. }
                | RecordedStep::Cancel { .. }
                | RecordedStep::Until { .. }
                | RecordedStep::Touch { .. }
                | RecordedStep::Cut
                | RecordedStep::Restore
                | RecordedStep::Terminate
                | RecordedStep::End { .. } => continue,
            };
            assert_eq!(&again, bytes, "{kind} of release {}", release.name);
        }
    }
}
