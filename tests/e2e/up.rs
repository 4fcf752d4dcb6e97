//! The two commands that a new user runs first.

use baton_tests::{quiet_port, within};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::BATON;

#[tokio::test]
async fn up_with_demo_and_exit_prints_task_output_and_completed_and_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let mut command = BATON.command(home.path());
    command.env_remove("BATON_DATA").env("TMPDIR", home.path());
    let output = within(
        "the demo",
        command.args(["up", "--demo", "--exit"]).output(),
    );
    let output = output.await.unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
    let mut lines = stdout.lines();
    let task = lines.next().and_then(|line| line.strip_prefix("task "));
    assert!(
        task.is_some_and(|id| uuid::Uuid::parse_str(id).is_ok()),
        "{stdout}"
    );
    assert!(stdout.contains("step 3 of 3"), "{stdout}");
    assert!(
        stdout.contains("the prompt was: hello from Baton"),
        "{stdout}"
    );
    for word in [
        "permission for ",
        "greeting.txt",
        "baton answer ",
        "allowed by ",
        "It was allowed.",
    ] {
        assert!(stdout.contains(word), "{word} in {stdout}");
    }
    let completed = stdout.lines().filter(|line| *line == "completed");
    assert_eq!(completed.count(), 2, "{stdout}");
    assert_eq!(lines.next_back(), Some("completed"), "{stdout}");
    let left: Vec<_> = std::fs::read_dir(home.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_second_shell_finds_what_up_started_without_any_flag() {
    let home = tempfile::tempdir().unwrap();
    let listen = format!("127.0.0.1:{}", quiet_port());
    let mut command = BATON.command(home.path());
    command.args(["up", "--demo", "--listen", &listen]);
    let mut up = command.spawn().unwrap();
    let mut lines = BufReader::new(up.stdout.take().unwrap()).lines();
    let demo = async { while lines.next_line().await.unwrap().as_deref() != Some("completed") {} };
    within("the demo to complete", demo).await;

    // Only the data directory is shared: the token file and the address are found in it.
    let said = BATON.run(home.path(), &["tasks", "--json"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    let ran = BATON
        .run(
            home.path(),
            &["submit", "--json", "--wait", "--", "sh", "-c", "echo hi"],
        )
        .await;
    assert_eq!(
        (ran.code, &ran.json()["state"]),
        (Some(0), &"completed".into()),
        "{ran:?}"
    );
    let listed = BATON.run(home.path(), &["tasks", "--json"]).await;
    assert!(
        listed
            .stdout
            .contains(ran.json()["taskId"].as_str().unwrap()),
        "{listed:?}"
    );

    let pid = rustix::process::Pid::from_raw(up.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let ended = within("up to stop", up.wait()).await.unwrap();
    assert_eq!(ended.code(), Some(0));
}
