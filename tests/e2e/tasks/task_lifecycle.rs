//! One task from submission to its end, with a real daemon and with a scripted one.

use baton_proto::v1::{
    AttemptState, LifecyclePhase, OutputKind, ReadOutputRequest, RetryPolicy, RetryTaskRequest,
    TaskEventKind, TaskState, Termination, read_output_response::Item,
};
use baton_tests::{
    EmbeddedRelay, TaskWatch, TestClient, agent_task, command_task, wait_until_marked_gone,
    wait_within,
};

use crate::STANDIN;

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_to_completion_with_its_prompt_output_and_phases() {
    let relay = EmbeddedRelay::start().await;
    let _daemon = relay.start_daemon().await;
    let client = relay.admin();
    let mut spec = command_task(STANDIN, &["read", "print", "3"], "whole");
    spec.prompt = "hello ✓".to_owned();
    let task = client.submit(spec).await;
    let events = client.watch(&task.task_id).await.collect_to_end().await;

    let phases: Vec<LifecyclePhase> = events
        .iter()
        .filter(|event| event.kind() == TaskEventKind::Phase)
        .map(|event| event.phase())
        .collect();
    let expected = [
        LifecyclePhase::Started,
        LifecyclePhase::AgentStarted,
        LifecyclePhase::PromptWritten,
        LifecyclePhase::FirstVisibleEventSeen,
    ];
    let mut seen = phases.iter();
    for phase in expected {
        assert!(
            seen.any(|seen| *seen == phase),
            "{phase:?} in order in {phases:?}"
        );
    }
    let done = client.get(&task.task_id).await;
    assert_eq!(done.state(), TaskState::Completed);
    let [attempt] = done.attempts.as_slice() else {
        panic!("one attempt: {done:?}");
    };
    assert_eq!(attempt.state(), AttemptState::Completed);
    assert_eq!(attempt.exit_code, Some(0));
    assert_eq!(attempt.termination(), Termination::Confirmed);
    let output = client.read_output_to_end(&task.task_id).await;
    assert_eq!(
        String::from_utf8_lossy(&output),
        "hello ✓\nline 1\nline 2\nline 3\n"
    );
    wait_until_marked_gone("whole").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_command_is_retried_and_keeps_its_budget_and_codes() {
    let relay = EmbeddedRelay::start().await;
    let _daemon = relay.start_daemon().await;
    let client = relay.admin();
    let once = tempfile::tempdir().unwrap();
    let flag = once.path().join("ran");
    let mut spec = command_task(
        STANDIN,
        &["fail-once", &flag.display().to_string()],
        "again",
    );
    spec.retry = short_retry_policy();
    let task = client.submit(spec).await;
    client
        .wait_for_state(&task.task_id, TaskState::Completed)
        .await;
    let done = client.get(&task.task_id).await;
    let ends: Vec<_> = done
        .attempts
        .iter()
        .map(|attempt| {
            (
                attempt.attempt_number,
                attempt.state(),
                attempt.failure_code.as_str(),
            )
        })
        .collect();
    assert_eq!(
        ends,
        [
            (1, AttemptState::Failed, "agent_exit"),
            (2, AttemptState::Completed, "")
        ]
    );
    assert_eq!(done.attempts[0].exit_code, Some(9));
    assert!(done.attempts[0].retryable && done.attempts[0].retry_safe);

    // The same failure twice in a row stops the retries: a third would only waste a slot.
    let mut spec = command_task(STANDIN, &["exit", "3"], "never");
    spec.retry = short_retry_policy();
    let task = client.submit(spec).await;
    client
        .wait_for_state(&task.task_id, TaskState::Failed)
        .await;
    let failed = client.get(&task.task_id).await;
    assert_eq!(
        (failed.attempts.len(), failed.retry_stop.as_str()),
        (2, "repeated_failure")
    );

    retry_task(client, &task.task_id).await;
}

/// A retry policy with a short backoff.
fn short_retry_policy() -> Option<RetryPolicy> {
    Some(RetryPolicy {
        backoff_initial_ms: Some(10),
        ..RetryPolicy::default()
    })
}

/// An operator may still request another attempt.
async fn retry_task(client: &TestClient, task_id: &str) {
    let request = RetryTaskRequest {
        task_id: task_id.to_owned(),
        reason: "the disk is repaired".to_owned(),
        ..RetryTaskRequest::default()
    };
    let mut operator = client.operator();
    let again = wait_within("a retry", operator.retry_task(request)).await;
    let again = again
        .expect("a failed task may be retried")
        .into_inner()
        .task;
    let again = again.expect("a retry answers with the task");
    let newest = again.attempts.last().map(|attempt| attempt.attempt_number);
    assert_eq!(newest, Some(3));
    let watch = TaskWatch::open(client, task_id, again.revision).await;
    watch
        .expect("the task can be watched")
        .wait_for_state(TaskState::Failed)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_gives_history_then_live_events_without_gap_or_duplicate() {
    let relay = EmbeddedRelay::start().await;
    let mut daemon = relay.start_scripted_daemon(&["watched"]).await;
    let client = relay.admin();
    let task = client.submit(agent_task("watched")).await;
    let mut attempt = daemon.start_next_attempt().await;
    daemon.wait_until_acked(&attempt).await;

    let mut late = client.watch(&task.task_id).await;
    late.wait_for_event("prompt_written", |event| {
        event.phase() == LifecyclePhase::PromptWritten
    })
    .await;
    let middle = late.events.last().unwrap().revision;
    let from_middle = TaskWatch::open(client, &task.task_id, middle)
        .await
        .unwrap();
    attempt.send_output("words").await;
    attempt.complete("the result").await;
    let all = late.collect_to_end().await;
    let tail = from_middle.collect_to_end().await;
    assert_eq!(
        all[usize::try_from(middle).unwrap()..],
        tail,
        "both watches get the same events"
    );
    let end = all.last().unwrap();
    assert_eq!(
        (end.kind(), end.task_state()),
        (TaskEventKind::Ended, TaskState::Completed)
    );

    // A watch opened after the end gets the whole history and then ends.
    let after = client.watch(&task.task_id).await.collect_to_end().await;
    assert_eq!(after, all);
    assert_eq!(
        client.get(&task.task_id).await.result.as_ref(),
        b"the result"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_followed_live_and_read_again_from_an_offset() {
    let relay = EmbeddedRelay::start().await;
    let mut daemon = relay.start_scripted_daemon(&["talks"]).await;
    let client = relay.admin();
    let task = client.submit(agent_task("talks")).await;
    let mut attempt = daemon.start_next_attempt().await;
    attempt.send_output("first ").await;
    let request = ReadOutputRequest {
        task_id: task.task_id.clone(),
        follow: true,
        ..ReadOutputRequest::default()
    };
    let mut followed = client
        .tasks()
        .read_output(request.clone())
        .await
        .unwrap()
        .into_inner();
    let first = wait_within("live output", followed.message())
        .await
        .unwrap()
        .unwrap();
    let Some(Item::Chunk(chunk)) = first.item else {
        panic!("a chunk comes first");
    };
    assert_eq!(
        (chunk.data.as_ref(), chunk.kind()),
        (&b"first "[..], OutputKind::Text)
    );
    attempt.send_output("second").await;
    attempt.complete("").await;
    let mut rest = Vec::new();
    let mut complete = false;
    while let Some(piece) = wait_within("more output", followed.message())
        .await
        .unwrap()
    {
        match piece.item {
            Some(Item::Chunk(chunk)) => rest.extend_from_slice(&chunk.data),
            Some(Item::End(end)) => complete = end.complete,
            Some(Item::Cut(_)) | None => panic!("nothing was cut"),
        }
    }
    assert_eq!((rest.as_slice(), complete), (&b"second"[..], true));

    let from_middle = ReadOutputRequest {
        from_offset: 3,
        follow: false,
        ..request
    };
    let mut again = client
        .tasks()
        .read_output(from_middle)
        .await
        .unwrap()
        .into_inner();
    let mut bytes = Vec::new();
    while let Some(piece) = wait_within("stored output", again.message()).await.unwrap() {
        if let Some(Item::Chunk(chunk)) = piece.item {
            bytes.extend_from_slice(&chunk.data);
        }
    }
    assert_eq!(bytes, b"st second");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_output_arrives_complete_and_in_order() {
    let relay = EmbeddedRelay::start().await;
    let _daemon = relay.start_daemon().await;
    let client = relay.admin();
    let task = client
        .submit(command_task(STANDIN, &["flood", "2097152"], "flood"))
        .await;
    let output = client.read_output_to_end(&task.task_id).await;
    assert_eq!(output.len(), 2 * 1024 * 1024);
    let whole = output
        .chunks(1024)
        .all(|line| line[..1023].iter().all(|b| *b == b'x'));
    assert!(whole && output.iter().filter(|b| **b == b'\n').count() == 2048);
    client
        .wait_for_state(&task.task_id, TaskState::Completed)
        .await;
}
