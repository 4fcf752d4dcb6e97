//! Placement of tasks on daemons over gRPC. The single rules are tested in the core.

use baton_proto::v1::{Placement, TaskSpec, TaskState};
use baton_tests::{EmbeddedRelay, ScriptedDaemon, agent_task, hello};

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
