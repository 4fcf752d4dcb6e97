//! Admission of tasks and their placement on daemons, over gRPC. The single placement rules are
//! tested in the core.

use baton_proto::v1::relay_frame::Frame;
use baton_proto::v1::{
    DaemonState, DispatchPolicy, DrainDaemonRequest, Placement, SubmitRequest, TaskSpec, TaskState,
    UndrainDaemonRequest,
};
use baton_tests::{EmbeddedRelay, ScriptedDaemon, agent_task, error_code, hello, wait_within};
use tonic::Code;

fn keyed_request(spec: TaskSpec, key: &str) -> SubmitRequest {
    SubmitRequest {
        spec: Some(spec),
        idempotency_key: key.to_owned(),
        ..SubmitRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fail_fast_without_a_daemon_answers_unavailable_and_stores_nothing() {
    let relay = EmbeddedRelay::start().await;
    let spec = TaskSpec {
        dispatch_policy: DispatchPolicy::FailFast.into(),
        ..agent_task("hurry")
    };
    let before = relay.admin().commit_seq().await;
    let refused = relay
        .admin()
        .try_submit(keyed_request(spec.clone(), ""))
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), error_code(&refused).as_str()),
        (Code::Unavailable, "no_daemon")
    );
    assert_eq!(relay.admin().commit_seq().await, before);

    let mut daemon = relay.start_scripted_daemon(&["hurry"]).await;
    relay.admin().submit(spec).await;
    daemon.next_dispatch().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_answers_resource_exhausted_until_there_is_room() {
    let relay = EmbeddedRelay::start_with(|config| config.max_open_tasks = 3).await;
    let client = relay.admin();
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(client.submit(agent_task("nobody")).await);
    }
    let refused = client
        .try_submit(keyed_request(agent_task("nobody"), ""))
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), error_code(&refused).as_str()),
        (Code::ResourceExhausted, "queue_full")
    );
    client.cancel(&open[0].task_id).await;
    client.submit(agent_task("nobody")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_key_returns_its_task_and_another_body_is_refused() {
    let relay = EmbeddedRelay::start().await;
    let mut daemon = relay.start_scripted_daemon(&["keyed"]).await;
    let client = relay.admin();
    let first = client
        .try_submit(keyed_request(agent_task("keyed"), "k1"))
        .await
        .unwrap();
    let again = client
        .try_submit(keyed_request(agent_task("keyed"), "k1"))
        .await
        .unwrap();
    let task_id_of =
        |response: &baton_proto::v1::SubmitResponse| response.task.clone().unwrap().task_id;
    assert_eq!(
        (task_id_of(&first), false, true),
        (task_id_of(&again), first.existed, again.existed)
    );
    let other = TaskSpec {
        prompt: "something else".to_owned(),
        ..agent_task("keyed")
    };
    let refused = client
        .try_submit(keyed_request(other, "k1"))
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), error_code(&refused).as_str()),
        (Code::AlreadyExists, "idempotency_conflict")
    );

    // The key is kept as long as the task, also after its end.
    let mut attempt = daemon.start_next_attempt().await;
    attempt.complete("").await;
    client
        .wait_for_state(&task_id_of(&first), TaskState::Completed)
        .await;
    let after = client
        .try_submit(keyed_request(agent_task("keyed"), "k1"))
        .await
        .unwrap();
    assert_eq!(
        (task_id_of(&after), after.existed),
        (task_id_of(&first), true)
    );
    assert_eq!(after.task.unwrap().state(), TaskState::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_run_only_where_labels_capabilities_and_agents_match() {
    let relay = EmbeddedRelay::start().await;
    let client = relay.admin();
    let mut plain = relay.start_scripted_daemon(&["work"]).await;
    let special = baton_proto::v1::Hello {
        labels: [("zone".to_owned(), "north".to_owned())].into(),
        capabilities: vec!["gpu".to_owned()],
        ..hello(&["work"])
    };
    let placed = client
        .submit(TaskSpec {
            placement: Some(Placement {
                labels: [("zone".to_owned(), "north".to_owned())].into(),
                capabilities: vec!["gpu".to_owned()],
                ..Placement::default()
            }),
            ..agent_task("work")
        })
        .await;
    let unplaced = client.submit(agent_task("work")).await;
    assert_eq!(
        plain.next_dispatch().await.attempt_ref.task_id,
        unplaced.task_id,
        "the daemon without labels does not get the placed task"
    );
    assert_eq!(client.get(&placed.task_id).await.state(), TaskState::Queued);
    let token = client.with_token(&relay.daemon_token().await);
    let mut special = ScriptedDaemon::connect(&token, special).await;
    assert_eq!(
        special.next_dispatch().await.attempt_ref.task_id,
        placed.task_id
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_daemon_keeps_its_work_and_gets_no_new_tasks() {
    let relay = EmbeddedRelay::start().await;
    let client = relay.admin();
    let mut daemon = relay.start_scripted_daemon(&["work"]).await;
    let running = client.submit(agent_task("work")).await;
    let mut attempt = daemon.start_next_attempt().await;
    let drain = DrainDaemonRequest {
        daemon: daemon.hello.daemon_id.clone(),
        reason: "new memory".to_owned(),
        ..DrainDaemonRequest::default()
    };
    let mut fleet = client.fleet();
    let drained = wait_within("a drain", fleet.drain_daemon(drain))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(drained.daemon.unwrap().state(), DaemonState::Draining);
    daemon
        .expect_frame("Drain", |frame| {
            matches!(frame.frame, Some(Frame::Drain(_))).then_some(())
        })
        .await;
    let waiting = client.submit(agent_task("work")).await;
    attempt.complete("").await;
    client
        .wait_for_state(&running.task_id, TaskState::Completed)
        .await;
    assert_eq!(
        client.get(&waiting.task_id).await.state(),
        TaskState::Queued
    );

    let undrain = UndrainDaemonRequest {
        daemon: daemon.hello.daemon_id.clone(),
        ..UndrainDaemonRequest::default()
    };
    wait_within("an undrain", fleet.undrain_daemon(undrain))
        .await
        .unwrap();
    assert_eq!(
        daemon.next_dispatch().await.attempt_ref.task_id,
        waiting.task_id
    );
}
