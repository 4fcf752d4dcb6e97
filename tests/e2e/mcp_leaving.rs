//! An agent whose session ends while it holds a task: whoever looks finds the task, and what was done under it is not
//! done again by chance.

use std::time::Duration;

use baton_proto::v1::{
    AttemptState, AttentionCause, CancelTaskRequest, CheckpointKind, ListCheckpointsRequest, Task,
    TaskState,
};
use baton_tests::{Agent, Passing, RelayProcess, Tools, Wire, boottime};
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::BATON;

const SCOPE: &str = "reviewers";
/// Far beyond the few seconds that leaving may take, and far below a lease.
const SOON: Duration = Duration::from_secs(20);

fn since(began: Duration) -> Duration {
    boottime().saturating_sub(began)
}

/// An agent with its tools, and a wire between them and the relay.
struct Scene {
    relay: RelayProcess,
    wire: Wire,
    tools: Tools,
    _token: TempDir,
}

impl Scene {
    async fn open() -> Self {
        let relay = RelayProcess::start(BATON).await;
        let agent = Agent::new(relay.admin(), "ada", SCOPE).await;
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let token = dir.path().join("token");
        std::fs::write(&token, agent.client.secret()).expect("a file can be written");
        let wire = Wire::to(relay.admin().url()).await;
        let (url, token) = (wire.url(), token.to_str().expect("a plain path").to_owned());
        let arguments = ["--relay", &url, "--token-file", &token];
        let tools = Tools::start(BATON, relay.data(), &arguments).await;
        Self {
            relay,
            wire,
            tools,
            _token: dir,
        }
    }

    /// Starts a task, which the agent holds then.
    async fn held(&self) -> String {
        let goal = json!({"goal": "review it", "agent_scope": SCOPE});
        let started = self.tools.call("task_start", goal).await.granted();
        let task_id = started["ref"]["taskId"].as_str();
        task_id.expect("a grant names its task").to_owned()
    }

    async fn get(&self, task_id: &str) -> Task {
        self.relay.admin().get(task_id).await
    }

    async fn is_blocked(&self, task_id: &str, how: &str) {
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
    let scene = Scene::open().await;
    let task_id = scene.held().await;
    let stands = json!({"summary": "half of it is reviewed", "cursor": "line 40"});
    scene.tools.call("task_checkpoint", stands).await.granted();
    let began = boottime();
    let Scene { relay, tools, .. } = scene;
    assert!(tools.close().await);
    assert!(since(began) < SOON, "{:?}", since(began));
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
    let other = Agent::new(relay.admin(), "bob", SCOPE).await;
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
        let mut scene = Scene::open().await;
        let task_id = scene.held().await;
        let began = boottime();
        scene.tools.signal(kind);
        assert!(scene.tools.ended().await.success(), "{kind:?}");
        assert!(since(began) < SOON, "{kind:?}: {:?}", since(began));
        scene.is_blocked(&task_id, "by a signal").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_holds_nothing_ends_and_changes_nothing() {
    let mut scene = Scene::open().await;
    let task_id = scene.held().await;
    scene.tools.call("release_task", json!({})).await.granted();
    let before = scene.get(&task_id).await;
    scene.tools.signal(Signal::TERM);
    assert!(scene.tools.ended().await.success());
    assert_eq!(scene.get(&task_id).await.revision, before.revision);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_wants_canceled_is_canceled_and_not_parked() {
    let mut scene = Scene::open().await;
    let task_id = scene.held().await;
    let request = CancelTaskRequest {
        task_id: task_id.clone(),
        reason: "not needed".to_owned(),
    };
    let asked = scene.relay.admin().tasks().cancel(request).await;
    asked.expect("it can be asked for");
    // Before the next renewal could tell.
    scene.tools.signal(Signal::TERM);
    assert!(scene.tools.ended().await.success());
    let task = scene.get(&task_id).await;
    assert_eq!(task.state(), TaskState::Canceled, "{task:#?}");
    assert_eq!(task.attempts[0].state(), AttemptState::Canceled);
}

/// The call is durable and its answer on the wire when the signal comes: the agent never learned that it holds anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_the_agent_was_never_told_of_goes_back_to_the_queue() {
    let mut scene = Scene::open().await;
    let spec = baton_tests::for_scope(SCOPE);
    let task_id = scene.relay.admin().submit(spec).await.task_id;
    scene.tools.call("task_list", json!({})).await.granted();
    scene.wire.let_pass(Passing::Up);
    let running = scene
        .relay
        .admin()
        .until_state(&task_id, TaskState::Running);
    let call = scene
        .tools
        .try_call("claim_task", json!({"task_id": &task_id}));
    let mut call = Box::pin(call);
    tokio::select! {
        told = &mut call => panic!("it was answered: {told:?}"),
        () = running => {}
    }
    scene.tools.signal_taken(Signal::TERM).await;
    scene.wire.let_pass(Passing::Both);
    // The client may be told that the server stops, or find the line closed, but never that it holds the task.
    if let Ok(told) = call.await {
        assert_eq!(told.error("code"), "server_stopping");
    }
    assert!(scene.tools.ended().await.success());
    let task = scene.get(&task_id).await;
    assert_eq!(task.state(), TaskState::Queued, "{task:#?}");
    assert_eq!(task.attempts[0].state(), AttemptState::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_does_not_answer_keeps_nobody_from_leaving() {
    let mut scene = Scene::open().await;
    let task_id = scene.held().await;
    scene.wire.let_pass(Passing::Nothing);
    let began = boottime();
    scene.tools.signal(Signal::TERM);
    assert!(scene.tools.ended().await.success());
    assert!(since(began) < SOON, "{:?}", since(began));
    // The lease is what is left.
    assert_eq!(scene.get(&task_id).await.state(), TaskState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_at_once() {
    let mut scene = Scene::open().await;
    scene.held().await;
    scene.wire.let_pass(Passing::Nothing);
    scene.tools.signal(Signal::TERM);
    scene.tools.signal(Signal::INT);
    assert_eq!(scene.tools.ended().await.code(), Some(130));
}
