//! Frames of ended attempts, and late results.

use baton_proto::v1::attempt_command::Body;
use baton_proto::v1::read_output_response::Item;
use baton_proto::v1::relay_frame::Frame;
use baton_proto::v1::{
    AttemptState, CutReason, Hello, LifecyclePhase, ReadOutputRequest, TaskEventKind, TaskState,
};
use baton_relay::clock::RelayClock;
use baton_tests::{
    EmbeddedRelay, ScriptedAttempt, ScriptedDaemon, TestClient, agent_task, wait_within,
};

/// Longer than any lease of these tests with its grace.
const LEASE_AND_GRACE_MS: u64 = 60_000;
const A_DAY_MS: i64 = 24 * 60 * 60 * 1_000;

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

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_missing_from_hello_is_lost_and_its_frames_are_ignored() {
    let relay = EmbeddedRelay::start().await;
    let mut daemon = relay.start_scripted_daemon(&["forgets"]).await;
    let client = relay.admin();
    let task = client.submit(agent_task("forgets")).await;
    let attempt = daemon.start_next_attempt().await;
    daemon.wait_until_acked(&attempt).await;
    // A restarted process of the same daemon that lists no attempt.
    let hello = Hello {
        instance_id: uuid::Uuid::now_v7().to_string(),
        ..daemon.hello.clone()
    };
    let link = daemon.client().clone();
    let mut again = ScriptedDaemon::connect(&link, hello).await;
    let mut watch = client.watch(&task.task_id).await;
    let end = watch.wait_for_kind(TaskEventKind::Ended).await;
    assert_eq!(
        (end.state(), end.failure_code.as_str()),
        (AttemptState::Lost, "daemon_lost_attempt")
    );
    // Its prompt may have had effects, so the task is parked for a person.
    watch.wait_for_state(TaskState::NeedsAttention).await;
    drop(daemon.wait_for_stream_end().await);

    let settled = client.get(&task.task_id).await;
    let mut lost = attempt.clone();
    lost.within_lease = false;
    let other = client.submit(agent_task("forgets")).await;
    let mut next = again.start_next_attempt().await;
    assert_eq!(next.attempt_ref.task_id, other.task_id);
    // A frame of the lost attempt arrives over the new stream.
    let frame = lost.frame(lost.control_seq + 1, lost.completion_body("a late result"));
    next.send_frame(frame).await;
    next.complete("").await;
    client
        .wait_for_state(&other.task_id, TaskState::Completed)
        .await;
    let after = client.get(&task.task_id).await;
    assert_eq!(after.state(), settled.state());
    assert!(after.result.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_result_observed_within_its_lease_is_adopted() {
    let (clock, control) = RelayClock::controlled();
    let relay = EmbeddedRelay::start_with(|config| config.clock = clock).await;
    let mut daemon = relay.start_scripted_daemon(&["adopted"]).await;
    let client = relay.admin();
    let task = client.submit(agent_task("adopted")).await;
    let mut attempt = daemon.start_next_attempt().await;
    daemon.wait_until_acked(&attempt).await;
    let (link, hello) = (daemon.client().clone(), daemon.hello.clone());
    drop(daemon);
    attempt.detach_stream();
    relay.wait_until_offline(&hello.daemon_id).await;
    control.jump(LEASE_AND_GRACE_MS);
    let mut watch = client.watch(&task.task_id).await;
    let end = watch.wait_for_kind(TaskEventKind::Ended).await;
    assert_eq!(
        (end.state(), end.failure_code.as_str()),
        (AttemptState::Lost, "lease_expired")
    );
    watch.wait_for_state(TaskState::NeedsAttention).await;

    // The attempt ended within its lease, but its daemon was disconnected.
    let _daemon = ScriptedDaemon::reconnect_with_finished(&link, hello, &mut attempt).await;
    attempt.complete("in time").await;
    client
        .wait_for_state(&task.task_id, TaskState::Completed)
        .await;
    let done = client.get(&task.task_id).await;
    assert_eq!(done.result.as_ref(), b"in time");
    assert!(done.attempts[0].adopted_late);
}

/// An attempt with some durable output whose lease expired while its daemon was disconnected.
async fn lose_attempt_with_output(
    relay: &EmbeddedRelay,
    control: &baton_relay::clock::ClockControl,
    agent: &str,
) -> (TestClient, Hello, ScriptedAttempt) {
    let mut daemon = relay.start_scripted_daemon(&[agent]).await;
    let client = relay.admin();
    let task = client.submit(agent_task(agent)).await;
    let mut attempt = daemon.start_next_attempt().await;
    attempt.send_output("before ").await;
    daemon.wait_until_acked(&attempt).await;
    let (link, hello) = (daemon.client().clone(), daemon.hello.clone());
    drop(daemon);
    attempt.detach_stream();
    relay.wait_until_offline(&hello.daemon_id).await;
    control.jump(LEASE_AND_GRACE_MS);
    let mut watch = client.watch(&task.task_id).await;
    watch.wait_for_state(TaskState::NeedsAttention).await;
    (link, hello, attempt)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_requested_replay_is_accepted_in_full_and_its_result_adopted() {
    let (clock, control) = RelayClock::controlled();
    let relay = EmbeddedRelay::start_with(|config| config.clock = clock).await;
    let (link, hello, mut attempt) = lose_attempt_with_output(&relay, &control, "replays").await;
    let mut daemon = ScriptedDaemon::reconnect_with_finished(&link, hello, &mut attempt).await;
    attempt
        .send_phase(LifecyclePhase::FirstVisibleEventSeen)
        .await;
    attempt
        .send_tool_phase(LifecyclePhase::ToolStarted, "t1")
        .await;
    attempt.send_output("after").await;
    attempt.complete("whole").await;
    let (client, task) = (relay.admin(), attempt.attempt_ref.task_id.clone());
    client.wait_for_state(&task, TaskState::Completed).await;
    daemon.wait_until_acked(&attempt).await;
    assert_eq!(client.read_output_to_end(&task).await, b"before after");
    let frames = daemon.collect_unread_frames();
    let refusal = frames.iter().find(|frame| {
        let abandons = |body: &Option<Body>| matches!(body, Some(Body::Abandon(_)));
        match &frame.frame {
            Some(Frame::Rejected(_)) => true,
            Some(Frame::Attempt(command)) => abandons(&command.body),
            Some(_) | None => false,
        }
    });
    assert!(
        refusal.is_none(),
        "Welcome requested the whole replay: {refusal:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_output_is_a_recorded_cut_and_does_not_block_the_result() {
    let (clock, control) = RelayClock::controlled();
    let relay = EmbeddedRelay::start_with(|config| config.clock = clock).await;
    let (link, hello, mut attempt) = lose_attempt_with_output(&relay, &control, "forgot").await;
    let _daemon = ScriptedDaemon::reconnect_with_finished(&link, hello, &mut attempt).await;
    let durable_offset = attempt.offset;
    attempt.offset += 100;
    attempt.complete("all the same").await;
    let (client, task) = (relay.admin(), attempt.attempt_ref.task_id.clone());
    client.wait_for_state(&task, TaskState::Completed).await;
    let request = ReadOutputRequest {
        task_id: task,
        from_offset: durable_offset,
        ..ReadOutputRequest::default()
    };
    let mut tasks = client.tasks();
    let mut pieces = tasks.read_output(request).await.unwrap().into_inner();
    let first = wait_within("the cut", pieces.message()).await.unwrap();
    let Some(Item::Cut(cut)) = first.and_then(|piece| piece.item) else {
        panic!("the first item is the cut");
    };
    assert_eq!(
        (cut.offset, cut.length, cut.reason()),
        (durable_offset, 100, CutReason::NotReceived)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_jump_ends_no_attempt() {
    let (clock, control) = RelayClock::controlled();
    let relay = EmbeddedRelay::start_with(|config| config.clock = clock).await;
    let mut daemon = relay.start_scripted_daemon(&["steady"]).await;
    let client = relay.admin();
    let task = client.submit(agent_task("steady")).await;
    let mut attempt = daemon.start_next_attempt().await;
    daemon.wait_until_acked(&attempt).await;
    for jump in [A_DAY_MS, -2 * A_DAY_MS] {
        control.jump_wall(jump);
        // Run another whole task, so that the relay has read its clocks again.
        let other = client.submit(agent_task("steady")).await;
        let mut next = daemon.start_next_attempt().await;
        next.complete("").await;
        client
            .wait_for_state(&other.task_id, TaskState::Completed)
            .await;
        assert_eq!(client.get(&task.task_id).await.state(), TaskState::Running);
    }
    attempt.complete("unharmed").await;
    client
        .wait_for_state(&task.task_id, TaskState::Completed)
        .await;
}
