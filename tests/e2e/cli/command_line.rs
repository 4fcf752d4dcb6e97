//! The interface that other programs rely on: arguments, JSON and exit codes of the executable.

use baton_proto::v1::Role;
use baton_tests::{CommandOutput, DaemonProcess, RelayProcess, agent_task};
use serde_json::Value;

use crate::{BATON, STANDIN};

struct CommandLineFixture {
    relay: RelayProcess,
    _daemon: DaemonProcess,
    _dir: tempfile::TempDir,
}

impl CommandLineFixture {
    async fn start() -> Self {
        let relay = RelayProcess::start(BATON).await;
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let (_, secret) = relay.admin().create_token("", Role::Daemon).await;
        let url = relay.admin().url().to_owned();
        let daemon = DaemonProcess::start(BATON, dir.path(), "one", &url, &secret).await;
        Self {
            relay,
            _daemon: daemon,
            _dir: dir,
        }
    }

    async fn run_command(&self, arguments: &[&str]) -> CommandOutput {
        BATON.run(self.relay.data(), arguments).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn submit_wait_prints_one_object_with_all_fields_and_the_exit_code() {
    let fixture = CommandLineFixture::start().await;
    let wait = ["submit", "--agent", "command", "--json", "--wait"];
    let run = async |flags: &[&str], argv: &[&str]| {
        let arguments: Vec<&str> = wait
            .iter()
            .chain(flags)
            .chain(&["--"])
            .chain(argv)
            .copied()
            .collect();
        fixture.run_command(&arguments).await
    };
    let done = run(&[], &["sh", "-c", "echo hi"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let object = done.stdout_json();
    assert_eq!(object["state"], "completed");
    assert!(object["taskId"].is_string());
    let attempt = &object["attempts"][0];
    for field in [
        "attemptId",
        "attemptNumber",
        "state",
        "failureCode",
        "retryable",
        "retrySafe",
        "message",
        "userMessage",
        "endedBy",
    ] {
        assert!(
            attempt.get(field).is_some(),
            "{field} is missing in {attempt}"
        );
    }
    assert_eq!(
        (&attempt["state"], &attempt["endedBy"]),
        (&"completed".into(), &"daemon".into())
    );

    let failed = run(&["--max-attempts", "1"], &["sh", "-c", "exit 7"]).await;
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert_eq!(
        failed.stdout_json()["attempts"][0]["failureCode"],
        "agent_exit"
    );
    let late = run(&["--deadline", "total=300ms"], &[STANDIN, "pause"]).await;
    assert_eq!(late.code, Some(1), "{late:?}");
    let late = late.stdout_json();
    assert_eq!(
        (&late["state"], &late["attempts"][0]["failureCode"]),
        (&"timed_out".into(), &"task_deadline_exceeded".into())
    );
    let unplaceable = run(
        &["--capability", "gpu", "--deadline", "queue=100ms"],
        &["true"],
    )
    .await;
    assert_eq!(unplaceable.code, Some(4), "{unplaceable:?}");
    assert_eq!(unplaceable.stdout_json()["attention"]["cause"], "starved");
    let fail_fast = run(&["--capability", "gpu", "--fail-fast"], &["true"]).await;
    assert_eq!(fail_fast.code, Some(1), "{fail_fast:?}");
    let usage = run(&["--profile", "x", "--deadline", "total=1s"], &["true"]).await;
    assert_eq!(usage.code, Some(2), "{usage:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_show_output_tasks_and_cancel_print_json_and_exit_codes() {
    let fixture = CommandLineFixture::start().await;
    let submitted = fixture
        .run_command(&[
            "submit", "--json", "--note", "team=a", "--", STANDIN, "print", "2", "pause",
        ])
        .await;
    assert_eq!(submitted.code, Some(0), "{submitted:?}");
    let id = submitted.stdout_json()["taskId"]
        .as_str()
        .unwrap()
        .to_owned();
    let client = fixture.relay.admin();
    let mut watch = client.watch(&id).await;
    watch
        .wait_for_event("output", |event| {
            event.state() == baton_proto::v1::AttemptState::Streaming
        })
        .await;
    let canceled = fixture.run_command(&["cancel", &id, "--json"]).await;
    assert_eq!(canceled.code, Some(0), "{canceled:?}");
    let watched = fixture.run_command(&["watch", &id, "--json"]).await;
    assert_eq!(watched.code, Some(3), "{watched:?}");
    let events: Vec<Value> = watched
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of_attempts: Vec<&Value> = events
        .iter()
        .filter(|event| event["attemptId"] != "")
        .collect();
    assert!(of_attempts.len() > 4, "{watched:?}");
    for event in of_attempts {
        for field in ["attemptId", "phase", "state", "observedAt", "deadlineAt"] {
            assert!(event.get(field).is_some(), "{field} is missing in {event}");
        }
    }
    let output = fixture.run_command(&["output", &id]).await;
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (Some(0), "line 1\nline 2\n")
    );
    let shown = fixture.run_command(&["show", &id, "--json"]).await;
    assert!(shown.stdout.contains(&id), "{shown:?}");
    let listed = fixture.run_command(&["tasks", "--json"]).await;
    assert!(listed.stdout.contains(&id), "{listed:?}");
    let daemons = fixture.run_command(&["daemons", "--json"]).await;
    assert!(daemons.stdout.contains("\"one\""), "{daemons:?}");
    let unknown = fixture
        .run_command(&["show", "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10"])
        .await;
    assert_eq!(
        (unknown.code, unknown.stdout.as_str()),
        (Some(1), ""),
        "{unknown:?}"
    );
    let unreachable = BATON
        .run(
            fixture.relay.data(),
            &["tasks", "--relay", "http://127.0.0.1:1"],
        )
        .await;
    assert_eq!(unreachable.code, Some(2), "{unreachable:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_list_is_one_json_object() {
    let relay = RelayProcess::start(BATON).await;
    let task = relay.admin().submit(agent_task("nobody")).await;
    for (arguments, list) in [
        (vec!["inbox", "--json"], "inputs"),
        (vec!["blocked", "--json"], "tasks"),
        (vec!["checkpoints", &task.task_id, "--json"], "checkpoints"),
    ] {
        let output = BATON.run(relay.data(), &arguments).await.stdout_json();
        assert_eq!(output[list], serde_json::json!([]), "{arguments:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn daemon_check_reports_every_problem_at_once() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let file = dir.path().join("daemon.toml");
    let text = "[agents.lint]\nkind = \"comand\"\n[roots.src]\npath = \"/nowhere/at/all\"\n";
    std::fs::write(&file, text).expect("a file");
    let key = dir.path().join("key.pem");
    std::fs::write(&key, "-----BEGIN PRIVATE KEY-----\n").expect("a file");
    let [file, key] = [file, key].map(|path| path.display().to_string());
    let check = [
        "daemon",
        "check",
        "--config",
        &file,
        "--relay",
        "https://127.0.0.1:1",
        "--ca",
        &key,
    ];
    let output = BATON.run(dir.path(), &check).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    for expected in [
        "[agents.lint]",
        "\"src\"",
        "git",
        "key.pem contains no certificate",
    ] {
        assert!(
            output.stdout.contains(expected),
            "{expected} is missing in {output:?}"
        );
    }
}
