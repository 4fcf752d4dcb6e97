//! The two commands that a new user runs first.

use std::path::Path;
use std::process::Stdio;

use baton_tests::{unused_port, wait_within};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr};

use crate::BATON;

#[tokio::test]
async fn up_with_demo_and_exit_prints_task_output_and_completed_and_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let mut command = BATON.command(home.path());
    command.env_remove("BATON_DATA").env("TMPDIR", home.path());
    let output = wait_within(
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
    let listen = format!("127.0.0.1:{}", unused_port());
    let mut command = BATON.command(home.path());
    command.args(["up", "--demo", "--listen", &listen]);
    let mut up = command.spawn().unwrap();
    let mut lines = BufReader::new(up.stdout.take().unwrap()).lines();
    let demo = async { while lines.next_line().await.unwrap().as_deref() != Some("completed") {} };
    wait_within("the demo to complete", demo).await;

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
        (ran.code, &ran.stdout_json()["state"]),
        (Some(0), &"completed".into()),
        "{ran:?}"
    );
    let listed = BATON.run(home.path(), &["tasks", "--json"]).await;
    assert!(
        listed
            .stdout
            .contains(ran.stdout_json()["taskId"].as_str().unwrap()),
        "{listed:?}"
    );

    let pid = Pid::from_raw(up.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let ended = wait_within("up to stop", up.wait()).await.unwrap();
    assert_eq!(ended.code(), Some(0));
}

/// One that stays up, and what it tells the person who started it.
struct RunningUpCommand {
    process: Child,
    stderr_lines: Lines<BufReader<ChildStderr>>,
}

impl RunningUpCommand {
    async fn start(home: &Path, work_dir: &Path) -> Self {
        let listen = format!("127.0.0.1:{}", unused_port());
        let mut command = BATON.command(home);
        command.args(["up", "--listen", &listen, "--work-dir"]);
        command.arg(work_dir).stderr(Stdio::piped());
        let mut process = command.spawn().expect("it starts");
        let said = process.stderr.take().expect("it is piped");
        let mut up = Self {
            process,
            stderr_lines: BufReader::new(said).lines(),
        };
        let heard = up.wait_for_text("baton is up").await;
        let place = format!("tasks run in {}", work_dir.display());
        assert!(heard.contains(&place), "{heard}");
        up
    }

    /// All that it says up to these words.
    async fn wait_for_text(&mut self, words: &str) -> String {
        let mut heard = String::new();
        let hearing = async {
            while let Some(line) = self.stderr_lines.next_line().await.expect("text") {
                heard.push_str(&line);
                if line.contains(words) {
                    return;
                }
            }
            panic!("{words} in {heard}");
        };
        wait_within(words, hearing).await;
        heard
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn up_runs_tasks_where_it_is_told_to_and_names_the_directory_when_nothing_is_there() {
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    let project = tempfile::tempdir().expect("a temporary directory can be made");
    std::fs::write(project.path().join("hello"), "echo from here\n").expect("a file");
    let _up = RunningUpCommand::start(home.path(), project.path()).await;
    let arguments = ["submit", "--follow", "--", "sh", "hello"];
    let ran = BATON.run(home.path(), &arguments).await;
    assert_eq!(
        (ran.code, &*ran.stdout),
        (Some(0), "from here\n"),
        "{ran:?}"
    );
    let arguments = ["submit", "--wait", "--json", "--", "./nope"];
    let missing = BATON.run(home.path(), &arguments).await;
    assert_eq!(missing.code, Some(1), "{missing:?}");
    let failed = &missing.stdout_json()["attempts"][0];
    assert_eq!(failed["failureCode"], "provider_missing");
    let message = failed["message"].as_str().expect("a text");
    let directory = project.path().to_str().expect("paths of tests are text");
    assert!(
        message.contains(directory) && message.contains("nope"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stops_up_is_told_what_ends_with_it_and_the_task_says_so_later() {
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    let mut up = RunningUpCommand::start(home.path(), home.path()).await;
    let arguments = ["submit", "--json", "--", "sh", "-c", "echo up; sleep 600"];
    let task = BATON.run(home.path(), &arguments).await.stdout_json();
    let task = task["taskId"].as_str().expect("an id").to_owned();
    let output = ["output", task.as_str()];
    let streams = async { while BATON.run(home.path(), &output).await.stdout != "up\n" {} };
    wait_within("its first word", streams).await;
    let pid = up.process.id().expect("it runs").cast_signed();
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::INT).expect("it lives");
    up.wait_for_text("1 task runs; what does not finish").await;
    let ended = wait_within("its end", up.process.wait()).await;
    assert_eq!(ended.expect("it ran").code(), Some(0));

    let _again = RunningUpCommand::start(home.path(), home.path()).await;
    let shown = BATON.run(home.path(), &["show", &task]).await;
    let words = "its daemon was stopped and ended what still ran";
    assert!(shown.stdout.contains(words), "{shown:?}");
    assert!(shown.stdout.contains("--allow-unsafe"), "{shown:?}");
}
