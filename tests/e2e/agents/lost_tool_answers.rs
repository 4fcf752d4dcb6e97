//! Tool calls whose answers get lost: `baton mcp` repeats them, and each call takes effect once.

use std::time::Duration;

use baton_proto::v1::{ListTasksRequest, Task, TaskEventKind, TaskState};
use baton_tests::{PassedTraffic, wait_within};
use serde_json::{Value, json};

use super::mcp_session_end::{ProxiedMcpFixture, SCOPE};

/// Poll interval for state that sends no event.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Why the answer to a durable call is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerLoss {
    StreamBreaks,
    RelayKilled,
}

struct LostAnswersFixture {
    servers: ProxiedMcpFixture,
}

impl LostAnswersFixture {
    async fn start() -> Self {
        let servers = ProxiedMcpFixture::start().await;
        Self { servers }
    }

    /// The only task, if one exists.
    async fn only_task(&self) -> Option<Task> {
        let request = ListTasksRequest::default();
        let listed = self.servers.relay.admin().tasks().list(request).await;
        let tasks = listed.expect("tasks are listed").into_inner().tasks;
        assert!(tasks.len() <= 1, "a task was created twice: {tasks:#?}");
        tasks.into_iter().next()
    }

    async fn revision(&self) -> u64 {
        self.only_task().await.map_or(0, |task| task.revision)
    }

    /// Waits until the call is durable. Its answer is on the wire then.
    async fn wait_for_revision_after(&self, revision: u64) {
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        wait_within("the call to be durable", async {
            while self.revision().await <= revision {
                ticks.tick().await;
            }
        })
        .await;
    }

    /// Calls a tool and drops the first answer.
    async fn call_with_lost_answer(
        &mut self,
        loss: AnswerLoss,
        tool: &str,
        arguments: Value,
    ) -> Value {
        let before = self.revision().await;
        self.servers
            .proxy
            .set_passed_traffic(PassedTraffic::ToRelayOnly);
        let call = self.servers.mcp.call_tool(tool, arguments);
        tokio::pin!(call);
        tokio::select! {
            response = &mut call => panic!("{tool} was answered: {response:?}"),
            () = self.wait_for_revision_after(before) => {}
        }
        if loss == AnswerLoss::RelayKilled {
            self.servers.relay.kill().await;
            self.servers.relay.start_again().await;
        }
        let dialed = self.servers.proxy.connection_count();
        self.servers.proxy.cut_connections();
        let again = async {
            let mut ticks = tokio::time::interval(POLL_INTERVAL);
            while self.servers.proxy.connection_count() == dialed {
                ticks.tick().await;
            }
        };
        tokio::select! {
            response = &mut call => panic!("{tool} was answered: {response:?}"),
            () = wait_within("the MCP server to connect again", again) => {}
        }
        self.servers.proxy.set_passed_traffic(PassedTraffic::Both);
        call.await.into_content()
    }

    /// Calls a tool, kills the relay once the call is durable, and keeps it down until the MCP
    /// server answers `unavailable`.
    async fn call_until_given_up(&mut self, tool: &str, arguments: Value) {
        let before = self.revision().await;
        self.servers
            .proxy
            .set_passed_traffic(PassedTraffic::ToRelayOnly);
        let call = self.servers.mcp.call_tool(tool, arguments);
        tokio::pin!(call);
        tokio::select! {
            response = &mut call => panic!("{tool} was answered: {response:?}"),
            () = self.wait_for_revision_after(before) => {}
        }
        self.servers.relay.kill().await;
        self.servers.proxy.cut_connections();
        let response = call.await;
        assert_eq!(
            response.error_field("status"),
            "unavailable",
            "{response:?}"
        );
        self.servers.proxy.set_passed_traffic(PassedTraffic::Both);
        self.servers.relay.start_again().await;
    }
}

/// The agent gets `unavailable` and repeats the call. The relay recognises the repetition.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_call_repeated_after_unavailable_takes_effect_once() {
    let mut fixture = LostAnswersFixture::start().await;
    let goal = json!({"goal": "review it", "agent_scope": SCOPE});
    fixture
        .call_until_given_up("task_start", goal.clone())
        .await;
    let started = fixture
        .servers
        .mcp
        .call_tool("task_start", goal)
        .await
        .into_content();
    assert_eq!(started["ref"]["attemptNumber"], json!(1), "{started}");
    let half = json!({"summary": "half"});
    fixture
        .call_until_given_up("task_checkpoint", half.clone())
        .await;
    fixture
        .servers
        .mcp
        .call_tool("task_checkpoint", half)
        .await
        .into_content();
    let done = json!({"outcome": "completed", "summary": "reviewed"});
    fixture
        .call_until_given_up("task_complete", done.clone())
        .await;
    let response = fixture
        .servers
        .mcp
        .call_tool("task_complete", done)
        .await
        .into_content();
    assert_eq!(response["task"]["state"], json!("completed"));
    let task = fixture.only_task().await.expect("one task was created");
    let whole = fixture.servers.relay.admin().get(&task.task_id).await;
    let progress = whole.progress.expect("there was a checkpoint");
    assert_eq!((whole.attempts.len(), progress.checkpoint_count), (1, 1));
}

async fn assert_every_call_takes_effect_once(loss: AnswerLoss) {
    let mut fixture = LostAnswersFixture::start().await;
    let goal = json!({"goal": "review it", "agent_scope": SCOPE});
    let started = fixture
        .call_with_lost_answer(loss, "task_start", goal)
        .await;
    assert_eq!(started["held"], json!(true));
    let proof = json!([{"kind": "commit", "ref": "abc", "summary": "half of it"}]);
    let progress = json!({"completed_items": ["one"], "evidence": &proof});
    let response = fixture
        .call_with_lost_answer(loss, "task_progress", progress)
        .await;
    assert_eq!(response["progress"]["evidence"], proof);
    let response =
        fixture.call_with_lost_answer(loss, "task_checkpoint", json!({"summary": "half"}));
    assert_eq!(response.await["checkpoint"]["summary"], json!("half"));
    let response =
        fixture.call_with_lost_answer(loss, "task_block", json!({"reason": "which branch?"}));
    let response = response.await;
    assert_eq!(response["task"]["state"], json!("needs_attention"));
    assert!(response["checkpointId"].is_string(), "{response}");
    let task_argument = json!({"task_id": response["task"]["taskId"]});
    let picked = fixture
        .call_with_lost_answer(loss, "pick_up_task", task_argument)
        .await;
    assert_eq!(picked["ref"]["attemptNumber"], json!(2), "{picked}");
    let response = fixture
        .call_with_lost_answer(loss, "release_task", json!({}))
        .await;
    assert_eq!(response["task"]["state"], json!("queued"));
    let claimed = fixture
        .call_with_lost_answer(loss, "claim_task", json!({}))
        .await;
    assert_eq!(claimed["ref"]["attemptNumber"], json!(3), "{claimed}");
    let done = json!({"outcome": "completed", "summary": "reviewed"});
    let response = fixture
        .call_with_lost_answer(loss, "task_complete", done)
        .await;
    assert_eq!(response["task"]["state"], json!("completed"));

    let task_id = response["task"]["taskId"]
        .as_str()
        .expect("a task has an id");
    let task = fixture.servers.relay.admin().get(task_id).await;
    assert_eq!(
        (task.state(), task.attempts.len()),
        (TaskState::Completed, 3)
    );
    let progress = task.progress.expect("there was progress");
    assert_eq!((progress.checkpoint_count, progress.evidence.len()), (2, 1));
    let watch = fixture.servers.relay.admin().watch(task_id).await;
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
async fn tool_calls_with_lost_answers_are_answered_again_and_take_effect_once() {
    assert_every_call_takes_effect_once(AnswerLoss::StreamBreaks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_calls_stored_before_a_relay_kill_are_answered_after_its_restart() {
    assert_every_call_takes_effect_once(AnswerLoss::RelayKilled).await;
}
