//! Empty lists as JSON, and `baton daemon check`. Other arguments, JSON and exit codes are tested
//! in cli/tests.

use baton_tests::{RelayProcess, agent_task};

use crate::BATON;

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
