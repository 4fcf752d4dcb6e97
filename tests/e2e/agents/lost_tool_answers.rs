//! An agent's calls whose answers never arrive: said again by `baton mcp` they are answered, and done once.

use std::time::Duration;

use baton_proto::v1::{ListTasksRequest, Task, TaskEventKind, TaskState};
use baton_tests::{LeaseAgent, McpClient, PassedTraffic, RelayProcess, TcpProxy, wait_within};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::BATON;

const SCOPE: &str = "reviewers";
/// Between two looks at what sends no event.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Why an answer is lost, once its call is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerLoss {
    StreamBreaks,
    RelayKilled,
}

/// An agent with its tools, and a wire between them and the relay that keeps answers back.
struct LostAnswersFixture {
    relay: RelayProcess,
    proxy: TcpProxy,
    mcp: McpClient,
    _token: TempDir,
}

impl LostAnswersFixture {
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

    /// The only task, if there is one.
    async fn only_task(&self) -> Option<Task> {
        let request = ListTasksRequest::default();
        let listed = self.relay.admin().tasks().list(request).await;
        let tasks = listed.expect("tasks are listed").into_inner().tasks;
        assert!(tasks.len() <= 1, "a task was made twice: {tasks:#?}");
        tasks.into_iter().next()
    }

    async fn revision(&self) -> u64 {
        self.only_task().await.map_or(0, |task| task.revision)
    }

    /// The call is durable, and its answer is on the wire.
    async fn wait_for_revision_after(&self, revision: u64) {
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        wait_within("the call to be durable", async {
            while self.revision().await <= revision {
                ticks.tick().await;
            }
        })
        .await;
    }

    /// Calls a tool, and loses the first answer.
    async fn call_with_lost_answer(
        &mut self,
        fate: AnswerLoss,
        tool: &str,
        arguments: Value,
    ) -> Value {
        let before = self.revision().await;
        self.proxy.set_passed_traffic(PassedTraffic::ToRelayOnly);
        let call = self.mcp.call_tool(tool, arguments);
        tokio::pin!(call);
        tokio::select! {
            told = &mut call => panic!("{tool} was answered: {told:?}"),
            () = self.wait_for_revision_after(before) => {}
        }
        if fate == AnswerLoss::RelayKilled {
            self.relay.kill().await;
            self.relay.start_again().await;
        }
        let dialed = self.proxy.connection_count();
        self.proxy.cut_connections();
        let again = async {
            let mut ticks = tokio::time::interval(POLL_INTERVAL);
            while self.proxy.connection_count() == dialed {
                ticks.tick().await;
            }
        };
        tokio::select! {
            told = &mut call => panic!("{tool} was answered: {told:?}"),
            () = wait_within("the tools to dial again", again) => {}
        }
        self.proxy.set_passed_traffic(PassedTraffic::Both);
        call.await.into_content()
    }
}

impl LostAnswersFixture {
    /// Calls a tool whose call is durable when the relay goes, and stays away until the server has given up.
    async fn call_until_given_up(&mut self, tool: &str, arguments: Value) {
        let before = self.revision().await;
        self.proxy.set_passed_traffic(PassedTraffic::ToRelayOnly);
        let call = self.mcp.call_tool(tool, arguments);
        tokio::pin!(call);
        tokio::select! {
            told = &mut call => panic!("{tool} was answered: {told:?}"),
            () = self.wait_for_revision_after(before) => {}
        }
        self.relay.kill().await;
        self.proxy.cut_connections();
        let told = call.await;
        assert_eq!(told.error_field("status"), "unavailable", "{told:?}");
        self.proxy.set_passed_traffic(PassedTraffic::Both);
        self.relay.start_again().await;
    }
}

/// The agent is told to call again; that it does is no second call.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_given_up_and_is_repeated_by_the_agent_is_done_once() {
    let mut scene = LostAnswersFixture::start().await;
    let goal = json!({"goal": "review it", "agent_scope": SCOPE});
    scene.call_until_given_up("task_start", goal.clone()).await;
    let started = scene.mcp.call_tool("task_start", goal).await.into_content();
    assert_eq!(started["ref"]["attemptNumber"], json!(1), "{started}");
    let half = json!({"summary": "half"});
    scene
        .call_until_given_up("task_checkpoint", half.clone())
        .await;
    scene
        .mcp
        .call_tool("task_checkpoint", half)
        .await
        .into_content();
    let done = json!({"outcome": "completed", "summary": "reviewed"});
    scene
        .call_until_given_up("task_complete", done.clone())
        .await;
    let told = scene
        .mcp
        .call_tool("task_complete", done)
        .await
        .into_content();
    assert_eq!(told["task"]["state"], json!("completed"));
    let task = scene.only_task().await.expect("one task was made");
    let whole = scene.relay.admin().get(&task.task_id).await;
    let progress = whole.progress.expect("there was a checkpoint");
    assert_eq!((whole.attempts.len(), progress.checkpoint_count), (1, 1));
}

async fn every_call_is_done_once(fate: AnswerLoss) {
    let mut scene = LostAnswersFixture::start().await;
    let goal = json!({"goal": "review it", "agent_scope": SCOPE});
    let started = scene.call_with_lost_answer(fate, "task_start", goal).await;
    assert_eq!(started["held"], json!(true));
    let proof = json!([{"kind": "commit", "ref": "abc", "summary": "half of it"}]);
    let progress = json!({"completed_items": ["one"], "evidence": &proof});
    let told = scene
        .call_with_lost_answer(fate, "task_progress", progress)
        .await;
    assert_eq!(told["progress"]["evidence"], proof);
    let told = scene.call_with_lost_answer(fate, "task_checkpoint", json!({"summary": "half"}));
    assert_eq!(told.await["checkpoint"]["summary"], json!("half"));
    let told = scene.call_with_lost_answer(fate, "task_block", json!({"reason": "which branch?"}));
    let told = told.await;
    assert_eq!(told["task"]["state"], json!("needs_attention"));
    assert!(told["checkpointId"].is_string(), "{told}");
    let named = json!({"task_id": told["task"]["taskId"]});
    let picked = scene
        .call_with_lost_answer(fate, "pick_up_task", named)
        .await;
    assert_eq!(picked["ref"]["attemptNumber"], json!(2), "{picked}");
    let told = scene
        .call_with_lost_answer(fate, "release_task", json!({}))
        .await;
    assert_eq!(told["task"]["state"], json!("queued"));
    let claimed = scene
        .call_with_lost_answer(fate, "claim_task", json!({}))
        .await;
    assert_eq!(claimed["ref"]["attemptNumber"], json!(3), "{claimed}");
    let done = json!({"outcome": "completed", "summary": "reviewed"});
    let told = scene
        .call_with_lost_answer(fate, "task_complete", done)
        .await;
    assert_eq!(told["task"]["state"], json!("completed"));

    let task_id = told["task"]["taskId"].as_str().expect("a task has an id");
    let task = scene.relay.admin().get(task_id).await;
    assert_eq!(
        (task.state(), task.attempts.len()),
        (TaskState::Completed, 3)
    );
    let progress = task.progress.expect("there was progress");
    assert_eq!((progress.checkpoint_count, progress.evidence.len()), (2, 1));
    let watch = scene.relay.admin().watch(task_id).await;
    let seen = watch.collect_to_end().await;
    for (kind, times) in [
        (TaskEventKind::Submitted, 1),
        (TaskEventKind::Progress, 2),
        (TaskEventKind::Checkpoint, 2),
        (TaskEventKind::PickedUp, 1),
    ] {
        let seen = seen.iter().filter(|event| event.kind() == kind).count();
        assert_eq!(seen, times, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_whose_answers_a_wire_lost_are_answered_again_and_done_once() {
    every_call_is_done_once(AnswerLoss::StreamBreaks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_a_relay_took_before_it_was_killed_are_answered_by_the_next_and_done_once() {
    every_call_is_done_once(AnswerLoss::RelayKilled).await;
}
