//! Tenants see only their own tasks. An id of another tenant looks like an unknown id.

use baton_proto::v1::{ListTasksRequest, ReadOutputRequest, Role};
use baton_tests::{
    EmbeddedRelay, ScriptedDaemon, TaskWatch, TestClient, agent_task, error_code, hello,
    wait_within,
};
use tonic::{Code, Status};
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
