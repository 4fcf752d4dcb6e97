//! An agent whose session ends while it holds a task: whoever looks finds the task, and what was done under it is not
//! done again by chance.

use std::time::Duration;

use baton_proto::v1::{
    AttemptState, AttentionCause, CancelTaskRequest, CheckpointKind, ListCheckpointsRequest, Task,
    TaskState,
};
use baton_tests::{LeaseAgent, McpClient, PassedTraffic, RelayProcess, TcpProxy, boottime};
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::BATON;

const SCOPE: &str = "reviewers";
/// Far beyond the few seconds that leaving may take, and far below a lease.
const LEAVE_LIMIT: Duration = Duration::from_secs(20);

fn elapsed_since(began: Duration) -> Duration {
    boottime().saturating_sub(began)
}

/// An agent with its tools, and a wire between them and the relay.
struct SessionEndFixture {
    relay: RelayProcess,
    proxy: TcpProxy,
    mcp: McpClient,
    _token: TempDir,
}

impl SessionEndFixture {
    async fn start() -> Self {
        let relay = RelayProcess::start(BATON).await;
        let agent = LeaseAgent::new(relay.admin(), "ada", SCOPE).await;
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let token = dir.path().join("token");
        std::fs::write(&token, agent.client.token_secret()).expect("a file can be written");
        let wire = TcpProxy::start_to(relay.admin().url()).await;
        let (url, token) = (wire.url(), token.to_str().expect("a plain path").to_owned());
        let arguments = ["--relay", &url, "--token-file", &token];
        let tools = McpClient::start(BATON, relay.data(), &arguments).await;
        Self {
            relay,
            proxy: wire,
            mcp: tools,
            _token: dir,
        }
    }

    /// Starts a task, which the agent holds then.
    async fn start_held_task(&self) -> String {
        let goal = json!({"goal": "review it", "agent_scope": SCOPE});
        let started = self.mcp.call_tool("task_start", goal).await.into_content();
        let task_id = started["ref"]["taskId"].as_str();
        task_id.expect("a grant names its task").to_owned()
    }

    async fn get(&self, task_id: &str) -> Task {
        self.relay.admin().get(task_id).await
    }

    async fn assert_blocked(&self, task_id: &str, how: &str) {
        let task = self.get(task_id).await;
        assert_eq!(task.state(), TaskState::NeedsAttention, "{task:#?}");
        let attention = task.attention.expect("it says why");
        assert_eq!(attention.cause(), AttentionCause::Blocked);
        let why = &attention.reason;
        assert!(
            why.contains("session ended while it held the task") && why.contains(how),
            "{why}"
        );
        assert!(!attention.resume_hint.is_empty() && !attention.checkpoint_id.is_empty());
        assert_eq!(task.attempts[0].state(), AttemptState::Parked);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_leaves_its_task_blocked_where_it_stood() {
    let scene = SessionEndFixture::start().await;
    let task_id = scene.start_held_task().await;
    let stands = json!({"summary": "half of it is reviewed", "cursor": "line 40"});
    scene
        .mcp
        .call_tool("task_checkpoint", stands)
        .await
        .into_content();
    let began = boottime();
    let SessionEndFixture { relay, mcp, .. } = scene;
    assert!(mcp.close().await);
    assert!(
        elapsed_since(began) < LEAVE_LIMIT,
        "{:?}",
        elapsed_since(began)
    );
    let request = ListCheckpointsRequest {
        task_id: task_id.clone(),
        ..ListCheckpointsRequest::default()
    };
    let listed = relay.admin().tasks().list_checkpoints(request).await;
    let listed = listed.expect("checkpoints are listed").into_inner();
    let blocked = listed.checkpoints.iter();
    let blocked: Vec<_> = blocked
        .filter(|one| one.kind() == CheckpointKind::Blocked)
        .collect();
    assert_eq!(blocked.len(), 1, "{listed:#?}");
    assert_eq!(blocked[0].summary, "half of it is reviewed");
    assert_eq!(blocked[0].cursor, "line 40");
    let task = relay.admin().get(&task_id).await;
    let attention = task.attention.expect("it says why");
    assert!(
        attention.reason.contains("closed the line"),
        "{attention:?}"
    );
    // It can be gone on with at once, by anybody of the scope.
    let other = LeaseAgent::new(relay.admin(), "bob", SCOPE).await;
    let lease = other.pick_up(&task_id, "").await.expect("it waits");
    let done = other
        .complete(&lease, "reviewed")
        .await
        .expect("it is held");
    assert_eq!(
        (done.state(), done.attempts.len()),
        (TaskState::Completed, 2)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_signal_that_ends_a_server_leaves_its_task_blocked() {
    for kind in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut scene = SessionEndFixture::start().await;
        let task_id = scene.start_held_task().await;
        let began = boottime();
        scene.mcp.send_signal(kind);
        assert!(scene.mcp.wait_for_exit().await.success(), "{kind:?}");
        assert!(
            elapsed_since(began) < LEAVE_LIMIT,
            "{kind:?}: {:?}",
            elapsed_since(began)
        );
        scene.assert_blocked(&task_id, "by a signal").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_holds_nothing_ends_and_changes_nothing() {
    let mut scene = SessionEndFixture::start().await;
    let task_id = scene.start_held_task().await;
    scene
        .mcp
        .call_tool("release_task", json!({}))
        .await
        .into_content();
    let before = scene.get(&task_id).await;
    scene.mcp.send_signal(Signal::TERM);
    assert!(scene.mcp.wait_for_exit().await.success());
    assert_eq!(scene.get(&task_id).await.revision, before.revision);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_wants_canceled_is_canceled_and_not_parked() {
    let mut scene = SessionEndFixture::start().await;
    let task_id = scene.start_held_task().await;
    let request = CancelTaskRequest {
        task_id: task_id.clone(),
        reason: "not needed".to_owned(),
    };
    let asked = scene.relay.admin().tasks().cancel(request).await;
    asked.expect("it can be asked for");
    // Before the next renewal could tell.
    scene.mcp.send_signal(Signal::TERM);
    assert!(scene.mcp.wait_for_exit().await.success());
    let task = scene.get(&task_id).await;
    assert_eq!(task.state(), TaskState::Canceled, "{task:#?}");
    assert_eq!(task.attempts[0].state(), AttemptState::Canceled);
}

/// The call is durable and its answer on the wire when the signal comes: the agent never learned that it holds anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_the_agent_was_never_told_of_goes_back_to_the_queue() {
    let mut scene = SessionEndFixture::start().await;
    let spec = baton_tests::agent_scope_spec(SCOPE);
    let task_id = scene.relay.admin().submit(spec).await.task_id;
    scene
        .mcp
        .call_tool("task_list", json!({}))
        .await
        .into_content();
    scene.proxy.set_passed_traffic(PassedTraffic::ToRelayOnly);
    let running = scene
        .relay
        .admin()
        .wait_for_state(&task_id, TaskState::Running);
    let call = scene
        .mcp
        .try_call_tool("claim_task", json!({"task_id": &task_id}));
    let mut call = Box::pin(call);
    tokio::select! {
        told = &mut call => panic!("it was answered: {told:?}"),
        () = running => {}
    }
    scene.mcp.send_signal_until_handled(Signal::TERM).await;
    scene.proxy.set_passed_traffic(PassedTraffic::Both);
    // The client may be told that the server stops, or find the line closed, but never that it holds the task.
    if let Ok(told) = call.await {
        assert_eq!(told.error_field("code"), "server_stopping");
    }
    assert!(scene.mcp.wait_for_exit().await.success());
    let task = scene.get(&task_id).await;
    assert_eq!(task.state(), TaskState::Queued, "{task:#?}");
    assert_eq!(task.attempts[0].state(), AttemptState::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_does_not_answer_keeps_nobody_from_leaving() {
    let mut scene = SessionEndFixture::start().await;
    let task_id = scene.start_held_task().await;
    scene.proxy.set_passed_traffic(PassedTraffic::Nothing);
    let began = boottime();
    scene.mcp.send_signal(Signal::TERM);
    assert!(scene.mcp.wait_for_exit().await.success());
    assert!(
        elapsed_since(began) < LEAVE_LIMIT,
        "{:?}",
        elapsed_since(began)
    );
    // The lease is what is left.
    assert_eq!(scene.get(&task_id).await.state(), TaskState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_at_once() {
    let mut scene = SessionEndFixture::start().await;
    scene.start_held_task().await;
    scene.proxy.set_passed_traffic(PassedTraffic::Nothing);
    scene.mcp.send_signal(Signal::TERM);
    scene.mcp.send_signal(Signal::INT);
    assert_eq!(scene.mcp.wait_for_exit().await.code(), Some(130));
}
