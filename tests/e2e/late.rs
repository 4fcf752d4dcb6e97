//! Frames of an attempt that is over, and results that come late.

use baton_proto::v1::{AttemptState, Hello, TaskEventKind, TaskState};
use baton_tests::{Relay, ScriptedDaemon, for_agent};

#[tokio::test(flavor = "multi_thread")]
async fn a_late_frame_changes_nothing() {
    let relay = Relay::start().await;
    let mut daemon = relay.scripted(&["late"]).await;
    let client = relay.admin();
    let task = client.submit(for_agent("late")).await;
    let mut attempt = daemon.running().await;
    attempt.say("words").await;
    attempt.complete("the first").await;
    client
        .until_state(&task.task_id, TaskState::Completed)
        .await;
    daemon.acked(&attempt).await;
    let settled = client.get(&task.task_id).await;

    attempt.complete("the second").await;
    attempt.fail("agent_exit").await;
    attempt.say("more").await;
    // Another task through the same stream: everything before it has been handled.
    let other = client.submit(for_agent("late")).await;
    let mut next = daemon.running().await;
    assert_eq!(next.re.task_id, other.task_id);
    next.complete("").await;
    client
        .until_state(&other.task_id, TaskState::Completed)
        .await;

    let after = client.get(&task.task_id).await;
    assert_eq!(
        (after.state(), after.result.as_ref()),
        (TaskState::Completed, &b"the first"[..])
    );
    assert_eq!(after.attempts[0].state(), settled.attempts[0].state());
    assert_eq!(client.output(&task.task_id).await, b"words");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_missing_from_hello_is_lost_and_its_old_frames_change_nothing() {
    let relay = Relay::start().await;
    let mut daemon = relay.scripted(&["forgets"]).await;
    let client = relay.admin();
    let task = client.submit(for_agent("forgets")).await;
    let attempt = daemon.running().await;
    daemon.acked(&attempt).await;
    // A restarted process of the same daemon that knows of no attempt.
    let hello = Hello {
        instance_id: uuid::Uuid::now_v7().to_string(),
        ..daemon.hello.clone()
    };
    let link = daemon.client().clone();
    let mut again = ScriptedDaemon::connect(&link, hello).await;
    let mut watch = client.watch(&task.task_id).await;
    let end = watch.until_kind(TaskEventKind::Ended).await;
    assert_eq!(
        (end.state(), end.failure_code.as_str()),
        (AttemptState::Lost, "daemon_lost_attempt")
    );
    // Its prompt may have had effects, so a person decides.
    watch.until_state(TaskState::NeedsAttention).await;
    drop(daemon.ended().await);

    let settled = client.get(&task.task_id).await;
    let mut ghost = attempt.clone();
    ghost.within_lease = false;
    let other = client.submit(for_agent("forgets")).await;
    let mut next = again.running().await;
    assert_eq!(next.re.task_id, other.task_id);
    // The ghost speaks over the new stream.
    let frame = ghost.frame(ghost.control_seq + 1, ghost.completion("a ghost's result"));
    next.send_frame(frame).await;
    next.complete("").await;
    client
        .until_state(&other.task_id, TaskState::Completed)
        .await;
    let after = client.get(&task.task_id).await;
    assert_eq!(after.state(), settled.state());
    assert!(after.result.is_empty());
}
