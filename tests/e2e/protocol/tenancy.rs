//! Tenants see only their own tasks. An id of another tenant looks like an unknown id.

use std::time::Duration;

use baton_proto::v1::{ListTasksRequest, ReadOutputRequest, RevokeTokenRequest, Role, TaskState};
use baton_tests::{
    EmbeddedRelay, ScriptedDaemon, TaskWatch, TestClient, agent_task, error_code, hello,
    wait_within,
};
use tonic::{Code, Status};

/// Time within which the streams of a revoked token must close.
const REVOCATION_LIMIT: Duration = Duration::from_secs(5);
const UNKNOWN_ID: &str = "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10";

async fn refusals_of_every_call(client: &TestClient, task_id: &str) -> Vec<Status> {
    let (mut tasks, mut operator) = (client.tasks(), client.operator());
    let read = tasks.read_output(ReadOutputRequest {
        task_id: task_id.to_owned(),
        ..ReadOutputRequest::default()
    });
    let retry = operator.retry_task(baton_proto::v1::RetryTaskRequest {
        task_id: task_id.to_owned(),
        reason: "look".to_owned(),
        ..Default::default()
    });
    vec![
        client.try_get(task_id).await.expect_err("Get"),
        client.try_cancel(task_id).await.expect_err("Cancel"),
        TaskWatch::open(client, task_id, 0)
            .await
            .map(|_| ())
            .expect_err("Watch"),
        wait_within("ReadOutput", read)
            .await
            .map(|_| ())
            .expect_err("ReadOutput"),
        wait_within("RetryTask", retry)
            .await
            .map(|_| ())
            .expect_err("RetryTask"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_id_looks_like_an_unknown_one_and_changes_nothing() {
    let relay = EmbeddedRelay::start().await;
    let own_tenant = relay.admin().client_of_tenant("ours", Role::Operator).await;
    let other_tenant = relay
        .admin()
        .client_of_tenant("theirs", Role::Operator)
        .await;
    let task = own_tenant.submit(agent_task("nobody")).await;
    let before = relay.admin().commit_seq().await;

    let foreign = refusals_of_every_call(&other_tenant, &task.task_id).await;
    let unknown = refusals_of_every_call(&other_tenant, UNKNOWN_ID).await;
    for (foreign, unknown) in foreign.iter().zip(&unknown) {
        assert_eq!(foreign.code(), Code::NotFound, "{foreign:?}");
        assert_eq!(error_code(foreign), "unknown_task");
        assert_eq!(foreign.message(), unknown.message());
        assert_eq!(foreign.details(), unknown.details());
    }
    let mut tasks = other_tenant.tasks();
    let listed = wait_within("a list", tasks.list(ListTasksRequest::default()))
        .await
        .unwrap();
    assert!(listed.into_inner().tasks.is_empty());
    assert_eq!(
        relay.admin().commit_seq().await,
        before,
        "nothing was committed"
    );
    assert_eq!(
        own_tenant.get(&task.task_id).await,
        task,
        "the task is unchanged"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_daemon_gets_only_its_tenants_work_and_a_shared_one_gets_all() {
    let relay = EmbeddedRelay::start().await;
    let admin = relay.admin();
    let own_tenant = admin.client_of_tenant("ours", Role::Submitter).await;
    let other_tenant = admin.client_of_tenant("theirs", Role::Submitter).await;
    let their_daemon = admin.client_of_tenant("theirs", Role::Daemon).await;
    let mut their_daemon = ScriptedDaemon::connect(&their_daemon, hello(&["work"])).await;
    let our_task = own_tenant.submit(agent_task("work")).await;
    let their_task = other_tenant.submit(agent_task("work")).await;
    let mut offered = their_daemon.next_dispatch().await;
    assert_eq!(offered.attempt_ref.task_id, their_task.task_id);
    offered.accept().await;
    their_daemon.wait_for_confirmation(&offered).await;
    assert_eq!(
        own_tenant.get(&our_task.task_id).await.state(),
        TaskState::Queued
    );

    let shared = admin.client_of_tenant("*", Role::Daemon).await;
    let mut shared = ScriptedDaemon::connect(&shared, hello(&["work"])).await;
    assert_eq!(
        shared.next_dispatch().await.attempt_ref.task_id,
        our_task.task_id
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_closes_its_streams_and_is_refused() {
    let relay = EmbeddedRelay::start().await;
    let admin = relay.admin();
    let (daemon_token, daemon_secret) = admin.create_token("", Role::Daemon).await;
    let (reader_token, reader_secret) = admin.create_token("", Role::ReadOnly).await;
    let client = admin.with_token(&daemon_secret);
    let mut daemon = ScriptedDaemon::connect(&client, hello(&["work"])).await;
    let task = admin.submit(agent_task("work")).await;
    let attempt = daemon.start_next_attempt().await;
    daemon.wait_until_acked(&attempt).await;
    let mut watch = admin.with_token(&reader_secret).watch(&task.task_id).await;
    watch.wait_for_state(TaskState::Running).await;

    for token in [daemon_token, reader_token] {
        let mut operator = admin.operator();
        let revoke = operator.revoke_token(RevokeTokenRequest {
            token_id: token.token_id,
        });
        wait_within("a revocation", revoke).await.unwrap();
    }
    let closed = tokio::time::timeout(REVOCATION_LIMIT, async {
        drop(daemon.wait_for_stream_end().await);
        loop {
            match watch.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the task has not ended"),
                Err(status) => return status,
            }
        }
    });
    let watch_end = closed.await.expect("revoked streams close in time");
    assert_eq!(watch_end.code(), Code::Unauthenticated, "{watch_end:?}");
    let refused = ScriptedDaemon::try_connect(&client, hello(&["work"])).await;
    assert_eq!(
        refused.map(|_| ()).unwrap_err().code(),
        Code::Unauthenticated
    );
    assert_eq!(
        admin.get(&task.task_id).await.state(),
        TaskState::Running,
        "the attempt still runs"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_allows_only_its_own_operations() {
    let relay = EmbeddedRelay::start().await;
    let admin = relay.admin();
    let reader = admin.client_of_tenant("", Role::ReadOnly).await;
    let task = admin.submit(agent_task("nobody")).await;
    reader.get(&task.task_id).await;
    drop(reader.watch(&task.task_id).await);
    let refused = reader.try_cancel(&task.task_id).await.unwrap_err();
    assert_eq!(
        (refused.code(), error_code(&refused).as_str()),
        (Code::PermissionDenied, "permission_denied")
    );
    let stranger = admin.with_token("btn_0000");
    let refused = stranger.try_get(&task.task_id).await.unwrap_err();
    assert_eq!(
        (refused.code(), error_code(&refused).as_str()),
        (Code::Unauthenticated, "unauthenticated")
    );
    let no_daemon = ScriptedDaemon::try_connect(&reader, hello(&["work"])).await;
    assert_eq!(
        no_daemon.map(|_| ()).unwrap_err().code(),
        Code::PermissionDenied
    );
}
