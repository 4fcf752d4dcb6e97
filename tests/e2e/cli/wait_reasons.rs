//! What a person is told of work that does not go on: it is paused, asks something, or is behind another turn.

use baton_daemon::AgentWire;
use baton_proto::v1::{Role, TaskState};
use baton_tests::{CommandOutput, DaemonProcess, RelayProcess};

use crate::agents::input_answers::start_fixture;
use crate::{BATON, STANDIN};

fn line_with<'a>(said: &'a CommandOutput, word: &str) -> &'a str {
    let mut lines = said.stdout.lines();
    let found = lines.find(|line| line.contains(word));
    found.unwrap_or_else(|| panic!("{word} in {said:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_work_says_so_when_it_is_submitted_and_in_the_list() {
    let relay = RelayProcess::start(BATON).await;
    let pause = ["pause", "--scheduler", "--reason", "upgrade"];
    let paused = BATON.run(relay.data(), &pause).await;
    assert_eq!(paused.code, Some(0), "{paused:?}");
    let submit = ["submit", "--", "true"];
    let submitted = BATON.run(relay.data(), &submit).await;
    let words = "it waits: all dispatching is paused by ";
    assert!(submitted.stderr.contains(words), "{submitted:?}");
    let task = submitted.stdout.trim();
    let listed = BATON.run(relay.data(), &["tasks"]).await;
    assert!(
        line_with(&listed, task).contains("paused: upgrade"),
        "{listed:?}"
    );
    let shown = BATON.run(relay.data(), &["show", task]).await;
    assert!(
        line_with(&shown, "paused:").contains("upgrade"),
        "{shown:?}"
    );

    // Who submits is no operator, and is told all the same.
    let (_, secret) = relay.admin().create_token("default", Role::Submitter).await;
    let file = relay.data().join("submitter.token");
    std::fs::write(&file, secret).expect("the file system is there");
    let file = file.to_str().expect("paths of tests are text");
    let as_submitter = ["submit", "--token-file", file, "--", "true"];
    let submitted = BATON.run(relay.data(), &as_submitter).await;
    assert!(submitted.stderr.contains(words), "{submitted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_asks_says_so_in_the_list_and_when_it_is_shown() {
    let stage = start_fixture().await;
    let (task, _input) = stage.submit_until_asked(AgentWire::Claude).await;
    let listed = stage.run_command(&["tasks"]).await;
    let line = line_with(&listed, &task.task_id);
    assert!(line.contains("waits for an answer"), "{line}");
    let shown = stage.run_command(&["show", &task.task_id]).await;
    assert!(
        line_with(&shown, "waits for:").contains("person"),
        "{shown:?}"
    );
    // No word is without what it announces.
    let empty = shown
        .stdout
        .lines()
        .filter(|line| line.ends_with("since ") || line.ends_with("since"));
    assert_eq!(empty.count(), 0, "{shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_waits_names_the_one_before_it() {
    let relay = RelayProcess::start(BATON).await;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (_, secret) = relay.admin().create_token("", Role::Daemon).await;
    let url = relay.admin().url().to_owned();
    let _daemon = DaemonProcess::start(BATON, dir.path(), "one", &url, &secret).await;
    let turn = [
        "submit",
        "--conversation",
        "c1",
        "--",
        STANDIN,
        "print",
        "1",
        "pause",
    ];
    let first = BATON
        .run(relay.data(), &turn)
        .await
        .stdout
        .trim()
        .to_owned();
    relay
        .admin()
        .wait_for_state(&first, TaskState::Running)
        .await;
    let submitted = BATON.run(relay.data(), &turn).await;
    let second = submitted.stdout.trim();
    let words = format!("turn {first} of its conversation has to end first");
    assert!(submitted.stderr.contains(&words), "{submitted:?}");
    let shown = BATON.run(relay.data(), &["show", second]).await;
    assert!(
        line_with(&shown, "waits for:").contains("conversation"),
        "{shown:?}"
    );
    assert!(line_with(&shown, "next:").contains(&words), "{shown:?}");
    let listed = BATON.run(relay.data(), &["tasks"]).await;
    let mut lines = listed.stdout.lines();
    assert!(
        lines.any(|line| line.starts_with(second) && line.contains(&words)),
        "{listed:?}"
    );
}
