//! Memory of a daemon: when idle, and for each idle attempt.

use std::path::Path;

use baton_proto::v1::{Role, TaskState};
use baton_tests::{DaemonProcess, RelayProcess, command_task, join_all};

use crate::BATON;

const IDLE_DAEMON_KIB: u64 = 30 * 1024;
const PER_ATTEMPT_KIB: u64 = 2 * 1024;
const ATTEMPTS: usize = 16;

/// Pages in memory, including those of the executable's file.
fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let text = line.and_then(|line| line.trim().strip_suffix(" kB"));
    text.and_then(|text| text.trim().parse().ok())
        .expect("VmRSS in kB")
}

/// Debug information and unoptimized code are mapped too.
fn debug_build_allowance() -> u64 {
    if cfg!(debug_assertions) { 3 } else { 1 }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_daemon_and_idle_attempts_use_little_memory() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let (_, token) = client.create_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let slots = ATTEMPTS.to_string();
    let more = ["--slots", &*slots];
    let daemon = start_daemon(dir.path(), client.url(), &token, &more).await;
    client
        .wait_for_daemon_state("weighed", baton_proto::v1::DaemonState::Online)
        .await;
    let idle = resident_kib(daemon.pid());
    let idle_task = || command_task("sh", &["-c", "echo up; exec sleep 600"], "weighed");
    // The first one loads code that all of them use.
    let first = client.submit(idle_task()).await;
    wait_until_running(&client, &first.task_id).await;
    let one = resident_kib(daemon.pid());
    let more = join_all((1..ATTEMPTS).map(|_| client.submit(idle_task()))).await;
    for task in &more {
        wait_until_running(&client, &task.task_id).await;
    }
    let all = resident_kib(daemon.pid());
    let each = all.saturating_sub(one) / (ATTEMPTS as u64 - 1);
    println!(
        "daemon: idle {idle} KiB, with one attempt {one} KiB, with {ATTEMPTS} {all} KiB, each further one {each} KiB"
    );
    assert!(
        idle < IDLE_DAEMON_KIB * debug_build_allowance(),
        "{idle} KiB"
    );
    assert!(each < PER_ATTEMPT_KIB, "{each} KiB");
    for task in more.iter().chain([&first]) {
        client.cancel(&task.task_id).await;
        client
            .wait_for_state(&task.task_id, TaskState::Canceled)
            .await;
    }
}

async fn start_daemon(dir: &Path, url: &str, token: &str, more: &[&str]) -> DaemonProcess {
    DaemonProcess::start_with(BATON, dir, "weighed", (url, token), more).await
}

async fn wait_until_running(client: &baton_tests::TestClient, task_id: &str) {
    let mut watch = client.watch(task_id).await;
    watch
        .wait_for_event("its first output", |event| {
            event.phase() == baton_proto::v1::LifecyclePhase::FirstVisibleEventSeen
        })
        .await;
}
