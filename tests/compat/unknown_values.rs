//! Values of a newer daemon whose rejection would lose data.

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::read_output_response::Item;
use baton_proto::v1::relay_frame::Frame;
use baton_proto::v1::{CutReason, OutputCut, ReadOutputRequest, TaskState};
use baton_tests::{EmbeddedRelay, TestClient, agent_task, wait_within};

use crate::next_version::UNKNOWN_ENUM_VALUE;

async fn read_cuts(client: &TestClient, task_id: &str) -> Vec<(u64, CutReason)> {
    let request = ReadOutputRequest {
        task_id: task_id.to_owned(),
        ..ReadOutputRequest::default()
    };
    let opened = client.tasks().read_output(request).await;
    let mut pieces = opened.expect("output can be read").into_inner();
    let mut cuts = Vec::new();
    while let Some(piece) = wait_within("output", pieces.message())
        .await
        .expect("the output stream does not fail")
    {
        if let Some(Item::Cut(cut)) = piece.item {
            cuts.push((cut.length, cut.reason()));
        }
    }
    cuts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_with_an_unknown_reason_is_still_recorded() {
    let relay = EmbeddedRelay::start().await;
    let mut daemon = relay.start_scripted_daemon(&["newer"]).await;
    let client = relay.admin();
    let task = client.submit(agent_task("newer")).await;
    let mut attempt = daemon.start_next_attempt().await;
    attempt.send_output("before ").await;
    let cut = OutputCut {
        offset: attempt.offset,
        length: 5,
        reason: UNKNOWN_ENUM_VALUE,
        after_control_seq: attempt.control_seq,
        ..OutputCut::default()
    };
    attempt
        .send_frame(attempt.frame(0, Body::OutputCut(cut)))
        .await;
    attempt.offset += 5;
    // A body of the next version without a control number, like output.
    let mut unknown = attempt.frame(0, Body::OutputCut(OutputCut::default()));
    unknown.body = None;
    attempt.send_frame(unknown).await;
    attempt.send_output(" after").await;
    attempt.complete("done").await;
    client
        .wait_for_state(&task.task_id, TaskState::Completed)
        .await;
    assert_eq!(
        read_cuts(client, &task.task_id).await,
        [(5, CutReason::Unspecified)]
    );
    let refused = daemon
        .collect_unread_frames()
        .into_iter()
        .find(|frame| matches!(frame.frame, Some(Frame::Rejected(_))));
    assert!(refused.is_none(), "{refused:?}");
    assert_eq!(relay.counter_value("unknown_values"), 1);
    assert_eq!(relay.counter_value("unknown_frames"), 1);
}
