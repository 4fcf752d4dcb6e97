//! Records a directory of the current schema: a real relay with records of every kind, killed
//! while it works.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    CheckpointDraft, DrainDaemonRequest, ListTasksRequest, PauseRequest, PutProfileRequest, Role,
    SubmitRequest, Task, TaskSpec, TaskState, UnpauseRequest, pause_request, unpause_request,
};
use baton_proto::{ShortName, timestamp_to_ms};
use baton_relay::store::SCHEMA;
use baton_tests::{RelayProcess, ScriptedDaemon, TestClient, agent_task, hello};
use serde_json::{Value, json};

use crate::BATON;
use crate::schema_fixture::{EXPECTED_FILE, LENGTHS_FILE, schema_directory};

/// The agent of the scripted daemon.
const SCRIPTED_AGENT: &str = "kept";
/// Enough that their records need more than one page of a walk.
const WAITING_TASKS: usize = 24;

/// Part of making a schema; see `README.md`. Replaces the recorded directory.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes into the source: run it by name to keep a directory of this schema"]
async fn make_the_directory_of_this_schema() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let link = client.client_of_tenant("", Role::Daemon).await;
    record_fleet(&client, &link).await;
    record_ended_tasks(&client, &link).await;
    // A restart, so that the directory has records, sled's snapshot and a journal of its last
    // run.
    relay.terminate().await;
    relay.start_again().await;
    let _holder = record_open_tasks(&client, &link).await;
    let known = expected_answers(&client).await;
    relay.kill().await;
    write_schema_directory(relay.data(), &known);
}

/// A profile, a drained daemon that is offline, a pause that has ended, another tenant.
async fn record_fleet(client: &TestClient, link: &TestClient) {
    let profile = PutProfileRequest {
        name: "patient".to_owned(),
        profile: Some(baton_proto::v1::DeadlineProfile {
            stream_idle_ms: Some(90_000),
            ..Default::default()
        }),
    };
    client
        .operator()
        .put_profile(profile)
        .await
        .expect("the profile is valid");
    let drained = ScriptedDaemon::connect(link, hello(&["away"])).await;
    let drain = DrainDaemonRequest {
        daemon: drained.welcome.daemon_id.clone(),
        reason: "kept for a test".to_owned(),
        deadline_ms: None,
    };
    client
        .fleet()
        .drain_daemon(drain)
        .await
        .expect("the daemon is known");
    let everywhere = client.client_of_tenant("*", Role::Admin).await;
    let pause = PauseRequest {
        target: Some(pause_request::Target::Scheduler(true)),
        reason: "kept for a test".to_owned(),
    };
    everywhere
        .operator()
        .pause(pause)
        .await
        .expect("an administrator may pause");
    let unpause = UnpauseRequest {
        target: Some(unpause_request::Target::Scheduler(true)),
        ..UnpauseRequest::default()
    };
    everywhere
        .operator()
        .unpause(unpause)
        .await
        .expect("the pause can be ended");
    let other = client.client_of_tenant("acme", Role::Submitter).await;
    other.submit(agent_task("nobody")).await;
}

/// Tasks that have ended in each way, with output and with a prompt in a separate file.
async fn record_ended_tasks(client: &TestClient, link: &TestClient) {
    let mut daemon = ScriptedDaemon::connect(link, hello(&[SCRIPTED_AGENT])).await;
    for number in 0..6 {
        // One prompt in several parts, one in a separate file.
        let times = match number {
            2 => 1_200,
            3 => 8_000,
            _short => 40,
        };
        let prompt = format!("prompt {number} ").repeat(times);
        client.submit(task_with_prompt(&prompt)).await;
        let mut attempt = daemon.start_next_attempt().await;
        attempt
            .send_output(&format!("output {number}\n").repeat(40))
            .await;
        let milestone = CheckpointDraft {
            summary: format!("half of {number}"),
            ..CheckpointDraft::default()
        };
        attempt.send(Body::Checkpoint(milestone)).await;
        attempt.complete("").await;
        daemon.wait_until_acked(&attempt).await;
        daemon.stop_renewing(&attempt);
    }
    let mut failing = task_with_prompt("fails");
    failing.retry = Some(baton_proto::v1::RetryPolicy {
        max_attempts: Some(1),
        ..Default::default()
    });
    client.submit(failing).await;
    let mut attempt = daemon.start_next_attempt().await;
    attempt.fail("agent_exit").await;
    daemon.wait_until_acked(&attempt).await;
    daemon.stop_renewing(&attempt);
    let waiting = client.submit(agent_task("nobody")).await;
    client.cancel(&waiting.task_id).await;
}

/// Queued tasks, one with a key, and one that runs when the relay is killed.
async fn record_open_tasks(client: &TestClient, link: &TestClient) -> ScriptedDaemon {
    let mut daemon = ScriptedDaemon::connect(link, hello(&[SCRIPTED_AGENT])).await;
    client
        .submit(task_with_prompt("runs when the relay is killed"))
        .await;
    let mut attempt = daemon.start_next_attempt().await;
    attempt.send_output("so far\n").await;
    let request = SubmitRequest {
        spec: Some(keyed_task()),
        idempotency_key: "kept".to_owned(),
        ..SubmitRequest::default()
    };
    client.try_submit(request).await.expect("the task is valid");
    for number in 0..WAITING_TASKS {
        let spec = TaskSpec {
            prompt: format!("waits {number} ").repeat(30),
            ..agent_task("waits")
        };
        client.submit(spec).await;
    }
    daemon
}

/// The task that was submitted with a key.
pub(crate) fn keyed_task() -> TaskSpec {
    TaskSpec {
        prompt: "was submitted with a key".to_owned(),
        ..agent_task("nobody")
    }
}

fn task_with_prompt(prompt: &str) -> TaskSpec {
    TaskSpec {
        prompt: prompt.to_owned(),
        ..agent_task(SCRIPTED_AGENT)
    }
}

/// The answers for clients: each task with its state, its prompt and its output.
async fn expected_answers(client: &TestClient) -> Value {
    let mut tasks = BTreeMap::new();
    let mut made_at_ms = 0;
    for task in list_tasks(client).await {
        let state = task.state();
        made_at_ms = task
            .created_at
            .as_ref()
            .map_or(made_at_ms, timestamp_to_ms)
            .max(made_at_ms);
        let whole = client
            .try_get_with_spec(&task.task_id)
            .await
            .expect("the task exists");
        let output = match state {
            TaskState::Completed | TaskState::Failed => {
                client.read_output_to_end(&task.task_id).await
            }
            _open => Vec::new(),
        };
        let expected = json!({
            "state": state.short_name(),
            "prompt": whole.spec.expect("the spec was requested").prompt,
            "output": String::from_utf8(output).expect("text"),
        });
        tasks.insert(task.task_id, expected);
    }
    json!({ "made_at_ms": made_at_ms, "tasks": tasks })
}

pub(crate) async fn list_tasks(client: &TestClient) -> Vec<Task> {
    let request = ListTasksRequest {
        page_size: 200,
        ..ListTasksRequest::default()
    };
    let page = client.tasks().list(request).await.expect("a list");
    let page = page.into_inner();
    assert_eq!((page.skipped, page.next_page_token.as_str()), (0, ""));
    page.tasks
}

fn write_schema_directory(data: &Path, known: &Value) {
    let to = schema_directory(SCHEMA);
    if to.exists() {
        fs::remove_dir_all(&to).expect("the directory is writable");
    }
    let mut lengths = BTreeMap::new();
    copy_files(data, data, &to.join("data"), &mut lengths);
    let write = |name: &str, value: &Value| {
        let text = serde_json::to_string_pretty(value).expect("JSON");
        fs::write(to.join(name), text + "\n").expect("the file can be written");
    };
    write(EXPECTED_FILE, known);
    write(LENGTHS_FILE, &json!(lengths));
}

fn copy_files(root: &Path, from: &Path, to: &Path, lengths: &mut BTreeMap<String, usize>) {
    for entry in fs::read_dir(from)
        .expect("a directory")
        .map(|entry| entry.expect("a file"))
    {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_files(root, &path, &target, lengths);
            continue;
        }
        // The former listen address is not part of the recording.
        if path.ends_with("relay.url") {
            continue;
        }
        let bytes = fs::read(&path).expect("a file");
        let name = path
            .strip_prefix(root)
            .expect("below it")
            .display()
            .to_string();
        lengths.insert(name, bytes.len());
        let length = bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        fs::create_dir_all(to).expect("the directory is writable");
        fs::write(target, &bytes[..length]).expect("the file can be written");
    }
}
