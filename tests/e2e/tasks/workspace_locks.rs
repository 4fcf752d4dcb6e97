//! The lock file of a shared workspace: which process has it, and when it counts as free.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use baton_proto::v1::{
    AttemptState, LifecyclePhase, Role, Task, TaskEventKind, TaskSpec, TaskState, WorkspaceMode,
};
use baton_tests::{
    DaemonProcess, RelayProcess, TestClient, attempt_processes, attempt_shim, command_task,
    poll_until, send_signal, wait_until_marked_gone, with_retry_on_loss,
};
use rustix::process::{Pid, Signal, kill_process};

use super::workspaces::{
    WorkspacesFixture, create_repository, shell_task, workspace_spec, write_config,
};
use crate::BATON;

/// Writes the repository's lock as another daemon on this machine would.
fn write_lock(repo: &Path, pid: u32, start_time: u64) {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .expect("the boot id can be read");
    let record = serde_json::json!({
        "pid": pid,
        "start_time": start_time,
        "boot_id": boot.trim(),
        "attempt_id": "019a0000-0000-7000-8000-000000000001",
        "task_id": "019a0000-0000-7000-8000-000000000002",
        "daemon": "neighbour",
    });
    std::fs::write(lock_file(repo), record.to_string()).expect("a file can be written");
}

fn lock_file(repo: &Path) -> PathBuf {
    repo.join(".git/baton-lock")
}

/// The process start time: field 22 of /proc/PID/stat.
fn start_time(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let fields = stat.rsplit(')').next().expect("a stat line");
    let field = fields.split_whitespace().nth(19).expect("a start time");
    field.parse().expect("a number")
}

fn spawn_sleeper() -> Child {
    let child = Command::new("sleep").arg("600").spawn();
    child.expect("sleep is installed")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recycled_pid_does_not_hold_the_lock_and_a_live_holder_does() {
    let fixture = WorkspacesFixture::start().await;
    let _daemon = fixture.start_daemon("").await;
    let mut sleeper = spawn_sleeper();
    let began = start_time(sleeper.id());
    write_lock(&fixture.repo(), sleeper.id(), began - 1);
    let task = fixture
        .run_to_end(shell_task("true", WorkspaceMode::Shared))
        .await;
    assert_eq!(
        task.state(),
        TaskState::Completed,
        "the pid belongs to another process by now"
    );
    assert_eq!(task.attempts.len(), 1);
    let lock = std::fs::read_to_string(lock_file(&fixture.repo())).expect("the file is kept");
    assert_eq!(lock, "", "the lock is free");

    write_lock(&fixture.repo(), sleeper.id(), began);
    let task = fixture
        .client
        .submit(shell_task("true", WorkspaceMode::Shared))
        .await;
    let mut watch = fixture.client.watch(&task.task_id).await;
    let queued = watch.wait_for_event("the task to wait", |event| {
        event.kind() == TaskEventKind::Phase && event.phase() == LifecyclePhase::Queued
    });
    let queued = queued.await;
    for word in ["neighbour", "019a0000-0000-7000-8000-000000000001"] {
        assert!(queued.message.contains(word), "{queued:?}");
    }
    sleeper.kill().expect("the process runs");
    sleeper.wait().expect("the process is a child of the test");
    let task = fixture.client.wait_for_end(&task.task_id).await;
    assert_eq!(task.state(), TaskState::Completed);
    assert_eq!(task.attempts.len(), 1, "waiting used no attempt");
}

/// Kills the shim named in the lock and the processes that it leaves.
fn kill_shim(repo: &Path) {
    let lock: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(lock_file(repo)).expect("the lock exists"))
            .expect("the lock is JSON");
    let shim = u32::try_from(lock["pid"].as_u64().expect("a pid")).expect("a pid");
    let attempt_id = lock["attempt_id"]
        .as_str()
        .expect("the task has an attempt");
    let known = attempt_shim(attempt_id).expect("the shim outlives its daemon");
    assert_eq!(shim, known.pid, "the lock names the shim");
    send_signal(shim, Signal::KILL);
    // The child dies with the shim. No daemon runs, so kill remaining processes here; they may
    // already be gone.
    for process in attempt_processes(attempt_id) {
        if let Some(pid) = Pid::from_raw(process.pid.cast_signed()) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Waits until the relay knows that the attempt runs, so that its end is a loss and not a start
/// timeout.
async fn wait_until_prompted(client: &TestClient, task: &Task) {
    let mut watch = client.watch(&task.task_id).await;
    watch
        .wait_for_event("the prompt's phase", |event| {
            event.state() == AttemptState::Prompted || event.state() == AttemptState::Streaming
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_survives_a_daemon_kill_and_is_freed_when_the_shim_dies_too() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let (_, token) = client.create_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let repo = create_repository(dir.path());
    let file = write_config(dir.path(), "").display().to_string();
    let start = |name: &'static str| {
        let (url, token, file) = (client.url().to_owned(), token.clone(), file.clone());
        let dir = dir.path().to_owned();
        async move {
            let more = ["--config", &*file];
            DaemonProcess::start_with(BATON, &dir, name, (&url, &token), &more).await
        }
    };
    let mut daemon = start("first").await;
    let log = dir.path().join("log");
    let text = format!(
        "echo in >> '{0}'; while [ ! -e '{1}' ]; do sleep 0.05; done; echo out >> '{0}'",
        log.display(),
        dir.path().join("go").display()
    );
    let long = |mark| TaskSpec {
        workspace: workspace_spec("repo", WorkspaceMode::Shared),
        ..command_task("sh", &["-c", &text], mark)
    };
    let first = client.submit(long("held")).await;
    let runs = || std::fs::read_to_string(&log).is_ok_and(|log| log.starts_with("in"));
    poll_until("the first to run", || runs().then_some(())).await;

    // The shim keeps the lock: the next daemon takes the attempt over, and other attempts wait.
    daemon.kill().await;
    let mut daemon = start("first").await;
    let second = client.submit(long("next")).await;
    let mut watch = client.watch(&second.task_id).await;
    watch
        .wait_for_event("the second task to be refused", |event| {
            event.kind() == TaskEventKind::Rejected
        })
        .await;
    assert_eq!(std::fs::read_to_string(&log).expect("the log"), "in\n");
    std::fs::write(dir.path().join("go"), "").expect("a file can be written");
    for task in [&first, &second] {
        let task = client.wait_for_end(&task.task_id).await;
        assert_eq!(task.state(), TaskState::Completed, "{task:#?}");
    }
    let log_text = std::fs::read_to_string(&log).expect("the tasks ran");
    assert_eq!(log_text, "in\nout\nin\nout\n");

    // Daemon and shim are both killed: another daemon of the machine takes the lock over.
    std::fs::remove_file(dir.path().join("go")).expect("the file exists");
    std::fs::remove_file(&log).expect("the file exists");
    let lost = client
        .submit(with_retry_on_loss(
            long("lost"),
            std::time::Duration::from_secs(5),
        ))
        .await;
    poll_until("the third to run", || runs().then_some(())).await;
    wait_until_prompted(&client, &lost).await;
    daemon.kill().await;
    kill_shim(&repo);
    wait_until_marked_gone("lost").await;
    let _other = start("second").await;
    std::fs::write(dir.path().join("go"), "").expect("a file can be written");
    let lost = client.wait_for_end(&lost.task_id).await;
    assert_eq!(lost.state(), TaskState::Completed, "{lost:#?}");
    let (last, earlier) = lost.attempts.split_last().expect("the task has an attempt");
    assert_eq!(last.daemon_name, "second");
    let found = earlier[0]
        .workspace
        .as_ref()
        .expect("the lost attempt records its workspace");
    assert_eq!(found.path, repo.display().to_string());
}
