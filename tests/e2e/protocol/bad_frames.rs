//! Frames that decode but are invalid: each is refused with its machine code, nothing is
//! committed, and the stream continues.

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::relay_frame::Frame;
use baton_proto::v1::{
    AttemptFrame, AttemptRef, BlockDraft, CheckpointDraft, CutReason, FrameRejected,
    LifecyclePhase, OutputCut, PermissionRequest, Stream, TaskComplete, TaskError, TaskLifecycle,
    TaskState,
};
use baton_tests::{EmbeddedRelay, ScriptedAttempt, ScriptedDaemon, agent_task, receipt};
use bytes::Bytes;

const UNKNOWN_ID: &str = "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10";

/// A bad frame, its fault, and the expected code.
struct BadFrameCase {
    what: &'static str,
    code: &'static str,
    frame: AttemptFrame,
}

async fn wait_for_rejection(daemon: &mut ScriptedDaemon, what: &str) -> FrameRejected {
    daemon
        .expect_frame(&format!("FrameRejected for {what}"), |frame| {
            match &frame.frame {
                Some(Frame::Rejected(rejected)) => Some(rejected.clone()),
                _ => None,
            }
        })
        .await
}

fn frame_with_ref(attempt: &ScriptedAttempt, change: impl FnOnce(&mut AttemptRef)) -> AttemptFrame {
    let mut frame = attempt.frame(
        attempt.control_seq + 1,
        phase_body(LifecyclePhase::Streaming, ""),
    );
    change(frame.r#ref.as_mut().expect("the frame has a ref"));
    frame
}

fn phase_body(phase: LifecyclePhase, tool: &str) -> Body {
    Body::Lifecycle(TaskLifecycle {
        phase: phase.into(),
        tool_call_id: tool.to_owned(),
        tool_name: "bash".to_owned(),
        ..TaskLifecycle::default()
    })
}

fn output_body(offset: u64, bytes: usize) -> Body {
    Body::Stream(Stream {
        offset,
        chunk: Bytes::from(vec![b'x'; bytes]),
        ..Stream::default()
    })
}

fn bad_reference_cases(attempt: &ScriptedAttempt, foreign: &ScriptedAttempt) -> Vec<BadFrameCase> {
    let row = |what, code, frame| BadFrameCase { what, code, frame };
    let mut none = frame_with_ref(attempt, |_| {});
    none.r#ref = None;
    vec![
        row("no ref", "missing_ref", none),
        row(
            "empty ref",
            "malformed_id",
            frame_with_ref(attempt, |attempt_ref| *attempt_ref = AttemptRef::default()),
        ),
        row(
            "empty attempt id",
            "malformed_id",
            frame_with_ref(attempt, |attempt_ref| attempt_ref.attempt_id.clear()),
        ),
        row(
            "unknown attempt",
            "unknown_attempt",
            frame_with_ref(attempt, |attempt_ref| {
                attempt_ref.attempt_id = UNKNOWN_ID.into()
            }),
        ),
        row(
            "foreign attempt",
            "unknown_attempt",
            frame_with_ref(foreign, |_| {}),
        ),
        row(
            "another task",
            "unknown_attempt",
            frame_with_ref(attempt, |attempt_ref| {
                attempt_ref.task_id = UNKNOWN_ID.into()
            }),
        ),
        row(
            "another number",
            "unknown_attempt",
            frame_with_ref(attempt, |attempt_ref| attempt_ref.attempt_number += 1),
        ),
        row(
            "another incarnation",
            "unknown_attempt",
            frame_with_ref(attempt, |attempt_ref| {
                attempt_ref.incarnation = UNKNOWN_ID.into()
            }),
        ),
    ]
}

fn block_without_reason() -> Body {
    Body::Block(BlockDraft {
        reason: " \t".to_owned(),
        ..BlockDraft::default()
    })
}

/// Each case has the attempt's next number, because a refused control frame uses its number.
fn bad_body_cases(attempt: &ScriptedAttempt) -> Vec<BadFrameCase> {
    let mut seq = attempt.control_seq;
    let mut control = |what, code, body| {
        seq += 1;
        BadFrameCase {
            what,
            code,
            frame: attempt.frame(seq, body),
        }
    };
    vec![
        control(
            "blank tool id",
            "blank",
            phase_body(LifecyclePhase::ToolStarted, " "),
        ),
        control(
            "long tool id",
            "too_large",
            phase_body(LifecyclePhase::ToolStarted, &"t".repeat(257)),
        ),
        control(
            "unknown tool",
            "unknown_tool",
            phase_body(LifecyclePhase::ToolFinished, "never-started"),
        ),
        control(
            "blank failure code",
            "blank",
            Body::Error(TaskError::default()),
        ),
        control(
            "oversize result",
            "too_large",
            Body::Complete(TaskComplete {
                result: Bytes::from(vec![b'r'; 64 * 1024 + 1]),
                receipt: Some(receipt()),
                ..TaskComplete::default()
            }),
        ),
        control(
            "no input id",
            "malformed_id",
            Body::InputWithdrawn(Default::default()),
        ),
        control(
            "wrong digest",
            "digest_mismatch",
            Body::PermissionRequest(PermissionRequest {
                input_id: UNKNOWN_ID.to_owned(),
                tool_name: "bash".to_owned(),
                tool_input: Bytes::from_static(b"{}"),
                tool_input_sha256: Bytes::from_static(&[0; 32]),
                ..PermissionRequest::default()
            }),
        ),
        control(
            "accepted again",
            "wrong_order",
            Body::Accepted(Default::default()),
        ),
        control(
            "a checkpoint without summary",
            "blank",
            Body::Checkpoint(CheckpointDraft::default()),
        ),
        control("a block without a reason", "blank", block_without_reason()),
    ]
}

fn bad_number_cases(attempt: &ScriptedAttempt) -> Vec<BadFrameCase> {
    let cut = |length, reason: CutReason| {
        Body::OutputCut(OutputCut {
            offset: 0,
            length,
            reason: reason.into(),
            ..OutputCut::default()
        })
    };
    let row = |what, code, seq, body| BadFrameCase {
        what,
        code,
        frame: attempt.frame(seq, body),
    };
    vec![
        row(
            "control without number",
            "wrong_number",
            0,
            phase_body(LifecyclePhase::Streaming, ""),
        ),
        row(
            "output with number",
            "wrong_number",
            attempt.control_seq + 1,
            output_body(0, 1),
        ),
        row(
            "hole",
            "gap",
            u64::MAX,
            phase_body(LifecyclePhase::Streaming, ""),
        ),
        row(
            "oversize chunk",
            "too_large",
            0,
            output_body(0, 64 * 1024 + 1),
        ),
        row("output hole", "output_gap", 0, output_body(1_000, 1)),
        row(
            "cut of nothing",
            "bad_cut",
            0,
            cut(0, CutReason::DaemonOverflow),
        ),
        row(
            "cut without reason",
            "bad_cut",
            0,
            cut(5, CutReason::Unspecified),
        ),
        row(
            "cut past the end of numbers",
            "bad_cut",
            0,
            Body::OutputCut(OutputCut {
                offset: u64::MAX,
                length: 2,
                reason: CutReason::DaemonOverflow.into(),
                ..OutputCut::default()
            }),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_frame_is_refused_with_its_code_and_the_stream_continues() {
    let relay = EmbeddedRelay::start().await;
    let client = relay.admin();
    let mut other_daemon = relay.start_scripted_daemon(&["other"]).await;
    client.submit(agent_task("other")).await;
    let foreign = other_daemon.start_next_attempt().await;
    other_daemon.wait_until_acked(&foreign).await;
    let mut daemon = relay.start_scripted_daemon(&["careless"]).await;
    let task = client.submit(agent_task("careless")).await;
    let mut attempt = daemon.start_next_attempt().await;
    daemon.wait_until_acked(&attempt).await;

    let before = client.commit_seq().await;
    let mut rows = bad_reference_cases(&attempt, &foreign);
    rows.extend(
        bad_number_cases(&attempt)
            .into_iter()
            .filter(|row| row.what != "output with number"),
    );
    rows.extend(bad_body_cases(&attempt));
    for BadFrameCase { what, code, frame } in rows {
        let uses_number = frame.control_seq == attempt.control_seq + 1
            && frame.r#ref.as_ref() == Some(&attempt.attempt_ref);
        daemon
            .send(baton_proto::v1::daemon_frame::Frame::Attempt(frame))
            .await;
        let rejected = wait_for_rejection(&mut daemon, what).await;
        let error = rejected.error.expect("a refusal has an error");
        assert_eq!(error.code, code, "{what}: {error:?}");
        assert!(!error.message.is_empty(), "{what}");
        if code == "gap" {
            assert_eq!(
                rejected.expected_control_seq,
                Some(attempt.control_seq + 1),
                "{what}"
            );
        }
        if uses_number {
            attempt.control_seq += 1;
        }
        assert_eq!(
            client.commit_seq().await,
            before,
            "{what} committed something"
        );
    }

    // The same stream and attempt continue normally.
    attempt.send_output("fine").await;
    attempt.complete("unharmed").await;
    client
        .wait_for_state(&task.task_id, TaskState::Completed)
        .await;
    assert_eq!(client.get(&task.task_id).await.result.as_ref(), b"unharmed");
    assert_eq!(client.read_output_to_end(&task.task_id).await, b"fine");
}
