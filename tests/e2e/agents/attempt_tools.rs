//! The tools of an agent that a daemon runs: handed over by each kind's own configuration, answered for the attempt's own task
//! alone, and worth nothing when the attempt is over.

use std::path::{Path, PathBuf};

use baton_proto::v1::{
    CompletionContract, RequiredArtifact, RetryPolicy, Role, Task, TaskSpec, TaskState,
};
use baton_tests::{
    AttemptToolAccess, CODING_AGENTS, DaemonProcess, McpClient, RelayProcess, TraceCollector,
    command_task, scripted_task, standin_agents_toml,
};
use serde_json::json;

use crate::agents::shell_agents::read_output;
use crate::{BATON, STANDIN};

struct AttemptToolsFixture {
    relay: RelayProcess,
    daemon: DaemonProcess,
    dir: tempfile::TempDir,
    secret: String,
}

impl AttemptToolsFixture {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// With more on the relay's command line.
    async fn start_with(arguments: &[&str]) -> Self {
        let relay = RelayProcess::start_with(BATON, arguments).await;
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let file = dir.path().join("daemon.toml");
        std::fs::write(&file, standin_agents_toml(STANDIN, &[])).expect("a file can be written");
        let (_, secret) = relay.admin().create_token("", Role::Daemon).await;
        let daemon = start_daemon(&relay, dir.path(), &secret).await;
        Self {
            relay,
            daemon,
            dir,
            secret,
        }
    }

    async fn submit_task(&self, spec: TaskSpec) -> Task {
        let spec = TaskSpec { mcp: true, ..spec };
        self.relay.admin().submit(spec).await
    }

    /// A command that runs until there is such a file in the fleet's directory, and what it was handed.
    async fn submit_until_running(&self, name: &str) -> (Task, AttemptToolAccess) {
        let file = self.dir.path().join(name);
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
        let handed = AttemptToolAccess::wait_for_attempt(&task.attempts[0].attempt_id).await;
        (task, handed)
    }

    fn create_file(&self, name: &str) {
        std::fs::write(self.dir.path().join(name), "").expect("a file can be written");
    }

    async fn start_mcp(&self, handed: &AttemptToolAccess) -> McpClient {
        McpClient::start_for_attempt(BATON, self.dir.path(), handed).await
    }

    async fn wait_for_end(&self, task: &Task) -> Task {
        let admin = self.relay.admin();
        admin.watch(&task.task_id).await.collect_to_end().await;
        admin.get(&task.task_id).await
    }
}

async fn start_daemon(relay: &RelayProcess, dir: &Path, secret: &str) -> DaemonProcess {
    let file = dir.join("daemon.toml");
    let config = ["--config", file.to_str().expect("paths here are text")];
    let url = relay.admin().url().to_owned();
    DaemonProcess::start_with(BATON, dir, "one", (&url, secret), &config).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_agent_is_handed_the_tools_by_its_own_configuration() {
    let fleet = AttemptToolsFixture::start().await;
    let mut spoken = 0;
    for (agent, ..) in CODING_AGENTS {
        let script = "use task_get {}; use claim_task {}; use task_checkpoint {\"summary\": \" \"}; say done";
        let task = fleet.submit_task(scripted_task(agent, script)).await;
        let ended = fleet.wait_for_end(&task).await;
        assert_eq!(ended.state(), TaskState::Completed, "{agent}: {ended:?}");
        let said = read_output(fleet.relay.admin(), &task, |_| true).await;
        for line in [
            "task_get -> ok",
            "claim_task -> inside_an_attempt",
            "task_checkpoint -> blank",
        ] {
            assert!(said.contains(line), "{agent}: {said}");
            spoken += 1;
        }
        let bare = fleet
            .relay
            .admin()
            .submit(scripted_task(agent, "use task_get {}"))
            .await;
        fleet.wait_for_end(&bare).await;
        let said = read_output(fleet.relay.admin(), &bare, |_| true).await;
        assert!(said.contains("nothing was handed over"), "{agent}: {said}");
    }
    assert_eq!(spoken, 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn inside_an_attempt_its_own_task_is_all_there_is() {
    let fleet = AttemptToolsFixture::start().await;
    let (task, handed) = fleet.submit_until_running("own").await;
    let tools = fleet.start_mcp(&handed).await;
    assert_eq!(tools.list_tools().await.len(), 14);
    assert!(tools.instructions().contains("daemon holds it for you"));
    let own = tools.call_tool("task_get", json!({})).await.into_content();
    assert_eq!(own["task"]["taskId"], json!(task.task_id));
    assert_eq!(own["task"]["goal"], json!("wait for own"));
    assert_eq!(own["task"]["successCriteria"], json!(["it is there"]));
    let list = tools.call_tool("task_list", json!({})).await.into_content();
    assert_eq!(list["tasks"].as_array().map(Vec::len), Some(1));
    let blocked = tools
        .call_tool("list_blocked_tasks", json!({}))
        .await
        .into_content();
    assert_eq!(
        (&blocked["tasks"], &blocked["scope"]),
        (&json!([]), &json!("own_task"))
    );
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
            json!({"task_id": task.task_id}),
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
        let told = tools.call_tool(tool, arguments.clone()).await;
        assert_eq!(told.error_field("code"), code, "{tool} {arguments}");
    }
    fleet.create_file("own");
    fleet.wait_for_end(&task).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capability_speaks_for_its_own_attempt_while_that_runs_and_for_nothing_else() {
    let mut fleet = AttemptToolsFixture::start().await;
    let (one, handed) = fleet.submit_until_running("first").await;
    let (two, other) = fleet.submit_until_running("second").await;
    let tools = fleet.start_mcp(&handed).await;
    assert!(!tools.call_tool("task_get", json!({})).await.is_refused);

    // Another attempt's name with this attempt's secret, and the other way round.
    let secret = |handed: &AttemptToolAccess| {
        handed
            .capability
            .split_once('.')
            .map(|(_, secret)| secret.to_owned())
    };
    let forged = AttemptToolAccess {
        capability: format!(
            "{}.{}",
            two.attempts[0].attempt_id,
            secret(&handed).unwrap()
        ),
        ..handed.clone()
    };
    let liar = fleet.start_mcp(&forged).await;
    let told = liar.call_tool("task_get", json!({})).await;
    assert_eq!(
        (told.error_field("status"), told.error_field("code")),
        ("permission_denied", "capability_refused")
    );

    // A new daemon on the same directory knows it.
    fleet.daemon.kill().await;
    fleet.daemon = start_daemon(&fleet.relay, fleet.dir.path(), &fleet.secret).await;
    let own = tools.call_tool("task_get", json!({})).await.into_content();
    assert_eq!(own["task"]["taskId"], json!(one.task_id));
    assert_eq!(own["task"]["goal"], json!("wait for first"));

    fleet.create_file("first");
    fleet.wait_for_end(&one).await;
    let told = tools
        .call_tool("task_checkpoint", json!({"summary": "late"}))
        .await;
    assert_eq!(told.error_field("code"), "capability_refused");
    let still = fleet.start_mcp(&other).await;
    assert!(
        !still.call_tool("task_get", json!({})).await.is_refused,
        "the other one still runs"
    );
    fleet.create_file("second");
    fleet.wait_for_end(&two).await;
    assert_eq!(
        still
            .call_tool("task_get", json!({}))
            .await
            .error_field("code"),
        "capability_refused"
    );
}

/// A full story, and then a look at everything that was written meanwhile: both data directories, an export, events, spans.
#[tokio::test(flavor = "multi_thread")]
async fn a_capability_is_in_the_agents_environment_and_nowhere_else() {
    let mut collector = TraceCollector::start().await;
    let fleet = AttemptToolsFixture::start_with(&["--otlp", collector.url()]).await;
    let (task, handed) = fleet.submit_until_running("secret").await;
    let tools = fleet.start_mcp(&handed).await;
    assert!(!tools.call_tool("task_get", json!({})).await.is_refused);
    let finish = json!({"outcome": "completed", "summary": "done", "result": "42"});
    tools.call_tool("task_complete", finish).await;
    let during = files_with_secret(&[fleet.dir.path(), fleet.relay.data()], &handed.capability);
    fleet.create_file("secret");
    fleet.wait_for_end(&task).await;
    let name = fleet.dir.path().join("export").display().to_string();
    let data = fleet.relay.data();
    let made = BATON.run(data, &["export", "--out", &name]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let shown = BATON.run(data, &["watch", "--json", &task.task_id]).await;
    let spans = format!("{:?}", collector.wait_for_span("baton.task").await);
    let secret = handed
        .capability
        .split_once('.')
        .expect("it has two parts")
        .1;
    assert!(!shown.stdout.contains(secret) && !spans.contains(secret));
    let after = files_with_secret(&[fleet.dir.path(), data], &handed.capability);
    assert!(during.1 > 10 && after.1 > 10, "{during:?} {after:?}");
    assert_eq!((during.0, after.0), (Vec::new(), Vec::new()));
}

/// Files that hold the secret part of a capability, and how many were read.
fn files_with_secret(places: &[&Path], capability: &str) -> (Vec<PathBuf>, usize) {
    let secret = capability
        .split_once('.')
        .expect("it has two parts")
        .1
        .as_bytes();
    let (mut found, mut read) = (Vec::new(), 0);
    let mut open: Vec<PathBuf> = places.iter().map(|place| place.to_path_buf()).collect();
    while let Some(path) = open.pop() {
        if let Ok(entries) = std::fs::read_dir(&path) {
            open.extend(entries.flatten().map(|entry| entry.path()));
        } else if path.is_file()
            && let Ok(bytes) = std::fs::read(&path)
        {
            read += 1;
            if bytes.windows(secret.len()).any(|window| window == secret) {
                found.push(path);
            }
        }
    }
    (found, read)
}

/// How it ended is the agent's word, and not its exit code.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_says_of_its_end_counts_whatever_its_process_does() {
    let fleet = AttemptToolsFixture::start().await;
    for (outcome, state) in [
        ("completed", TaskState::Completed),
        ("failed", TaskState::Failed),
        ("canceled", TaskState::Canceled),
    ] {
        let (task, handed) = fleet.submit_until_running(outcome).await;
        let tools = fleet.start_mcp(&handed).await;
        let finish = json!({"outcome": outcome, "summary": "because", "result": "42"});
        tools.call_tool("task_complete", finish).await;
        let late = tools
            .call_tool("task_progress", json!({"summary": "late"}))
            .await;
        assert_eq!(late.error_field("code"), "outcome_fixed");
        fleet.create_file(outcome);
        let ended = fleet.wait_for_end(&task).await;
        assert_eq!(ended.state(), state, "{ended:?}");
        if state == TaskState::Completed {
            assert_eq!(ended.result.as_ref(), b"42".as_slice());
        }
        if state == TaskState::Failed {
            let attempt = ended.attempts.last().expect("an attempt");
            assert_eq!(attempt.failure_code, "agent_reported");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn completing_without_required_files_names_all_of_them_and_the_attempt_goes_on() {
    let fleet = AttemptToolsFixture::start().await;
    let names = ["a.txt", "b/c.txt"];
    let contract = CompletionContract {
        required_artifacts: names.map(required_artifact).to_vec(),
        ..CompletionContract::default()
    };
    let place = fleet.dir.path().join("one/work");
    let file = fleet.dir.path().join("files");
    let script = format!("while [ ! -e {} ]; do sleep 0.05; done", file.display());
    let spec = TaskSpec {
        contract: Some(contract),
        ..command_task("sh", &["-c", &script], "files")
    };
    let task = fleet.submit_task(spec).await;
    let tools = fleet
        .start_mcp(&AttemptToolAccess::wait_for_attempt(&task.attempts[0].attempt_id).await)
        .await;
    let finish = json!({"outcome": "completed", "summary": "done"});
    for (written, missing) in [(None, json!(names)), (Some("a.txt"), json!(["b/c.txt"]))] {
        if let Some(name) = written {
            std::fs::write(place.join(name), "x").expect("a file can be written");
        }
        let told = tools.call_tool("task_complete", finish.clone()).await;
        assert_eq!(told.error_field("code"), "contract_unmet");
        assert_eq!(told.content["error"]["missing"], missing);
    }
    std::fs::create_dir(place.join("b")).expect("a directory can be made");
    std::fs::write(place.join("b/c.txt"), "x").expect("a file can be written");
    tools.call_tool("task_complete", finish).await;
    let late = tools
        .call_tool("task_progress", json!({"summary": "late"}))
        .await;
    assert_eq!(late.error_field("code"), "outcome_fixed");
    fleet.create_file("files");
    let ended = fleet.wait_for_end(&task).await;
    assert_eq!(ended.state(), TaskState::Completed, "{ended:?}");
}

fn required_artifact(path: &str) -> RequiredArtifact {
    RequiredArtifact {
        path: path.to_owned(),
        ..RequiredArtifact::default()
    }
}
