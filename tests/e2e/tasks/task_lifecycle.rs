//! One task from submission to its end with a real daemon.

use baton_proto::v1::{AttemptState, LifecyclePhase, TaskEventKind, TaskState, Termination};
use baton_tests::{EmbeddedRelay, command_task, wait_until_marked_gone};

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
