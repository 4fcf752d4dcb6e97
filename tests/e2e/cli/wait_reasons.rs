//! Why a task waits, as the command line shows it: it is paused, has an open question, or is
//! behind another turn of its conversation.

use baton_daemon::AgentWire;
use baton_proto::v1::{Role, TaskState};
use baton_tests::{CommandOutput, RelayAndDaemon, RelayProcess};

use crate::agents::input_answers::start_fixture;
use crate::{BATON, STANDIN};

fn line_with<'a>(output: &'a CommandOutput, text: &str) -> &'a str {
    let mut lines = output.stdout.lines();
    let found = lines.find(|line| line.contains(text));
    found.unwrap_or_else(|| panic!("{text} is missing in {output:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_is_shown_at_submit_and_in_the_list() {
    let relay = RelayProcess::start(BATON).await;
    let pause = ["pause", "--scheduler", "--reason", "upgrade"];
    let paused = BATON.run(relay.data(), &pause).await;
    assert_eq!(paused.code, Some(0), "{paused:?}");
    let submit = ["submit", "--", "true"];
    let submitted = BATON.run(relay.data(), &submit).await;
    let reason = "waiting: all dispatching is paused by ";
    assert!(submitted.stderr.contains(reason), "{submitted:?}");
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

    // A submitter, who is not an operator, gets the same message.
    let (_, secret) = relay.admin().create_token("default", Role::Submitter).await;
    let file = relay.data().join("submitter.token");
    std::fs::write(&file, secret).expect("the file can be written");
    let file = file.to_str().expect("a UTF-8 path");
    let as_submitter = ["submit", "--token-file", file, "--", "true"];
    let submitted = BATON.run(relay.data(), &as_submitter).await;
    assert!(submitted.stderr.contains(reason), "{submitted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_question_is_shown_in_the_list_and_in_show() {
    let fixture = start_fixture().await;
    let (task, _input) = fixture.submit_until_asked(AgentWire::Claude).await;
    let listed = fixture.run_command(&["tasks"]).await;
    let line = line_with(&listed, &task.task_id);
    assert!(line.contains("waiting for an answer"), "{line}");
    let shown = fixture.run_command(&["show", &task.task_id]).await;
    assert!(
        line_with(&shown, "waits for:").contains("person"),
        "{shown:?}"
    );
    // No label is printed without its value.
    let empty = shown
        .stdout
        .lines()
        .filter(|line| line.ends_with("since ") || line.ends_with("since"));
    assert_eq!(empty.count(), 0, "{shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_turn_names_the_turn_before_it() {
    let servers = RelayAndDaemon::start(BATON).await;
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
    let first = servers.run_command(&turn).await.stdout.trim().to_owned();
    servers
        .client()
        .wait_for_state(&first, TaskState::Running)
        .await;
    let submitted = servers.run_command(&turn).await;
    let second = submitted.stdout.trim();
    let reason = format!("turn {first} of its conversation has to end first");
    assert!(submitted.stderr.contains(&reason), "{submitted:?}");
    let shown = servers.run_command(&["show", second]).await;
    assert!(
        line_with(&shown, "waits for:").contains("conversation"),
        "{shown:?}"
    );
    assert!(line_with(&shown, "next:").contains(&reason), "{shown:?}");
    let listed = servers.run_command(&["tasks"]).await;
    let mut lines = listed.stdout.lines();
    assert!(
        lines.any(|line| line.starts_with(second) && line.contains(&reason)),
        "{listed:?}"
    );
}
