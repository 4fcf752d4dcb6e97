//! Replays a relay of another version against this daemon: sends the recorded frames and
//! expects the recorded answers. The children are real.

use std::collections::HashMap;
use std::path::PathBuf;

use baton_proto::v1::{HeartbeatAck, RelayFrame, RenewResult, Renewed, relay_frame, renew_result};
use baton_tests::{EmbeddedDaemon, RawRelay, RawRelayStream, wait_within};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage, Value};

use crate::dynamic_frames::{
    DAEMON_FRAME, RELAY_FRAME, attempt_id_of, change_each_at, decode, encode, frame_kind,
    messages_at, number_at, oneof_arm, push_at, set_at, text_at, value_at,
};
use crate::next_version;
use crate::releases::{RecordedRelease, releases};
use crate::tape::RecordedStep;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RelayVersion {
    AsRecorded,
    /// The next version: additional fields everywhere, and unknown frames and values.
    NextVersion,
}

struct RelayPlayer<'a> {
    version: RelayVersion,
    pool: &'a DescriptorPool,
    relay: RawRelay,
    stream: Option<RawRelayStream>,
    daemon: Option<EmbeddedDaemon>,
    work: PathBuf,
    /// Incarnation and epoch of every frame, as recorded.
    stamp: (String, u64),
    /// Received frames that are not expected yet.
    unread_frames: Vec<DynamicMessage>,
    attempts: HashMap<String, ReceivedAttempt>,
}

/// Frames received for one attempt.
#[derive(Debug, Default)]
struct ReceivedAttempt {
    task: String,
    output: Vec<u8>,
    /// The last control frame.
    last_control_seq: u64,
    /// The current number of each recorded control frame.
    control_seq_map: HashMap<u64, u64>,
}

impl<'a> RelayPlayer<'a> {
    /// Returns the number of unknown items that this daemon counted.
    async fn play_release(release: &'a RecordedRelease, version: RelayVersion) -> u64 {
        let relay = RawRelay::start().await;
        let dir = tempfile::tempdir().expect("a temporary directory");
        let work = dir.path().join("work");
        std::fs::create_dir(&work).expect("a directory");
        let daemon = EmbeddedDaemon::start_dialing(&relay.url(), "btn_old", |config| {
            config.work_dir.clone_from(&work);
        });
        let mut old = Self {
            version,
            pool: &release.pool,
            relay,
            stream: None,
            daemon: Some(daemon),
            work,
            stamp: Default::default(),
            unread_frames: Vec::new(),
            attempts: HashMap::new(),
        };
        let mut unknown = 0;
        for step in &release.tape.with_fresh_ids().0 {
            if let (RecordedStep::Terminate, Some(daemon)) = (step, &old.daemon) {
                unknown = daemon.unknown_count();
            }
            old.play_step(step).await;
        }
        unknown
    }

    async fn play_step(&mut self, step: &RecordedStep) {
        match step {
            RecordedStep::Submit { .. }
            | RecordedStep::Cancel { .. }
            | RecordedStep::Until { .. } => {}
            RecordedStep::Touch { file } => {
                std::fs::write(self.work.join(file), "").expect("a file can be written");
            }
            RecordedStep::Cut => self.cut_stream().await,
            RecordedStep::Restore => self.relay.set_admitting(true),
            RecordedStep::Terminate => {
                let daemon = self.daemon.take().expect("the daemon runs");
                tokio::spawn(daemon.stop());
            }
            RecordedStep::Up { kind, bytes } => {
                let recorded = decode(self.pool, DAEMON_FRAME, bytes);
                // One deadline for the whole step, because heartbeats never stop.
                wait_within(
                    &format!("{kind} of {}", attempt_id_of(&recorded)),
                    self.expect_recorded_frame(&recorded),
                )
                .await;
            }
            RecordedStep::Down { bytes, .. } => {
                let frame = decode(self.pool, RELAY_FRAME, bytes);
                self.send_recorded_frame(frame).await;
            }
            RecordedStep::End { task, output, .. } => {
                let attempt = self.attempts.values().find(|one| &one.task == task);
                let received = attempt.expect("the task was run").output.as_slice();
                assert_eq!(
                    String::from_utf8_lossy(received),
                    String::from_utf8_lossy(output)
                );
            }
        }
    }

    async fn cut_stream(&mut self) {
        self.relay.set_admitting(false);
        let Some(stream) = self.stream.take() else {
            return;
        };
        if self.version == RelayVersion::NextVersion {
            // An unknown reason is handled like any other: the daemon reconnects.
            let mut goodbye = self.new_frame("goodbye");
            let unknown = Value::EnumNumber(next_version::UNKNOWN_ENUM_VALUE);
            set_at(&mut goodbye, &["goodbye", "code"], unknown);
            stream.send(encode(&goodbye)).await;
        }
    }

    async fn send_recorded_frame(&mut self, mut frame: DynamicMessage) {
        self.stamp = (
            text_at(&frame, &["incarnation"]),
            number_at(&frame, &["relay_epoch"]),
        );
        match frame_kind(&frame).as_str() {
            // Heartbeats are answered when they arrive. The relay's disconnect is not replayed.
            "heartbeat_ack" | "goodbye" => return,
            "ack" => self.renumber_acks(&mut frame),
            "welcome" => self.set_durable_positions(&mut frame),
            "attempt/dispatch" => {
                let received = self.attempts.entry(attempt_id_of(&frame)).or_default();
                received.task = text_at(&frame, &["attempt", "ref", "task_id"]);
            }
            _ => {}
        }
        let more = self.version == RelayVersion::NextVersion
            && frame_kind(&frame) == "attempt/lease_confirmed";
        let bytes = self.encode_for_version(&frame);
        let Some(stream) = &self.stream else { return };
        stream.send(bytes).await;
        if more {
            self.send_unknown_frames(&frame).await;
        }
    }

    fn encode_for_version(&self, frame: &DynamicMessage) -> bytes::Bytes {
        match self.version {
            RelayVersion::AsRecorded => encode(frame),
            RelayVersion::NextVersion => {
                let mut grown = next_version::as_next_version(frame);
                set_unknown_values(&mut grown);
                encode(&grown)
            }
        }
    }

    /// Sends an unknown frame and an unknown command, at points where a relay could send them.
    async fn send_unknown_frames(&mut self, frame: &DynamicMessage) {
        let Some(stream) = &self.stream else { return };
        let mut unknown = self.new_frame("");
        unknown.set_field_by_name(
            &next_version::extra_arm_name("frame"),
            Value::String("a frame".to_owned()),
        );
        stream.send(encode(&unknown)).await;
        let mut command = next_version::as_next_version(frame);
        let body = next_version::extra_arm_name("body");
        set_at(
            &mut command,
            &["attempt", &body],
            Value::String("do".to_owned()),
        );
        stream.send(encode(&command)).await;
    }

    /// An empty frame of the next version, with the arm set.
    fn new_frame(&self, arm: &str) -> DynamicMessage {
        let mut frame = decode(next_version::next_version_pool(), RELAY_FRAME, &[]);
        frame.set_field_by_name("incarnation", Value::String(self.stamp.0.clone()));
        frame.set_field_by_name("relay_epoch", Value::U64(self.stamp.1));
        if let Some(field) = frame.descriptor().get_field_by_name(arm) {
            frame.set_field(&field, Value::default_value_for_field(&field));
        }
        frame
    }

    /// The durable positions are those received now: this daemon may have sent less before the
    /// cut than the recorded one.
    fn set_durable_positions(&self, frame: &mut DynamicMessage) {
        change_each_at(frame, &["welcome", "settlements"], |settlement| {
            let Some(received) = self.attempts.get(&text_at(settlement, &["attempt_id"])) else {
                return;
            };
            if let Some(decision) = oneof_arm(settlement, "decision").filter(|it| it != "kill") {
                let (control, offset) = (received.last_control_seq, received.output.len() as u64);
                set_at(
                    settlement,
                    &[&decision, "acked_control_seq"],
                    Value::U64(control),
                );
                set_at(settlement, &[&decision, "acked_offset"], Value::U64(offset));
            }
        });
    }

    /// Acks contain the numbers that this daemon gave to the same frames.
    fn renumber_acks(&self, frame: &mut DynamicMessage) {
        change_each_at(frame, &["ack", "entries"], |entry| {
            let recorded = number_at(entry, &["control_seq"]);
            let received = self.attempts.get(&text_at(entry, &["attempt_id"]));
            let numbers = received
                .into_iter()
                .flat_map(|received| &received.control_seq_map);
            let through = numbers.filter(|(was, _)| **was <= recorded);
            let now = through.map(|(_, is)| *is).max().unwrap_or(0);
            set_at(entry, &["control_seq"], Value::U64(now));
        });
    }

    async fn expect_recorded_frame(&mut self, recorded: &DynamicMessage) {
        let what = frame_kind(recorded);
        match what.as_str() {
            "hello" => self.open_stream(recorded).await,
            "attempt/stream" => {
                let attempt = attempt_id_of(recorded);
                let data = value_at(recorded, &["attempt", "stream", "chunk"]);
                let length = data.and_then(|data| data.as_bytes().map(bytes::Bytes::len));
                let end = number_at(recorded, &["attempt", "stream", "offset"]);
                let end = usize::try_from(end).expect("a short output") + length.unwrap_or(0);
                while self.stream.is_some() && self.received_output_length(&attempt) < end {
                    let frame = self.next_frame(&what).await;
                    self.unread_frames.extend(frame);
                }
            }
            // Which phases a daemon reports, and when it renews, is not part of the recording.
            phase if phase.starts_with("attempt/lifecycle/") => {}
            "heartbeat" => {}
            _ => {
                let attempt = attempt_id_of(recorded);
                let Some(frame) = self.expect_frame(&what, &attempt).await else {
                    return;
                };
                let was = number_at(recorded, &["attempt", "control_seq"]);
                let is = number_at(&frame, &["attempt", "control_seq"]);
                let received = self.attempts.entry(attempt).or_default();
                received.control_seq_map.insert(was, is);
            }
        }
    }

    fn received_output_length(&self, attempt: &str) -> usize {
        self.attempts
            .get(attempt)
            .map_or(0, |received| received.output.len())
    }

    /// Accepts the daemon's stream when its Hello lists the recorded states of its attempts.
    async fn open_stream(&mut self, recorded: &DynamicMessage) {
        let states = |hello: &DynamicMessage| -> HashMap<String, Option<i32>> {
            let active = messages_at(hello, &["hello", "active"]);
            let state = |one: &DynamicMessage| {
                let state = value_at(one, &["state"]).and_then(|state| state.as_enum_number());
                (text_at(one, &["ref", "attempt_id"]), state)
            };
            active.iter().map(state).collect()
        };
        self.unread_frames.clear();
        loop {
            let mut stream = self.relay.next_stream().await;
            let Some(first) = stream.next().await else {
                continue;
            };
            let hello = decode(self.pool, DAEMON_FRAME, &first);
            assert_eq!(frame_kind(&hello), "hello");
            if states(&hello) == states(recorded) {
                self.stream = Some(stream);
                return;
            }
        }
    }

    /// The recorded frame as it arrives now; none if it was sent into a cut connection.
    async fn expect_frame(&mut self, what: &str, attempt: &str) -> Option<DynamicMessage> {
        let matches =
            |frame: &DynamicMessage| frame_kind(frame) == what && attempt_id_of(frame) == attempt;
        if let Some(found) = self.unread_frames.iter().position(matches) {
            return Some(self.unread_frames.remove(found));
        }
        while self.stream.is_some() {
            match self.next_frame(what).await {
                Some(frame) if matches(&frame) => return Some(frame),
                frame => self.unread_frames.extend(frame),
            }
        }
        None
    }

    /// The next frame other than a heartbeat. Heartbeats are answered at once.
    async fn next_frame(&mut self, what: &str) -> Option<DynamicMessage> {
        let stream = self.stream.as_mut()?;
        let Some(bytes) = stream.next().await else {
            panic!("the daemon closed the stream before {what}");
        };
        let frame = decode(self.pool, DAEMON_FRAME, &bytes);
        if let Some(received) = self.attempts.get_mut(&attempt_id_of(&frame)) {
            let control = number_at(&frame, &["attempt", "control_seq"]);
            received.last_control_seq = received.last_control_seq.max(control);
        }
        match frame_kind(&frame).as_str() {
            "heartbeat" => {
                let answer = self.encode_heartbeat_ack(&frame);
                let answer = self.encode_for_version(&decode(self.pool, RELAY_FRAME, &answer));
                self.stream.as_ref()?.send(answer).await;
                None
            }
            "attempt/stream" => {
                let offset = number_at(&frame, &["attempt", "stream", "offset"]);
                let data = value_at(&frame, &["attempt", "stream", "chunk"]);
                let received = self.attempts.entry(attempt_id_of(&frame)).or_default();
                // Replayed bytes overwrite the same bytes.
                received
                    .output
                    .truncate(usize::try_from(offset).expect("a short output"));
                assert_eq!(received.output.len() as u64, offset, "output has no gap");
                let data = data.and_then(|data| data.as_bytes().cloned());
                received.output.extend_from_slice(&data.unwrap_or_default());
                Some(frame)
            }
            _ => Some(frame),
        }
    }

    fn encode_heartbeat_ack(&self, heartbeat: &DynamicMessage) -> Vec<u8> {
        let renew = messages_at(heartbeat, &["heartbeat", "renew"]);
        let results = renew.iter().map(|entry| RenewResult {
            attempt_id: text_at(entry, &["attempt_id"]),
            result: Some(renew_result::Result::Renewed(Renewed {
                granted_ms: 30_000,
                expires_at: None,
            })),
        });
        let ack = HeartbeatAck {
            seq: number_at(heartbeat, &["heartbeat", "seq"]),
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

/// Values that no version defines, in fields that a daemon reads.
fn set_unknown_values(frame: &mut DynamicMessage) {
    match frame_kind(frame).as_str() {
        "welcome" => {
            let feature = Value::String(next_version::UNKNOWN_FEATURE.to_owned());
            push_at(frame, &["welcome", "features"], feature);
        }
        "attempt/cancel" => {
            let unknown = Value::EnumNumber(next_version::UNKNOWN_ENUM_VALUE);
            set_at(frame, &["attempt", "cancel", "reason"], unknown);
        }
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_of_every_release_works_with_this_daemon() {
    for release in releases() {
        let unknown = RelayPlayer::play_release(release, RelayVersion::AsRecorded).await;
        assert_eq!(unknown, 0, "release {} has nothing unknown", release.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_of_the_next_version_works_and_unknown_items_are_counted() {
    let release = releases().last().unwrap();
    let unknown = RelayPlayer::play_release(release, RelayVersion::NextVersion).await;
    assert!(unknown > 0);
}
