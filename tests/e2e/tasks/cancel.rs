//! Cancel: idempotent, confirmed, and with exactly one end of the attempt.

use baton_proto::v1::{
    AttemptState, CompletionContract, RequiredArtifact, TaskEventKind, TaskSpec, TaskState,
    Termination,
};
use baton_tests::{
    EmbeddedRelay, agent_task, command_task, marked_processes, wait_until_marked_gone,
};

use crate::STANDIN;

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_child_is_confirmed_dead_and_a_second_cancel_is_a_no_op() {
    let relay = EmbeddedRelay::start().await;
    let _daemon = relay.start_daemon().await;
    let client = relay.admin();
    let task = client
        .submit(command_task(STANDIN, &["print", "1", "pause"], "cancel"))
        .await;
    let mut watch = client.watch(&task.task_id).await;
    watch.wait_for_output().await;
    assert!(!marked_processes("cancel").is_empty());

    let first = client.cancel(&task.task_id).await;
    assert!(!first.already_finished);
    let events = watch.collect_to_end().await;
    wait_until_marked_gone("cancel").await;
    let canceled = client.get(&task.task_id).await;
    assert_eq!(canceled.state(), TaskState::Canceled);
    assert_eq!(canceled.attempts[0].state(), AttemptState::Canceled);
    assert_eq!(canceled.attempts[0].termination(), Termination::Confirmed);
    let steps = canceled.cancel.clone().expect("the cancel is shown");
    assert!(steps.requested_at.is_some() && steps.delivered_at.is_some());
    assert!(steps.confirmed_at.is_some());
    let ends = events
        .iter()
        .filter(|event| event.kind() == TaskEventKind::Ended)
        .count();
    assert_eq!(ends, 1, "{events:#?}");

    let before = client.commit_seq().await;
    let second = client.cancel(&task.task_id).await;
    assert!(second.already_finished);
    assert_eq!(second.task.as_ref(), Some(&canceled));
    assert_eq!(client.commit_seq().await, before);
}

/// The check of a very large required file is still running when the child has already exited.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_stops_the_check_of_required_files() {
    let relay = EmbeddedRelay::start().await;
    let mut daemon = relay.start_daemon().await;
    let client = relay.admin();
    let huge_file = RequiredArtifact {
        path: "endless".to_owned(),
        sha256: "0".repeat(64),
        ..RequiredArtifact::default()
    };
    let spec = TaskSpec {
        contract: Some(CompletionContract {
            required_artifacts: vec![huge_file],
            ..CompletionContract::default()
        }),
        ..command_task("sh", &["-c", "truncate -s 1T endless; echo made"], "look")
    };
    let task = client.submit(spec).await;
    let mut watch = client.watch(&task.task_id).await;
    watch.wait_for_output().await;
    wait_until_marked_gone("look").await;
    daemon
        .wait_for_status("the slot to be in use", |status| status.running == 1)
        .await;

    client.cancel(&task.task_id).await;
    watch.collect_to_end().await;
    let canceled = client.get(&task.task_id).await;
    assert_eq!(canceled.state(), TaskState::Canceled);
    let attempt = &canceled.attempts[0];
    assert_eq!(attempt.state(), AttemptState::Canceled);
    assert_eq!(attempt.termination(), Termination::Confirmed);
    assert!(attempt.artifacts.is_empty(), "{attempt:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_racing_a_completion_gives_exactly_one_end() {
    let relay = EmbeddedRelay::start().await;
    let mut daemon = relay.start_scripted_daemon(&["race"]).await;
    let client = relay.admin();
    let (mut completed, mut canceled) = (0, 0);
    for round in 0..40 {
        let task = client.submit(agent_task("race")).await;
        let mut attempt = daemon.start_next_attempt().await;
        let finish = async {
            attempt.complete("done").await;
            // A daemon that gets Cancel after its child's end still answers it.
            attempt.send_canceled().await;
        };
        let answer = match round % 4 {
            // The result of the ended child is sent after the cancel was committed.
            0 => {
                let answer = client.cancel(&task.task_id).await;
                finish.await;
                answer
            }
            1 => tokio::join!(client.cancel(&task.task_id), finish).0,
            _ => tokio::join!(finish, client.cancel(&task.task_id)).1,
        };
        let events = client.watch(&task.task_id).await.collect_to_end().await;
        let ends: Vec<_> = events
            .iter()
            .filter(|event| event.kind() == TaskEventKind::Ended)
            .map(|event| event.task_state())
            .collect();
        match ends.as_slice() {
            [TaskState::Completed] => completed += 1,
            [TaskState::Canceled] => canceled += 1,
            other => panic!("round {round}: expected one end, got {other:?}: {events:#?}"),
        }
        let settled = client.get(&task.task_id).await;
        assert_eq!(settled.state(), ends[0], "the first committed end stays");
        let completed_first = ends[0] == TaskState::Completed;
        assert_eq!(
            answer.already_finished, completed_first,
            "the answer to Cancel matches the outcome"
        );
        daemon.stop_renewing(&attempt);
    }
    assert!(completed > 0 && canceled > 0, "both outcomes occurred");
    println!("cancel against completion: {completed} completed, {canceled} canceled");
}
