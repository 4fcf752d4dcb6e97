//! Frames of ended attempts. Late results are in `undelivered_results`.

use baton_proto::v1::TaskState;
use baton_tests::{EmbeddedRelay, agent_task};
#[tokio::test(flavor = "multi_thread")]
async fn a_late_frame_changes_nothing() {
    let relay = EmbeddedRelay::start().await;
    let mut daemon = relay.start_scripted_daemon(&["late"]).await;
    let client = relay.admin();
    let task = client.submit(agent_task("late")).await;
    let mut attempt = daemon.start_next_attempt().await;
    attempt.send_output("words").await;
    attempt.complete("the first").await;
    client
        .wait_for_state(&task.task_id, TaskState::Completed)
        .await;
    daemon.wait_until_acked(&attempt).await;
    let settled = client.get(&task.task_id).await;

    attempt.complete("the second").await;
    attempt.fail("agent_exit").await;
    attempt.send_output("more").await;
    // Run another task over the same stream, so that all earlier frames have been handled.
    let other = client.submit(agent_task("late")).await;
    let mut next = daemon.start_next_attempt().await;
    assert_eq!(next.attempt_ref.task_id, other.task_id);
    next.complete("").await;
    client
        .wait_for_state(&other.task_id, TaskState::Completed)
        .await;

    let after = client.get(&task.task_id).await;
    assert_eq!(
        (after.state(), after.result.as_ref()),
        (TaskState::Completed, &b"the first"[..])
    );
    assert_eq!(after.attempts[0].state(), settled.attempts[0].state());
    assert_eq!(client.read_output_to_end(&task.task_id).await, b"words");
}
