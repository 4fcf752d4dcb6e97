//! Wire compatibility: presence of fields, unknown fields of newer peers, secrets, trace
//! context.

use baton_proto::v1::{
    AttemptFrame, DaemonFrame, DeadlineProfile, Dispatch, ErrorDetail, LeaseToken, LifecyclePhase,
    Secret, SubmitRequest, Task, TaskLifecycle, TaskSpec, daemon_frame,
};
use baton_proto::{
    TraceParent, pack_error_detail, timestamp_from_ms, timestamp_to_ms, unpack_error_detail,
};
use prost::Message;

fn round_trip<M: Message + Default>(message: &M) -> M {
    M::decode(message.encode_to_vec().as_slice()).expect("a message decodes what it encoded")
}

#[test]
fn absent_empty_and_partial_profiles_stay_distinct() {
    let partial = DeadlineProfile {
        stream_idle_ms: Some(120_000),
        tool_idle_ms: Some(0),
        ..Default::default()
    };
    for profile in [None, Some(DeadlineProfile::default()), Some(partial)] {
        let spec = TaskSpec {
            profile,
            queue_ms: Some(5),
            ..Default::default()
        };
        let sent = SubmitRequest {
            spec: Some(spec),
            ..Default::default()
        };
        assert_eq!(round_trip(&sent).spec.unwrap().profile, profile);
        let shown = Task {
            requested_profile: profile,
            effective_profile: profile,
            ..Default::default()
        };
        assert_eq!(round_trip(&shown), shown);
        let offered = Dispatch {
            profile,
            ..Default::default()
        };
        assert_eq!(round_trip(&offered).profile, profile);
    }
}

#[test]
fn absent_empty_and_partial_profiles_differ_in_json() {
    let shown = |requested_profile| {
        baton_proto::to_json(&Task {
            requested_profile,
            ..Default::default()
        })
    };
    let zero = DeadlineProfile {
        cleanup_term_ms: Some(0),
        ..Default::default()
    };
    assert!(shown(None).get("requestedProfile").is_none());
    assert_eq!(
        shown(Some(DeadlineProfile::default()))["requestedProfile"],
        serde_json::json!({})
    );
    assert_eq!(
        shown(Some(zero))["requestedProfile"],
        serde_json::json!({"cleanupTermMs": 0})
    );
}

/// A message of a later version: a known frame with an unknown field and an unknown enum
/// number.
#[test]
fn unknown_fields_and_enum_numbers_are_tolerated() {
    let lifecycle = TaskLifecycle {
        phase: 999,
        tool_name: "shell".into(),
        ..Default::default()
    };
    let mut bytes = lifecycle.encode_to_vec();
    prost::encoding::string::encode(500, &"from the future".to_owned(), &mut bytes);
    let read = TaskLifecycle::decode(bytes.as_slice()).unwrap();
    assert_eq!((read.phase, read.tool_name.as_str()), (999, "shell"));
    assert_eq!(read.phase(), LifecyclePhase::Unspecified);
    assert_eq!(baton_proto::to_json(&read)["phase"], 999);
}

#[test]
fn unknown_oneof_arms_leave_the_frame_readable() {
    let mut link = Vec::new();
    prost::encoding::bytes::encode(99, &b"new kind of frame".to_vec(), &mut link);
    assert_eq!(DaemonFrame::decode(link.as_slice()).unwrap().frame, None);

    let mut attempt = AttemptFrame {
        control_seq: 7,
        ..Default::default()
    }
    .encode_to_vec();
    prost::encoding::bytes::encode(99, &b"new kind of body".to_vec(), &mut attempt);
    let read = AttemptFrame::decode(attempt.as_slice()).unwrap();
    assert_eq!((read.control_seq, read.body.is_none()), (7, true));
    let frame = DaemonFrame {
        frame: Some(daemon_frame::Frame::Attempt(read)),
    };
    assert_eq!(round_trip(&frame), frame);
}

#[test]
fn malformed_bytes_are_an_error_without_a_panic() {
    let mut bytes = Vec::new();
    prost::encoding::bytes::encode(3, &vec![0xff, 0xfe], &mut bytes);
    assert!(
        TaskLifecycle::decode(bytes.as_slice()).is_err(),
        "a string that is not UTF-8"
    );
    assert!(
        DaemonFrame::decode([0x0a, 0x7f].as_slice()).is_err(),
        "a frame cut short"
    );
}

#[test]
fn secrets_are_hidden_in_debug_output() {
    let token = LeaseToken {
        value: b"hush-hush-hush-hush-hush-hush-32".as_slice().into(),
    };
    let offered = Dispatch {
        token: Some(token.clone()),
        ..Default::default()
    };
    let secret = Secret {
        value: "btn_hush".into(),
    };
    for shown in [
        format!("{offered:?}"),
        format!("{token:?}"),
        format!("{secret:?}"),
    ] {
        assert!(shown.contains("redacted"), "{shown}");
        assert!(
            !shown.contains("hush") && !shown.contains("104, 117"),
            "{shown}"
        );
    }
    assert_eq!(baton_proto::to_json(&offered)["token"], "redacted");
}

#[test]
fn error_detail_survives_a_status() {
    let detail = ErrorDetail {
        code: "invalid_input".into(),
        field: "spec.agent".into(),
        ..Default::default()
    };
    let packed = pack_error_detail(tonic::Code::InvalidArgument, "agent is blank", &detail);
    let status =
        tonic::Status::with_details(tonic::Code::InvalidArgument, "agent is blank", packed);
    assert_eq!(unpack_error_detail(&status), Some(detail));
    assert_eq!(
        unpack_error_detail(&tonic::Status::internal("no detail")),
        None
    );
}

#[test]
fn trace_parent_is_read_strictly_and_written_back() {
    let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let parsed = TraceParent::parse(text).unwrap();
    assert_eq!(parsed.to_string(), text);
    assert!(parsed.sampled());
    assert_eq!(
        parsed.with_span([1; 8]).unwrap().trace_id(),
        parsed.trace_id()
    );
    let newer = format!("cc-{}-what-ever", &text[3..]);
    assert_eq!(
        TraceParent::parse(&newer),
        Some(parsed),
        "a later version may carry more"
    );
    let invalid = [
        "",
        "00",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319\u{e9}-b7ad6b7169203331-01",
    ];
    assert!(
        invalid
            .iter()
            .all(|text| TraceParent::parse(text).is_none())
    );
}

#[test]
fn timestamps_keep_milliseconds() {
    for ms in [0, 1, 1_789_000_000_123] {
        assert_eq!(timestamp_to_ms(&timestamp_from_ms(ms)), ms);
    }
    assert_eq!(
        timestamp_to_ms(&prost_types::Timestamp {
            seconds: -5,
            nanos: -1
        }),
        0
    );
}
