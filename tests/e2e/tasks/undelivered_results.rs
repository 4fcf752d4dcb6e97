//! An attempt completes while the relay is down for longer than the lease. Its result is
//! delivered and adopted, whether the relay or the daemon is restarted first.

use std::fs;

use baton_proto::v1::{AttemptState, Role, Task, TaskEventKind, TaskSpec, TaskState};
use baton_tests::{
    DaemonProcess, RelayProcess, TestClient, command_task, marked_processes, poll_until,
    wait_until_marked_gone,
};
use tempfile::TempDir;

use crate::{BATON, STANDIN};

/// The shortest lease that the relay grants.
const LEASE_MS: u64 = 5_000;
/// Enough output for many frames.
const LINE_COUNT: usize = 60_000;

/// A stopped relay and a stopped daemon, with the undelivered result on the daemon's disk.
struct UndeliveredResult {
    relay: RelayProcess,
    client: TestClient,
    dir: TempDir,
    secret: String,
    task_id: String,
    attempt_id: String,
}

fn with_short_lease(spec: TaskSpec) -> TaskSpec {
    TaskSpec {
        lease_ttl_ms: Some(LEASE_MS),
        ..spec
    }
}

impl UndeliveredResult {
    async fn create(mark: &str) -> Self {
        let mut relay = RelayProcess::start(BATON).await;
        let client = relay.admin().clone();
        let (_, secret) = client.create_token("", Role::Daemon).await;
        let dir = tempfile::tempdir().expect("a directory");
        let mut daemon = start_daemon(&dir, &client, &secret).await;
        let go_on = dir.path().join("go-on");
        let script = format!(
            "echo begun; until [ -e {} ]; do sleep 0.05; done; seq {LINE_COUNT}",
            go_on.display()
        );
        let task = client.submit(with_short_lease(command_task("sh", &["-c", &script], mark)));
        let task_id = task.await.task_id;
        let mut watch = client.watch(&task_id).await;
        watch.wait_for_output().await;
        // This child never exits by itself, so its death shows that leases of that time have
        // ended.
        let lease_marker = format!("{mark}-lease-marker");
        client
            .submit(with_short_lease(command_task(
                STANDIN,
                &["pause"],
                &lease_marker,
            )))
            .await;
        poll_until("the lease marker to run", || {
            (!marked_processes(&lease_marker).is_empty()).then_some(())
        })
        .await;

        relay.kill().await;
        fs::write(&go_on, "").expect("a file can be written");
        wait_until_marked_gone(mark).await;
        wait_until_marked_gone(&lease_marker).await;
        daemon.kill().await;
        let attempts = daemon.data.join("attempts");
        let attempt_id = attempt_directory(&attempts, &task_id);
        Self {
            relay,
            client,
            dir,
            secret,
            task_id,
            attempt_id,
        }
    }

    async fn start_daemon(&self) -> DaemonProcess {
        start_daemon(&self.dir, &self.client, &self.secret).await
    }

    /// Checks that the only attempt completed with its whole output.
    async fn assert_result_delivered(&self, daemon: &DaemonProcess) -> Task {
        let client = &self.client;
        client
            .wait_for_state(&self.task_id, TaskState::Completed)
            .await;
        let task = client.get(&self.task_id).await;
        let ids = task.attempts.iter().map(|one| one.attempt_id.as_str());
        assert_eq!(ids.collect::<Vec<_>>(), [self.attempt_id.as_str()]);
        let printed: String = (1..=LINE_COUNT).map(|line| format!("{line}\n")).collect();
        let output = client.read_output_to_end(&self.task_id).await;
        assert!(
            output == format!("begun\n{printed}").as_bytes(),
            "{} bytes arrived",
            output.len()
        );
        let attempts = daemon.data.join("attempts");
        poll_until("the attempt's directory to be removed", || {
            (!attempts.join(&self.attempt_id).exists()).then_some(())
        })
        .await;
        task
    }
}

async fn start_daemon(dir: &TempDir, client: &TestClient, secret: &str) -> DaemonProcess {
    DaemonProcess::start(BATON, dir.path(), "worker", client.url(), secret).await
}

/// The name of the attempt directory whose metadata contains the task id.
fn attempt_directory(attempts: &std::path::Path, task_id: &str) -> String {
    let dirs = fs::read_dir(attempts).expect("the daemon has attempt directories");
    let mut matching = dirs.flatten().filter(|dir| {
        let meta = fs::read(dir.path().join("attempt")).unwrap_or_default();
        meta.windows(task_id.len())
            .any(|part| part == task_id.as_bytes())
    });
    let name = matching
        .next()
        .expect("the attempt has a directory")
        .file_name();
    name.into_string().expect("a UTF-8 name")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undelivered_result_is_adopted_after_its_attempt_was_lost() {
    let mut undelivered = UndeliveredResult::create("relay-first").await;
    undelivered.relay.start_again().await;
    let mut watch = undelivered.client.watch(&undelivered.task_id).await;
    let end = watch.wait_for_kind(TaskEventKind::Ended).await;
    assert_eq!(end.state(), AttemptState::Lost);
    watch.wait_for_state(TaskState::NeedsAttention).await;
    let mut daemon = undelivered.start_daemon().await;
    let task = undelivered.assert_result_delivered(&daemon).await;
    assert!(task.attempts[0].adopted_late);
    assert_eq!(daemon.terminate().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undelivered_result_is_delivered_when_the_daemon_returns_first() {
    let mut undelivered = UndeliveredResult::create("daemon-first").await;
    let mut daemon = undelivered.start_daemon().await;
    undelivered.relay.start_again().await;
    undelivered.assert_result_delivered(&daemon).await;
    assert_eq!(daemon.terminate().await.code(), Some(0));
}
