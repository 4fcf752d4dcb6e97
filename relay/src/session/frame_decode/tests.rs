//! Sends arbitrary frames through the decoder into a real core. It never panics, a refused
//! frame changes nothing, no task is left without a timer, and every written record can be read
//! back.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

use baton_core::commands::SubmitTask;
use baton_core::config::Config;
use baton_core::ids::{
    DaemonId, InstanceId, RelayEpoch, SessionId, TenantId, TenantScope, TokenId,
};
use baton_core::io::command::CoreInput;
use baton_core::io::effects::{AttemptDispatch, DaemonMessage, Delivery, Effects, RecordChange};
use baton_core::io::session_input::{AttemptFrame, DaemonHello, HeartbeatMessage, SessionInput};
use baton_core::io::stored_lookup::{FinishedTask, RemovableTask};
use baton_core::record::{DaemonPlatform, FenceRecord, TaskRecord};
use baton_core::record::{IdempotencyRecord, ProgressRecord};
use baton_core::time::{ClockReading, IdSource, MonotonicTime};
use baton_core::{Core, RecoveredState};
use baton_core::{StoredLookup, StoredTasks};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use uuid::Uuid;

use super::*;
use crate::records;
use crate::test_samples::task_spec;

const INCARNATION: u128 = 7;
const SESSION: SessionId = SessionId(Uuid::from_u128(40));

struct CountingIdSource(u128);

impl IdSource for CountingIdSource {
    fn new_id(&mut self) -> Uuid {
        self.0 += 1;
        Uuid::from_u128(self.0)
    }

    fn new_secret(&mut self) -> [u8; 32] {
        [9; 32]
    }

    fn jitter_millionths(&mut self) -> u32 {
        500_000
    }
}

/// A core with one task whose first attempt is confirmed to the sending daemon.
struct DecoderFixture {
    core: Core,
    now: ClockReading,
    id_source: CountingIdSource,
    dispatch: AttemptDispatch,
    next_seq: u64,
}

impl DecoderFixture {
    fn new() -> Self {
        let incarnation = Incarnation(Uuid::from_u128(INCARNATION));
        let config = Config::new(incarnation, RelayEpoch(1));
        let now = ClockReading {
            monotonic: MonotonicTime(1_000_000),
            wall: WallTime(1_800_000_000_000),
        };
        let mut id_source = CountingIdSource(1_000);
        let (mut core, _) = Core::recover(RecoveredState::default(), config, now, &mut id_source);
        let hello = Box::new(hello());
        let session = SESSION;
        core.handle(
            SessionInput::Opened { session, hello }.into(),
            &EmptyStore,
            now,
            &mut id_source,
        );
        // The heartbeat shows that the daemon has read Welcome.
        let heartbeat = HeartbeatMessage {
            seq: 1,
            received_ack_seq: None,
            renewals: Vec::new(),
            free_slots: 1,
            draining: false,
            unfit: false,
            load: None,
        };
        core.handle(
            SessionInput::Heartbeat { session, heartbeat }.into(),
            &EmptyStore,
            now,
            &mut id_source,
        );
        let submit = SubmitTask {
            task: TaskId(Uuid::from_u128(500)),
            spec: Arc::new(task_spec()),
            digest: [1; 32],
        };
        let submit = CoreInput::command(submit, |_| ());
        let effects = core.handle(submit, &EmptyStore, now, &mut id_source);
        let dispatch = dispatch_in(effects).expect("the daemon has room");
        let mut fixture = Self {
            core,
            now,
            id_source,
            dispatch,
            next_seq: 1,
        };
        let accepted = fixture.frame(Some(Body::Accepted(v1::TaskAccepted::default())));
        let (_, effects) = fixture.handle_frame(accepted).expect("a good frame");
        assert!(!effects.changes.is_empty());
        fixture
    }

    /// A complete frame of this attempt with the next control_seq.
    fn frame(&self, body: Option<Body>) -> v1::AttemptFrame {
        let to = &self.dispatch.to;
        v1::AttemptFrame {
            r#ref: Some(v1::AttemptRef {
                task_id: to.task.to_string(),
                attempt_id: to.attempt.to_string(),
                attempt_number: to.number,
                incarnation: Uuid::from_u128(INCARNATION).to_string(),
                ..v1::AttemptRef::default()
            }),
            control_seq: self.next_seq,
            within_lease: true,
            body,
            ..v1::AttemptFrame::default()
        }
    }

    /// Decodes a frame like a session, and passes a control frame to the core.
    fn handle_frame(&mut self, mut frame: v1::AttemptFrame) -> Result<(u64, Effects), FrameFault> {
        let re = frame_ref(frame.r#ref.as_ref())?;
        let control_seq = frame.control_seq;
        let workspace = workspace(frame.body.as_ref());
        let DecodedFrame::Control(body) = decode_body(frame.body.take(), frame.within_lease)?
        else {
            return Ok((control_seq, Effects::default()));
        };
        let frame = AttemptFrame {
            session: SESSION,
            frame_ref: re,
            control_seq,
            observed: observed_at(&frame),
            proof: proof(&frame),
            body,
            workspace,
        };
        let input = SessionInput::Frame(Box::new(frame));
        let effects = self
            .core
            .handle(input.into(), &EmptyStore, self.now, &mut self.id_source);
        Ok((control_seq, effects))
    }
}

/// A store without a record.
struct EmptyStore;

impl StoredTasks for EmptyStore {
    fn finished(&self, _: &TenantId, _: TaskId) -> Option<FinishedTask> {
        None
    }

    fn finished_in_scope(&self, _: &TenantScope, _: TaskId) -> Option<FinishedTask> {
        None
    }

    fn removable(&self, _: &TenantId, _: TaskId) -> Option<RemovableTask> {
        None
    }

    fn idempotency(&self, _: &TenantId, _: &str) -> StoredLookup<IdempotencyRecord> {
        Ok(None)
    }

    fn progress(&self, _: &TenantId, _: TaskId) -> StoredLookup<Arc<ProgressRecord>> {
        Ok(None)
    }
}

fn hello() -> DaemonHello {
    DaemonHello {
        active: Vec::new(),
        daemon: DaemonId(Uuid::from_u128(30)),
        scope: TenantScope::All,
        token: TokenId(Uuid::from_u128(31)),
        instance: InstanceId(Uuid::from_u128(32)),
        boot_id: "boot".into(),
        name: "worker".into(),
        version: "1".into(),
        platform: DaemonPlatform::default(),
        slots: 4,
        labels: BTreeMap::new(),
        capabilities: Vec::new(),
        agents: vec!["claude".into()],
        workspaces: Vec::new(),
        draining: false,
    }
}

fn dispatch_in(effects: Effects) -> Option<AttemptDispatch> {
    effects
        .deliveries
        .into_iter()
        .find_map(|outgoing| match outgoing.delivery {
            Delivery::ToSession {
                message: DaemonMessage::Dispatch(dispatch),
                ..
            } => Some(*dispatch),
            _ => None,
        })
}

fn is_refused(effects: &Effects) -> bool {
    effects.deliveries.iter().any(|outgoing| {
        let Delivery::ToSession { message, .. } = &outgoing.delivery else {
            return false;
        };
        matches!(message, DaemonMessage::FrameRejected { .. })
    })
}

/// Encodes every written record and checks that it decodes to the same value.
fn read_back(writes: &[RecordChange]) {
    for write in writes {
        match write {
            RecordChange::PutLive(record)
            | RecordChange::PutDone(record)
            | RecordChange::Reopen(record) => {
                let bytes = records::encode(&**record);
                let found: TaskRecord = records::decode("task", &bytes).unwrap();
                assert_eq!(found, **record);
            }
            RecordChange::PutFence(record) => {
                let found: FenceRecord =
                    records::decode("fence", &records::encode(record)).unwrap();
                assert_eq!(found, *record);
            }
            _ => {}
        }
    }
}

/// Text as peers send it: ordinary, blank, long, unusual.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just(" ".into()),
        select(vec!["t1", "t2", "bash", "agent_exit", "lease_expired"]).prop_map(str::to_owned),
        "\\PC{1,20}",
        (250usize..5_000).prop_map(|length| "ä".repeat(length)),
    ]
}

fn input_id() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (1..4u128).prop_map(|id| Uuid::from_u128(id).to_string()),
        1 => any_text(),
    ]
}

fn receipt() -> impl Strategy<Value = Option<v1::TerminationReceipt>> {
    let one = (
        any::<Option<i32>>(),
        any::<Option<i32>>(),
        any::<[bool; 2]>(),
        any::<Option<bool>>(),
    );
    proptest::option::of(one.prop_map(
        |(exit_code, signal, [group_empty, killed], prompt_written)| v1::TerminationReceipt {
            exit_code,
            signal,
            group_empty,
            killed,
            prompt_written,
            ..v1::TerminationReceipt::default()
        },
    ))
}

fn any_input_request() -> impl Strategy<Value = Body> {
    let permission = (input_id(), any_text(), any_text(), any::<bool>()).prop_map(
        |(input_id, tool_name, text, fits)| {
            let tool_input = Bytes::from(text);
            let digest = Sha256::digest(&tool_input);
            Body::PermissionRequest(v1::PermissionRequest {
                input_id,
                tool_name,
                tool_input_sha256: Bytes::copy_from_slice(if fits { &digest } else { &[] }),
                tool_input,
                ..v1::PermissionRequest::default()
            })
        },
    );
    let question = (input_id(), any_text()).prop_map(|(input_id, question)| {
        Body::Question(v1::Question {
            input_id,
            question,
            ..v1::Question::default()
        })
    });
    let withdrawn = input_id().prop_map(|input_id| {
        Body::InputWithdrawn(v1::InputWithdrawn {
            input_id,
            ..v1::InputWithdrawn::default()
        })
    });
    prop_oneof![permission, question, withdrawn]
}

fn any_end() -> impl Strategy<Value = Body> {
    let complete =
        (receipt(), any_text(), any::<u64>()).prop_map(|(receipt, result, final_offset)| {
            Body::Complete(v1::TaskComplete {
                receipt,
                result: result.into(),
                final_offset,
                ..v1::TaskComplete::default()
            })
        });
    let error = (receipt(), any_text(), any_text(), any::<Option<bool>>()).prop_map(
        |(receipt, failure_code, stderr_tail, retryable_hint)| {
            Body::Error(v1::TaskError {
                receipt,
                failure_code,
                stderr_tail,
                retryable_hint,
                ..v1::TaskError::default()
            })
        },
    );
    let canceled = receipt().prop_map(|receipt| {
        Body::Canceled(v1::TaskCanceled {
            receipt,
            ..v1::TaskCanceled::default()
        })
    });
    let bare = receipt().prop_map(|receipt| Body::Receipt(receipt.unwrap_or_default()));
    prop_oneof![complete, error, canceled, bare]
}

fn any_body() -> impl Strategy<Value = Option<Body>> {
    let lifecycle = (-2..30i32, any_text(), any_text(), input_id()).prop_map(
        |(phase, tool_call_id, message, input_id)| {
            Body::Lifecycle(v1::TaskLifecycle {
                phase,
                tool_call_id,
                message,
                input_id,
                ..v1::TaskLifecycle::default()
            })
        },
    );
    let rejected = (-1..20i32, any_text())
        .prop_map(|(code, message)| Body::Rejected(v1::TaskRejected { code, message }));
    prop_oneof![
        1 => Just(None),
        1 => Just(Some(Body::Accepted(v1::TaskAccepted::default()))),
        2 => Just(Some(Body::Started(v1::TaskStarted::default()))),
        8 => lifecycle.prop_map(Some),
        4 => any_input_request().prop_map(Some),
        1 => rejected.prop_map(Some),
        2 => any_end().prop_map(Some),
    ]
}

/// How a frame differs from a correct one.
#[derive(Clone, Debug)]
enum FrameTampering {
    Correct,
    Number(u64),
    Token(Vec<u8>),
    Foreign(u8),
    /// Some bytes are changed on the wire.
    Bytes(Vec<(Index, u8)>),
}

fn any_tampering() -> impl Strategy<Value = FrameTampering> {
    prop_oneof![
        6 => Just(FrameTampering::Correct),
        1 => (0..12u64).prop_map(FrameTampering::Number),
        1 => proptest::collection::vec(any::<u8>(), 0..40).prop_map(FrameTampering::Token),
        1 => (0..3u8).prop_map(FrameTampering::Foreign),
        2 => proptest::collection::vec((any::<Index>(), 1..=255u8), 1..4).prop_map(FrameTampering::Bytes),
    ]
}

/// `None` if the bytes no longer decode to a message; the transport ends such a stream.
fn tampered(mut frame: v1::AttemptFrame, tampering: FrameTampering) -> Option<v1::AttemptFrame> {
    match tampering {
        FrameTampering::Correct => {}
        FrameTampering::Number(number) => frame.control_seq = number,
        FrameTampering::Token(bytes) => {
            frame.token = Some(v1::LeaseToken {
                value: bytes.into(),
            })
        }
        FrameTampering::Foreign(which) => {
            let foreign = Uuid::from_u128(99).to_string();
            let re = frame.r#ref.get_or_insert_default();
            match which {
                0 => re.attempt_id = foreign,
                1 => re.task_id = foreign,
                _ => re.incarnation = foreign,
            }
        }
        FrameTampering::Bytes(changes) => {
            let mut bytes = frame.encode_to_vec();
            let length = bytes.len();
            for (position, mask) in changes {
                bytes[position.index(length)] ^= mask;
            }
            return v1::AttemptFrame::decode(&bytes[..]).ok();
        }
    }
    Some(frame)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn arbitrary_frames_never_break_the_core_and_refused_ones_change_nothing(
        frames in proptest::collection::vec((any_body(), any_tampering()), 1..25),
    ) {
        let mut fixture = DecoderFixture::new();
        fixture.next_seq = 2;
        for (body, tampering) in frames {
            let Some(frame) = tampered(fixture.frame(body), tampering) else {
                continue;
            };
            let Ok((seq, effects)) = fixture.handle_frame(frame) else {
                continue;
            };
            if is_refused(&effects) {
                prop_assert!(effects.changes.is_empty(), "a refused frame wrote {:?}", effects.changes);
            } else if seq == fixture.next_seq {
                fixture.next_seq += 1;
            }
            read_back(&effects.changes);
            prop_assert_eq!(fixture.core.find_untimed_task(), None);
            prop_assert!(fixture.core.open_task_count() <= 1);
        }
    }
}

/// The property above would also hold for a decoder that refuses everything.
#[test]
fn a_correct_terminal_frame_completes_the_task() {
    let mut fixture = DecoderFixture::new();
    fixture.next_seq = 2;
    let receipt = Some(v1::TerminationReceipt {
        exit_code: Some(0),
        group_empty: true,
        ..v1::TerminationReceipt::default()
    });
    let end = fixture.frame(Some(Body::Complete(v1::TaskComplete {
        receipt,
        ..v1::TaskComplete::default()
    })));
    let (_, effects) = fixture.handle_frame(end).unwrap();
    assert!(matches!(
        effects.changes[..],
        [RecordChange::PutDone(_), ..]
    ));
    assert_eq!(fixture.core.open_task_count(), 0);
}
