//! The MCP tools of an agent that a daemon runs. Each agent kind gets them through its own
//! configuration, they work only on the attempt's own task, and their capability is invalid
//! after the attempt.

use std::collections::BTreeSet;
use std::path::Path;

use baton_proto::v1::{
    CompletionContract, RequiredArtifact, RetryPolicy, Task, TaskSpec, TaskState,
};
use baton_tests::{
    AttemptToolAccess, CODING_AGENTS, McpClient, RelayAndDaemon, RelayProcess, TestClient,
    TraceCollector, command_task, scripted_task, standin_agents_toml,
};
use serde_json::json;

use crate::agents::shell_agents::read_output;
use crate::secret_search::{SecretSearch, files_below};
use crate::{BATON, STANDIN};

struct AttemptToolsFixture {
    servers: RelayAndDaemon,
}

impl AttemptToolsFixture {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts with additional arguments for the relay.
    async fn start_with(arguments: &[&str]) -> Self {
        let relay = RelayProcess::start_with(BATON, arguments).await;
        let url = relay.admin().url().to_owned();
        let config = |_: &Path| standin_agents_toml(STANDIN, &[]);
        let servers = RelayAndDaemon::start_at(BATON, relay, url, config).await;
        Self { servers }
    }

    fn client(&self) -> &TestClient {
        self.servers.client()
    }

    fn dir(&self) -> &Path {
        self.servers.dir.path()
    }

    async fn submit_task(&self, spec: TaskSpec) -> Task {
        let spec = TaskSpec { mcp: true, ..spec };
        self.client().submit(spec).await
    }

    /// Submits a command that runs until this file exists, and returns the tool access it was
    /// given.
    async fn submit_until_running(&self, name: &str) -> (Task, AttemptToolAccess) {
        let file = self.dir().join(name);
        let script = format!("while [ ! -e {} ]; do sleep 0.05; done", file.display());
        let spec = TaskSpec {
            goal: format!("wait for {name}"),
            success_criteria: vec!["it is there".to_owned()],
            retry: Some(RetryPolicy {
                max_attempts: Some(1),
                ..RetryPolicy::default()
            }),
            ..command_task("sh", &["-c", &script], name)
        };
        let task = self.submit_task(spec).await;
        let access = AttemptToolAccess::wait_for_attempt(&task.attempts[0].attempt_id).await;
        (task, access)
    }

    async fn start_mcp(&self, access: &AttemptToolAccess) -> McpClient {
        McpClient::start_for_attempt(BATON, self.dir(), access).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_agent_kind_gets_the_tools_through_its_own_configuration() {
    let fixture = AttemptToolsFixture::start().await;
    let mut checked_lines = 0;
    for (agent, ..) in CODING_AGENTS {
        let script = "use task_get {}; use claim_task {}; use task_checkpoint {\"summary\": \" \"}; say done";
        let task = fixture.submit_task(scripted_task(agent, script)).await;
        let ended = fixture.client().wait_for_end(&task.task_id).await;
        assert_eq!(ended.state(), TaskState::Completed, "{agent}: {ended:?}");
        let output = read_output(fixture.client(), &task, |_| true).await;
        for line in [
            "task_get -> ok",
            "claim_task -> inside_an_attempt",
            "task_checkpoint -> blank",
        ] {
            assert!(output.contains(line), "{agent}: {output}");
            checked_lines += 1;
        }
        let bare = fixture
            .client()
            .submit(scripted_task(agent, "use task_get {}"))
            .await;
        fixture.client().wait_for_end(&bare.task_id).await;
        let output = read_output(fixture.client(), &bare, |_| true).await;
        assert!(
            output.contains("no tool server was configured"),
            "{agent}: {output}"
        );
    }
    assert_eq!(checked_lines, 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_inside_an_attempt_see_only_their_own_task() {
    let fixture = AttemptToolsFixture::start().await;
    let (task, access) = fixture.submit_until_running("own").await;
    let tools = fixture.start_mcp(&access).await;
    assert_eq!(tools.list_tools().await.len(), 14);
    assert!(
        tools
            .instructions()
            .contains("daemon holds its lease for you")
    );
    let own = tools.call_tool("task_get", json!({})).await.into_content();
    assert_eq!(own["task"]["taskId"], json!(task.task_id));
    assert_eq!(own["task"]["goal"], json!("wait for own"));
    assert_eq!(own["task"]["successCriteria"], json!(["it is there"]));
    let list = tools.call_tool("task_list", json!({})).await.into_content();
    assert_eq!(list["tasks"].as_array().map(Vec::len), Some(1));
    let blocked = tools.call_tool("list_blocked_tasks", json!({})).await;
    let blocked = blocked.into_content();
    assert_eq!(blocked["tasks"], json!([]));
    assert_eq!(blocked["scope"], json!("own_task"));
    assert_foreign_calls_are_refused(&tools, &task.task_id).await;
    fixture.servers.create_file("own");
    fixture.client().wait_for_end(&task.task_id).await;
}

async fn assert_foreign_calls_are_refused(tools: &McpClient, task_id: &str) {
    let other = uuid::Uuid::now_v7().to_string();
    for (tool, arguments, code) in [
        (
            "task_start",
            json!({"goal": "another"}),
            "inside_an_attempt",
        ),
        ("claim_task", json!({}), "inside_an_attempt"),
        (
            "pick_up_task",
            json!({"task_id": other}),
            "inside_an_attempt",
        ),
        ("release_task", json!({}), "inside_an_attempt"),
        ("task_get", json!({"task_id": other}), "unknown_task"),
        (
            "get_blocked_task",
            json!({"task_id": other}),
            "unknown_task",
        ),
        (
            "get_blocked_task",
            json!({"task_id": task_id}),
            "not_blocked",
        ),
        (
            "task_block",
            json!({"task_id": other, "reason": " "}),
            "blank",
        ),
        (
            "task_block",
            json!({"task_id": other, "reason": "x"}),
            "unknown_task",
        ),
        (
            "task_progress",
            json!({"completed_items": "abc"}),
            "wrong_type",
        ),
        ("task_complete", json!({"summary": "x"}), "missing"),
        (
            "task_complete",
            json!({"outcome": "done", "summary": "x"}),
            "unknown_enum_value",
        ),
    ] {
        let response = tools.call_tool(tool, arguments.clone()).await;
        assert_eq!(response.error_field("code"), code, "{tool} {arguments}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capability_is_valid_only_for_its_own_running_attempt() {
    let mut fixture = AttemptToolsFixture::start().await;
    let (one, access) = fixture.submit_until_running("first").await;
    let (two, other) = fixture.submit_until_running("second").await;
    let tools = fixture.start_mcp(&access).await;
    assert!(!tools.call_tool("task_get", json!({})).await.is_refused);

    // The other attempt's id with this attempt's secret.
    let secret = |access: &AttemptToolAccess| {
        access
            .capability
            .split_once('.')
            .map(|(_, secret)| secret.to_owned())
    };
    let forged = AttemptToolAccess {
        capability: format!(
            "{}.{}",
            two.attempts[0].attempt_id,
            secret(&access).unwrap()
        ),
        ..access.clone()
    };
    let forged_tools = fixture.start_mcp(&forged).await;
    let response = forged_tools.call_tool("task_get", json!({})).await;
    assert_eq!(
        (response.error_field("status"), response.error_field("code")),
        ("permission_denied", "capability_refused")
    );

    // A new daemon on the same directory accepts the capability.
    fixture.servers.kill_and_restart_daemon().await;
    let own = tools.call_tool("task_get", json!({})).await.into_content();
    assert_eq!(own["task"]["taskId"], json!(one.task_id));
    assert_eq!(own["task"]["goal"], json!("wait for first"));

    fixture.servers.create_file("first");
    fixture.client().wait_for_end(&one.task_id).await;
    let response = tools
        .call_tool("task_checkpoint", json!({"summary": "late"}))
        .await;
    assert_eq!(response.error_field("code"), "capability_refused");
    let still = fixture.start_mcp(&other).await;
    assert!(
        !still.call_tool("task_get", json!({})).await.is_refused,
        "the other attempt still runs"
    );
    fixture.servers.create_file("second");
    fixture.client().wait_for_end(&two.task_id).await;
    assert_eq!(
        still
            .call_tool("task_get", json!({}))
            .await
            .error_field("code"),
        "capability_refused"
    );
}

/// Searches everything that a full run writes: both data directories, an export, events and
/// spans.
#[tokio::test(flavor = "multi_thread")]
async fn a_capability_exists_only_in_the_agents_environment() {
    let mut collector = TraceCollector::start().await;
    let fixture = AttemptToolsFixture::start_with(&["--otlp", collector.url()]).await;
    let (task, access) = fixture.submit_until_running("secret").await;
    let tools = fixture.start_mcp(&access).await;
    assert!(!tools.call_tool("task_get", json!({})).await.is_refused);
    let finish = json!({"outcome": "completed", "summary": "done", "result": "42"});
    tools.call_tool("task_complete", finish).await;
    let during = files_with_secret(
        &[fixture.dir(), fixture.servers.relay.data()],
        &access.capability,
    );
    fixture.servers.create_file("secret");
    fixture.client().wait_for_end(&task.task_id).await;
    let name = fixture.dir().join("export").display().to_string();
    let data = fixture.servers.relay.data();
    let made = BATON.run(data, &["export", "--out", &name]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let shown = BATON.run(data, &["watch", "--json", &task.task_id]).await;
    let spans = format!("{:?}", collector.wait_for_span("baton.task").await);
    let secret = access
        .capability
        .split_once('.')
        .expect("a capability has two parts")
        .1;
    assert!(!shown.stdout.contains(secret) && !spans.contains(secret));
    let after = files_with_secret(&[fixture.dir(), data], &access.capability);
    assert!(during.1 > 10 && after.1 > 10, "{during:?} {after:?}");
    assert_eq!((during.0, after.0), (BTreeSet::new(), BTreeSet::new()));
}

/// The files that contain the secret part of a capability, and the number of files read.
fn files_with_secret(directories: &[&Path], capability: &str) -> (BTreeSet<String>, usize) {
    let secret = capability
        .split_once('.')
        .expect("a capability has two parts")
        .1;
    let files = directories
        .iter()
        .flat_map(|directory| files_below(directory));
    let files: Vec<_> = files.collect();
    let found = SecretSearch::for_secrets(&[secret.into()]).locations_with_secret(&files);
    (found.into_iter().map(str::to_owned).collect(), files.len())
}

/// The outcome is what the agent reported, and not its exit code.
#[tokio::test(flavor = "multi_thread")]
async fn the_outcome_an_agent_reports_overrides_its_exit_code() {
    let fixture = AttemptToolsFixture::start().await;
    for (outcome, state) in [
        ("completed", TaskState::Completed),
        ("failed", TaskState::Failed),
        ("canceled", TaskState::Canceled),
    ] {
        let (task, access) = fixture.submit_until_running(outcome).await;
        let tools = fixture.start_mcp(&access).await;
        let finish = json!({"outcome": outcome, "summary": "because", "result": "42"});
        tools.call_tool("task_complete", finish).await;
        let late = tools
            .call_tool("task_progress", json!({"summary": "late"}))
            .await;
        assert_eq!(late.error_field("code"), "outcome_fixed");
        fixture.servers.create_file(outcome);
        let ended = fixture.client().wait_for_end(&task.task_id).await;
        assert_eq!(ended.state(), state, "{ended:?}");
        if state == TaskState::Completed {
            assert_eq!(ended.result.as_ref(), b"42".as_slice());
        }
        if state == TaskState::Failed {
            let attempt = ended.attempts.last().expect("the task has an attempt");
            assert_eq!(attempt.failure_code, "agent_reported");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn completing_without_required_files_lists_them_and_the_attempt_continues() {
    let fixture = AttemptToolsFixture::start().await;
    let names = ["a.txt", "b/c.txt"];
    let contract = CompletionContract {
        required_artifacts: names.map(required_artifact).to_vec(),
        ..CompletionContract::default()
    };
    let work_dir = fixture.dir().join("one/work");
    let file = fixture.dir().join("files");
    let script = format!("while [ ! -e {} ]; do sleep 0.05; done", file.display());
    let spec = TaskSpec {
        contract: Some(contract),
        ..command_task("sh", &["-c", &script], "files")
    };
    let task = fixture.submit_task(spec).await;
    let tools = fixture
        .start_mcp(&AttemptToolAccess::wait_for_attempt(&task.attempts[0].attempt_id).await)
        .await;
    let finish = json!({"outcome": "completed", "summary": "done"});
    for (written, missing) in [(None, json!(names)), (Some("a.txt"), json!(["b/c.txt"]))] {
        if let Some(name) = written {
            std::fs::write(work_dir.join(name), "x").expect("a file can be written");
        }
        let response = tools.call_tool("task_complete", finish.clone()).await;
        assert_eq!(response.error_field("code"), "contract_unmet");
        assert_eq!(response.content["error"]["missing"], missing);
    }
    std::fs::create_dir(work_dir.join("b")).expect("a directory can be made");
    std::fs::write(work_dir.join("b/c.txt"), "x").expect("a file can be written");
    tools.call_tool("task_complete", finish).await;
    let late = tools
        .call_tool("task_progress", json!({"summary": "late"}))
        .await;
    assert_eq!(late.error_field("code"), "outcome_fixed");
    fixture.servers.create_file("files");
    let ended = fixture.client().wait_for_end(&task.task_id).await;
    assert_eq!(ended.state(), TaskState::Completed, "{ended:?}");
}

fn required_artifact(path: &str) -> RequiredArtifact {
    RequiredArtifact {
        path: path.to_owned(),
        ..RequiredArtifact::default()
    }
}
