//! `baton up`, with and without its demo: the command that a new user runs first.

use std::path::Path;
use std::process::Stdio;

use baton_tests::{unused_port, wait_within};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr};

use crate::BATON;

#[tokio::test]
async fn up_demo_exit_prints_the_output_and_leaves_no_files() {
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
    for text in [
        "permission for ",
        "greeting.txt",
        "baton answer ",
        "allowed by ",
        "It was allowed.",
    ] {
        assert!(stdout.contains(text), "{text} is missing in {stdout}");
    }
    let completed = stdout.lines().filter(|line| *line == "completed");
    assert_eq!(completed.count(), 2, "{stdout}");
    assert_eq!(lines.next_back(), Some("completed"), "{stdout}");
    let left: Vec<_> = std::fs::read_dir(home.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A running `baton up` and its standard error.
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
        let mut process = command.spawn().expect("the executable can be started");
        let stderr = process.stderr.take().expect("stderr is piped");
        let mut up = Self {
            process,
            stderr_lines: BufReader::new(stderr).lines(),
        };
        let output = up.wait_for_text("baton is up").await;
        let directory_line = format!("tasks run in {}", work_dir.display());
        assert!(output.contains(&directory_line), "{output}");
        up
    }

    /// Waits for this text and returns the output up to it.
    async fn wait_for_text(&mut self, expected: &str) -> String {
        let mut output = String::new();
        let reading = async {
            while let Some(line) = self.stderr_lines.next_line().await.expect("stderr is text") {
                output.push_str(&line);
                if line.contains(expected) {
                    return;
                }
            }
            panic!("{expected} is missing in {output}");
        };
        wait_within(expected, reading).await;
        output
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn up_runs_tasks_in_its_work_directory_and_names_it_in_errors() {
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
    let directory = project.path().to_str().expect("a UTF-8 path");
    assert!(
        message.contains(directory) && message.contains("nope"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_up_reports_the_tasks_that_end_with_it() {
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    let mut up = RunningUpCommand::start(home.path(), home.path()).await;
    let arguments = ["submit", "--json", "--", "sh", "-c", "echo up; sleep 600"];
    let task = BATON.run(home.path(), &arguments).await.stdout_json();
    let task = task["taskId"]
        .as_str()
        .expect("the task has an id")
        .to_owned();
    let output = ["output", task.as_str()];
    let streams = async { while BATON.run(home.path(), &output).await.stdout != "up\n" {} };
    wait_within("the first output", streams).await;
    let pid = up.process.id().expect("baton up runs").cast_signed();
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::INT).expect("baton up runs");
    up.wait_for_text("1 task is running; a task that does not finish")
        .await;
    let ended = wait_within("the exit of baton up", up.process.wait()).await;
    assert_eq!(ended.expect("baton up can be waited for").code(), Some(0));

    let _again = RunningUpCommand::start(home.path(), home.path()).await;
    let shown = BATON.run(home.path(), &["show", &task]).await;
    let expected = "its daemon was stopped and ended what still ran";
    assert!(shown.stdout.contains(expected), "{shown:?}");
    assert!(shown.stdout.contains("--allow-unsafe"), "{shown:?}");
}
