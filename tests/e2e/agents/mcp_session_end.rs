//! An MCP server that stops while its agent has a lease. The task is parked with its checkpoint,
//! so it is neither lost nor repeated without a decision.

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

pub(super) const SCOPE: &str = "reviewers";
/// Much longer than the few seconds that the exit may take, and much shorter than a lease.
const LEAVE_LIMIT: Duration = Duration::from_secs(20);

fn elapsed_since(began: Duration) -> Duration {
    boottime().saturating_sub(began)
}

/// An MCP client of an agent, connected to the relay through a proxy that can drop messages.
pub(super) struct ProxiedMcpFixture {
    pub(super) relay: RelayProcess,
    pub(super) proxy: TcpProxy,
    pub(super) mcp: McpClient,
    _token: TempDir,
}

impl ProxiedMcpFixture {
    pub(super) async fn start() -> Self {
        let relay = RelayProcess::start(BATON).await;
        let agent = LeaseAgent::new(relay.admin(), "ada", SCOPE).await;
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let token = dir.path().join("token");
        std::fs::write(&token, agent.client.token_secret()).expect("a file can be written");
        let proxy = TcpProxy::start_to(relay.admin().url()).await;
        let (url, token) = (
            proxy.url(),
            token.to_str().expect("a plain path").to_owned(),
        );
        let arguments = ["--relay", &url, "--token-file", &token];
        let tools = McpClient::start(BATON, relay.data(), &arguments).await;
        Self {
            relay,
            proxy,
            mcp: tools,
            _token: dir,
        }
    }

    /// Starts a task under a lease of this agent.
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
        let attention = task
            .attention
            .expect("a parked task has an attention record");
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
async fn a_client_that_disconnects_leaves_its_task_blocked_at_its_checkpoint() {
    let fixture = ProxiedMcpFixture::start().await;
    let task_id = fixture.start_held_task().await;
    let checkpoint = json!({"summary": "half of it is reviewed", "cursor": "line 40"});
    fixture
        .mcp
        .call_tool("task_checkpoint", checkpoint)
        .await
        .into_content();
    let began = boottime();
    let ProxiedMcpFixture { relay, mcp, .. } = fixture;
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
    let attention = task
        .attention
        .expect("a parked task has an attention record");
    assert!(
        attention
            .reason
            .contains("closed the connection to its tools"),
        "{attention:?}"
    );
    // Any agent of the scope can pick the task up at once.
    let other = LeaseAgent::new(relay.admin(), "bob", SCOPE).await;
    let lease = other
        .pick_up(&task_id, "")
        .await
        .expect("the task is parked");
    let done = other
        .complete(&lease, "reviewed")
        .await
        .expect("the agent has the lease");
    assert_eq!(
        (done.state(), done.attempts.len()),
        (TaskState::Completed, 2)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_signal_that_stops_the_server_leaves_its_task_blocked() {
    for kind in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut fixture = ProxiedMcpFixture::start().await;
        let task_id = fixture.start_held_task().await;
        let began = boottime();
        fixture.mcp.send_signal(kind);
        assert!(fixture.mcp.wait_for_exit().await.success(), "{kind:?}");
        assert!(
            elapsed_since(began) < LEAVE_LIMIT,
            "{kind:?}: {:?}",
            elapsed_since(began)
        );
        fixture
            .assert_blocked(&task_id, "received a stop signal")
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_lease_stops_and_changes_nothing() {
    let mut fixture = ProxiedMcpFixture::start().await;
    let task_id = fixture.start_held_task().await;
    fixture
        .mcp
        .call_tool("release_task", json!({}))
        .await
        .into_content();
    let before = fixture.get(&task_id).await;
    fixture.mcp.send_signal(Signal::TERM);
    assert!(fixture.mcp.wait_for_exit().await.success());
    assert_eq!(fixture.get(&task_id).await.revision, before.revision);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_with_a_requested_cancel_is_canceled_and_not_parked() {
    let mut fixture = ProxiedMcpFixture::start().await;
    let task_id = fixture.start_held_task().await;
    let request = CancelTaskRequest {
        task_id: task_id.clone(),
        reason: "not needed".to_owned(),
    };
    let asked = fixture.relay.admin().tasks().cancel(request).await;
    asked.expect("the cancel is accepted");
    // The signal comes before the next renewal could report the cancel.
    fixture.mcp.send_signal(Signal::TERM);
    assert!(fixture.mcp.wait_for_exit().await.success());
    let task = fixture.get(&task_id).await;
    assert_eq!(task.state(), TaskState::Canceled, "{task:#?}");
    assert_eq!(task.attempts[0].state(), AttemptState::Canceled);
}

/// The signal arrives when the claim is durable but its answer is still on the wire, so the
/// agent does not know that it has the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_the_agent_never_received_returns_to_the_queue() {
    let mut fixture = ProxiedMcpFixture::start().await;
    let spec = baton_tests::agent_scope_spec(SCOPE);
    let task_id = fixture.relay.admin().submit(spec).await.task_id;
    fixture
        .mcp
        .call_tool("task_list", json!({}))
        .await
        .into_content();
    fixture.proxy.set_passed_traffic(PassedTraffic::ToRelayOnly);
    let running = fixture
        .relay
        .admin()
        .wait_for_state(&task_id, TaskState::Running);
    let call = fixture
        .mcp
        .try_call_tool("claim_task", json!({"task_id": &task_id}));
    let mut call = Box::pin(call);
    tokio::select! {
        response = &mut call => panic!("the claim was answered: {response:?}"),
        () = running => {}
    }
    fixture.mcp.send_signal_until_handled(Signal::TERM).await;
    fixture.proxy.set_passed_traffic(PassedTraffic::Both);
    // The client may get `server_stopping` or a closed connection, but never the grant.
    if let Ok(response) = call.await {
        assert_eq!(response.error_field("code"), "server_stopping");
    }
    assert!(fixture.mcp.wait_for_exit().await.success());
    let task = fixture.get(&task_id).await;
    assert_eq!(task.state(), TaskState::Queued, "{task:#?}");
    assert_eq!(task.attempts[0].state(), AttemptState::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unresponsive_relay_does_not_delay_the_servers_exit() {
    let mut fixture = ProxiedMcpFixture::start().await;
    let task_id = fixture.start_held_task().await;
    fixture.proxy.set_passed_traffic(PassedTraffic::Nothing);
    let began = boottime();
    fixture.mcp.send_signal(Signal::TERM);
    assert!(fixture.mcp.wait_for_exit().await.success());
    assert!(
        elapsed_since(began) < LEAVE_LIMIT,
        "{:?}",
        elapsed_since(began)
    );
    // The block could not be delivered, so the task runs until its lease expires.
    assert_eq!(fixture.get(&task_id).await.state(), TaskState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_server_at_once() {
    let mut fixture = ProxiedMcpFixture::start().await;
    fixture.start_held_task().await;
    fixture.proxy.set_passed_traffic(PassedTraffic::Nothing);
    fixture.mcp.send_signal(Signal::TERM);
    fixture.mcp.send_signal(Signal::INT);
    assert_eq!(fixture.mcp.wait_for_exit().await.code(), Some(130));
}
