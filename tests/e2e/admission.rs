//! What is let in, and where it goes. The rules of placement one by one are tested in the core; here they meet the wire.

use baton_proto::v1::relay_frame::Frame;
use baton_proto::v1::{
    DaemonState, DispatchPolicy, DrainDaemonRequest, Placement, SubmitRequest, TaskSpec, TaskState,
    UndrainDaemonRequest,
};
use baton_tests::{Relay, ScriptedDaemon, code_of, for_agent, hello, within};
use tonic::Code;

fn request(spec: TaskSpec, key: &str) -> SubmitRequest {
    SubmitRequest {
        spec: Some(spec),
        idempotency_key: key.to_owned(),
        ..SubmitRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fail_fast_without_a_daemon_answers_unavailable_and_stores_nothing() {
    let relay = Relay::start().await;
    let spec = TaskSpec {
        dispatch_policy: DispatchPolicy::FailFast.into(),
        ..for_agent("hurry")
    };
    let before = relay.admin().commit_seq().await;
    let refused = relay
        .admin()
        .try_submit(request(spec.clone(), ""))
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), code_of(&refused).as_str()),
        (Code::Unavailable, "no_daemon")
    );
    assert_eq!(relay.admin().commit_seq().await, before);

    let mut daemon = relay.scripted(&["hurry"]).await;
    relay.admin().submit(spec).await;
    daemon.offered().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_answers_resource_exhausted_until_there_is_room() {
    let relay = Relay::start_with(|config| config.max_open = 3).await;
    let client = relay.admin();
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(client.submit(for_agent("nobody")).await);
    }
    let refused = client
        .try_submit(request(for_agent("nobody"), ""))
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), code_of(&refused).as_str()),
        (Code::ResourceExhausted, "queue_full")
    );
    client.cancel(&open[0].task_id).await;
    client.submit(for_agent("nobody")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_and_body_is_one_task_and_another_body_already_exists() {
    let relay = Relay::start().await;
    let mut daemon = relay.scripted(&["keyed"]).await;
    let client = relay.admin();
    let first = client
        .try_submit(request(for_agent("keyed"), "k1"))
        .await
        .unwrap();
    let again = client
        .try_submit(request(for_agent("keyed"), "k1"))
        .await
        .unwrap();
    let id = |response: &baton_proto::v1::SubmitResponse| response.task.clone().unwrap().task_id;
    assert_eq!(
        (id(&first), false, true),
        (id(&again), first.existed, again.existed)
    );
    let other = TaskSpec {
        prompt: "something else".to_owned(),
        ..for_agent("keyed")
    };
    let refused = client.try_submit(request(other, "k1")).await.unwrap_err();
    assert_eq!(
        (refused.code(), code_of(&refused).as_str()),
        (Code::AlreadyExists, "idempotency_conflict")
    );

    // The key is remembered as long as the task, so also after its end.
    let mut attempt = daemon.running().await;
    attempt.complete("").await;
    client.until_state(&id(&first), TaskState::Completed).await;
    let after = client
        .try_submit(request(for_agent("keyed"), "k1"))
        .await
        .unwrap();
    assert_eq!((id(&after), after.existed), (id(&first), true));
    assert_eq!(after.task.unwrap().state(), TaskState::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_goes_only_where_labels_capabilities_and_agents_allow() {
    let relay = Relay::start().await;
    let client = relay.admin();
    let mut plain = relay.scripted(&["work"]).await;
    let special = baton_proto::v1::Hello {
        labels: [("zone".to_owned(), "north".to_owned())].into(),
        capabilities: vec!["gpu".to_owned()],
        ..hello(&["work"])
    };
    let picky = client
        .submit(TaskSpec {
            placement: Some(Placement {
                labels: [("zone".to_owned(), "north".to_owned())].into(),
                capabilities: vec!["gpu".to_owned()],
                ..Placement::default()
            }),
            ..for_agent("work")
        })
        .await;
    let easy = client.submit(for_agent("work")).await;
    assert_eq!(
        plain.offered().await.re.task_id,
        easy.task_id,
        "the picky one is not for it"
    );
    assert_eq!(client.get(&picky.task_id).await.state(), TaskState::Queued);
    let token = client.with_token(&relay.daemon_token().await);
    let mut special = ScriptedDaemon::connect(&token, special).await;
    assert_eq!(special.offered().await.re.task_id, picky.task_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_daemon_keeps_its_work_and_gets_nothing_new_until_it_is_undrained() {
    let relay = Relay::start().await;
    let client = relay.admin();
    let mut daemon = relay.scripted(&["work"]).await;
    let running = client.submit(for_agent("work")).await;
    let mut attempt = daemon.running().await;
    let drain = DrainDaemonRequest {
        daemon: daemon.hello.daemon_id.clone(),
        reason: "new memory".to_owned(),
        ..DrainDaemonRequest::default()
    };
    let mut fleet = client.fleet();
    let drained = within("a drain", fleet.drain_daemon(drain))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(drained.daemon.unwrap().state(), DaemonState::Draining);
    daemon
        .expect("Drain", |frame| {
            matches!(frame.frame, Some(Frame::Drain(_))).then_some(())
        })
        .await;
    let waiting = client.submit(for_agent("work")).await;
    attempt.complete("").await;
    client
        .until_state(&running.task_id, TaskState::Completed)
        .await;
    assert_eq!(
        client.get(&waiting.task_id).await.state(),
        TaskState::Queued
    );

    let undrain = UndrainDaemonRequest {
        daemon: daemon.hello.daemon_id.clone(),
        ..UndrainDaemonRequest::default()
    };
    within("an undrain", fleet.undrain_daemon(undrain))
        .await
        .unwrap();
    assert_eq!(daemon.offered().await.re.task_id, waiting.task_id);
}
