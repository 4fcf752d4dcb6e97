//! Anything that a daemon can send, through the decoder into a real core: it never panics, what is refused changes nothing, nothing waits
//! for ever, and every record that comes of it is read back as it was written.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_core::config::Config;
use baton_core::effects::{Dispatch, Downstream, Effects, Send, Write};
use baton_core::id::{
    DaemonId, InstanceId, RelayEpoch, RequestId, SessionId, TenantScope, TokenId,
};
use baton_core::input::{Frame, Heartbeat, Hello, Input, Submit};
use baton_core::record::{FenceRecord, Platform, TaskRecord};
use baton_core::time::{Mint, Moment, Now};
use baton_core::{Core, Recovered};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use uuid::Uuid;

use super::*;
use crate::records;
use crate::samples::task_spec;

const INCARNATION: u128 = 7;
const SESSION: SessionId = SessionId(Uuid::from_u128(40));

struct Counter(u128);

impl Mint for Counter {
    fn id(&mut self) -> Uuid {
        self.0 += 1;
        Uuid::from_u128(self.0)
    }

    fn secret(&mut self) -> [u8; 32] {
        [9; 32]
    }

    fn millionth(&mut self) -> u32 {
        500_000
    }
}

/// A core with one task whose first attempt is confirmed to the daemon that speaks.
struct Bench {
    core: Core,
    now: Now,
    mint: Counter,
    dispatch: Dispatch,
    next_seq: u64,
}

impl Bench {
    fn new() -> Self {
        let incarnation = Incarnation(Uuid::from_u128(INCARNATION));
        let config = Config::new(incarnation, RelayEpoch(1));
        let now = Now {
            at: Moment(1_000_000),
            wall: Wall(1_800_000_000_000),
        };
        let mut mint = Counter(1_000);
        let (mut core, _) = Core::recover(Recovered::default(), config, now, &mut mint);
        let hello = Box::new(hello());
        let session = SESSION;
        core.handle(Input::SessionOpened { session, hello }, now, &mut mint);
        // It has read Welcome.
        let heartbeat = Heartbeat {
            seq: 1,
            heard_seq: None,
            renewals: Vec::new(),
            free_slots: 1,
            draining: false,
            unfit: false,
            load: None,
        };
        core.handle(Input::Heartbeat { session, heartbeat }, now, &mut mint);
        let submit = Input::Submit(Submit {
            request: RequestId(1),
            task: TaskId(Uuid::from_u128(500)),
            spec: Arc::new(task_spec()),
            digest: [1; 32],
            prior: Ok(None),
        });
        let effects = core.handle(submit, now, &mut mint);
        let dispatch = dispatch_in(effects).expect("the daemon has room");
        let mut bench = Self {
            core,
            now,
            mint,
            dispatch,
            next_seq: 1,
        };
        let accepted = bench.frame(Some(Body::Accepted(v1::TaskAccepted::default())));
        let (_, effects) = bench.hear(accepted).expect("a good frame");
        assert!(!effects.writes.is_empty());
        bench
    }

    /// A whole frame of this attempt under the next number.
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

    /// As a session does it: decoded, and passed on if it is a control frame.
    fn hear(&mut self, mut frame: v1::AttemptFrame) -> Result<(u64, Effects), FrameFault> {
        let re = reference(frame.r#ref.as_ref())?;
        let control_seq = frame.control_seq;
        let workspace = workspace(frame.body.as_ref());
        let Decoded::Control(body) = body(frame.body.take(), frame.within_lease)? else {
            return Ok((control_seq, Effects::default()));
        };
        let frame = Frame {
            session: SESSION,
            re,
            control_seq,
            observed: observed(&frame),
            proof: proof(&frame),
            body,
            workspace,
            finished: None,
            known: Ok(None),
        };
        let input = Input::Frame(Box::new(frame));
        let effects = self.core.handle(input, self.now, &mut self.mint);
        Ok((control_seq, effects))
    }
}

fn hello() -> Hello {
    Hello {
        active: Vec::new(),
        daemon: DaemonId(Uuid::from_u128(30)),
        scope: TenantScope::All,
        token: TokenId(Uuid::from_u128(31)),
        instance: InstanceId(Uuid::from_u128(32)),
        boot_id: "boot".into(),
        name: "worker".into(),
        version: "1".into(),
        platform: Platform::default(),
        slots: 4,
        labels: BTreeMap::new(),
        capabilities: Vec::new(),
        agents: vec!["claude".into()],
        workspaces: Vec::new(),
        draining: false,
    }
}

fn dispatch_in(effects: Effects) -> Option<Dispatch> {
    effects
        .sends
        .into_iter()
        .find_map(|outgoing| match outgoing.send {
            Send::ToSession {
                message: Downstream::Dispatch(dispatch),
                ..
            } => Some(*dispatch),
            _ => None,
        })
}

fn is_refused(effects: &Effects) -> bool {
    effects.sends.iter().any(|outgoing| {
        let Send::ToSession { message, .. } = &outgoing.send else {
            return false;
        };
        matches!(message, Downstream::FrameRejected { .. })
    })
}

/// Every record as the store would have it, read again.
fn read_back(writes: &[Write]) {
    for write in writes {
        match write {
            Write::PutLive(record) | Write::PutDone(record) | Write::Reopen(record) => {
                let bytes = records::encode(&**record);
                let found: TaskRecord = records::decode("task", &bytes).unwrap();
                assert_eq!(found, **record);
            }
            Write::PutFence(record) => {
                let found: FenceRecord =
                    records::decode("fence", &records::encode(record)).unwrap();
                assert_eq!(found, *record);
            }
            _ => {}
        }
    }
}

/// Words as peers send them: ordinary, blank, long, odd.
fn word() -> impl Strategy<Value = String> {
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
        1 => word(),
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

fn asking() -> impl Strategy<Value = Body> {
    let permission = (input_id(), word(), word(), any::<bool>()).prop_map(
        |(input_id, tool_name, words, fits)| {
            let tool_input = Bytes::from(words);
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
    let question = (input_id(), word()).prop_map(|(input_id, question)| {
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

fn ending() -> impl Strategy<Value = Body> {
    let complete = (receipt(), word(), any::<u64>()).prop_map(|(receipt, result, final_offset)| {
        Body::Complete(v1::TaskComplete {
            receipt,
            result: result.into(),
            final_offset,
            ..v1::TaskComplete::default()
        })
    });
    let error = (receipt(), word(), word(), any::<Option<bool>>()).prop_map(
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
    let lifecycle = (-2..30i32, word(), word(), input_id()).prop_map(
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
    let rejected = (-1..20i32, word())
        .prop_map(|(code, message)| Body::Rejected(v1::TaskRejected { code, message }));
    prop_oneof![
        1 => Just(None),
        1 => Just(Some(Body::Accepted(v1::TaskAccepted::default()))),
        2 => Just(Some(Body::Started(v1::TaskStarted::default()))),
        8 => lifecycle.prop_map(Some),
        4 => asking().prop_map(Some),
        1 => rejected.prop_map(Some),
        2 => ending().prop_map(Some),
    ]
}

/// How a frame differs from an honest one.
#[derive(Clone, Debug)]
enum Twist {
    Honest,
    Number(u64),
    Token(Vec<u8>),
    Foreign(u8),
    /// Bytes on the wire that are not those which were sent.
    Bytes(Vec<(Index, u8)>),
}

fn twist() -> impl Strategy<Value = Twist> {
    prop_oneof![
        6 => Just(Twist::Honest),
        1 => (0..12u64).prop_map(Twist::Number),
        1 => proptest::collection::vec(any::<u8>(), 0..40).prop_map(Twist::Token),
        1 => (0..3u8).prop_map(Twist::Foreign),
        2 => proptest::collection::vec((any::<Index>(), 1..=255u8), 1..4).prop_map(Twist::Bytes),
    ]
}

/// None where the bytes are no message any more: the transport ends such a stream.
fn twisted(mut frame: v1::AttemptFrame, twist: Twist) -> Option<v1::AttemptFrame> {
    match twist {
        Twist::Honest => {}
        Twist::Number(number) => frame.control_seq = number,
        Twist::Token(bytes) => {
            frame.token = Some(v1::LeaseToken {
                value: bytes.into(),
            })
        }
        Twist::Foreign(which) => {
            let foreign = Uuid::from_u128(99).to_string();
            let re = frame.r#ref.get_or_insert_default();
            match which {
                0 => re.attempt_id = foreign,
                1 => re.task_id = foreign,
                _ => re.incarnation = foreign,
            }
        }
        Twist::Bytes(changes) => {
            let mut bytes = frame.encode_to_vec();
            let length = bytes.len();
            for (place, by) in changes {
                bytes[place.index(length)] ^= by;
            }
            return v1::AttemptFrame::decode(&bytes[..]).ok();
        }
    }
    Some(frame)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_a_daemon_sends_the_core_holds_and_what_is_refused_changes_nothing(
        frames in proptest::collection::vec((any_body(), twist()), 1..25),
    ) {
        let mut bench = Bench::new();
        bench.next_seq = 2;
        for (body, twist) in frames {
            let Some(frame) = twisted(bench.frame(body), twist) else {
                continue;
            };
            let Ok((seq, effects)) = bench.hear(frame) else {
                continue;
            };
            if is_refused(&effects) {
                prop_assert!(effects.writes.is_empty(), "refused, and wrote {:?}", effects.writes);
            } else if seq == bench.next_seq {
                bench.next_seq += 1;
            }
            read_back(&effects.writes);
            prop_assert_eq!(bench.core.waits_for_ever(), None);
            prop_assert!(bench.core.open_tasks() <= 1);
        }
    }
}

/// The property would hold of a decoder that refuses everything.
#[test]
fn an_honest_end_is_heard() {
    let mut bench = Bench::new();
    bench.next_seq = 2;
    let receipt = Some(v1::TerminationReceipt {
        exit_code: Some(0),
        group_empty: true,
        ..v1::TerminationReceipt::default()
    });
    let end = bench.frame(Some(Body::Complete(v1::TaskComplete {
        receipt,
        ..v1::TaskComplete::default()
    })));
    let (_, effects) = bench.hear(end).unwrap();
    assert!(matches!(effects.writes[..], [Write::PutDone(_), ..]));
    assert_eq!(bench.core.open_tasks(), 0);
}
