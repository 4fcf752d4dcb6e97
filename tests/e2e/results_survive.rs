//! A result is made while the relay is away for longer than the lease. It is delivered and adopted, whichever side comes back first.

use std::fs;

use baton_proto::v1::{AttemptState, Role, Task, TaskEventKind, TaskSpec, TaskState};
use baton_tests::{Client, DaemonProcess, RelayProcess, command, marked, marked_gone, poll_until};
use tempfile::TempDir;

use crate::{BATON, STANDIN};

/// The shortest that the relay grants.
const LEASE_MS: u64 = 5_000;
/// Enough output for many frames behind each other.
const LINES: usize = 60_000;

/// Both sides are dead, and the result is on the worker's disk.
struct Aftermath {
    relay: RelayProcess,
    client: Client,
    dir: TempDir,
    secret: String,
    task_id: String,
    attempt_id: String,
}

fn leased(spec: TaskSpec) -> TaskSpec {
    TaskSpec {
        lease_ttl_ms: Some(LEASE_MS),
        ..spec
    }
}

impl Aftermath {
    async fn of_a_result_that_nobody_heard(mark: &str) -> Self {
        let mut relay = RelayProcess::start(BATON).await;
        let client = relay.admin().clone();
        let (_, secret) = client.make_token("", Role::Daemon).await;
        let dir = tempfile::tempdir().expect("a directory");
        let mut daemon = start_daemon(&dir, &client, &secret).await;
        let go_on = dir.path().join("go-on");
        let script = format!(
            "echo begun; until [ -e {} ]; do sleep 0.05; done; seq {LINES}",
            go_on.display()
        );
        let task = client.submit(leased(command("sh", &["-c", &script], mark)));
        let task_id = task.await.task_id;
        let mut watch = client.watch(&task_id).await;
        watch
            .until("output", |event| event.state() == AttemptState::Streaming)
            .await;
        // Nobody ends this one, so its death shows that leases of that time are over.
        let hourglass = format!("{mark}-hourglass");
        client
            .submit(leased(command(STANDIN, &["pause"], &hourglass)))
            .await;
        poll_until("the hourglass to run", || {
            (!marked(&hourglass).is_empty()).then_some(())
        })
        .await;

        relay.kill().await;
        fs::write(&go_on, "").expect("a file can be written");
        marked_gone(mark).await;
        marked_gone(&hourglass).await;
        daemon.kill().await;
        let attempts = daemon.data.join("attempts");
        let attempt_id = own_attempt(&attempts, &task_id);
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

    /// The one attempt completed, with every byte.
    async fn assert_told(&self, daemon: &DaemonProcess) -> Task {
        let client = &self.client;
        client
            .until_state(&self.task_id, TaskState::Completed)
            .await;
        let task = client.get(&self.task_id).await;
        let ids = task.attempts.iter().map(|one| one.attempt_id.as_str());
        assert_eq!(ids.collect::<Vec<_>>(), [self.attempt_id.as_str()]);
        let printed: String = (1..=LINES).map(|line| format!("{line}\n")).collect();
        let output = client.output(&self.task_id).await;
        assert!(
            output == format!("begun\n{printed}").as_bytes(),
            "{} bytes came",
            output.len()
        );
        let attempts = daemon.data.join("attempts");
        poll_until("the attempt's directory to go", || {
            (!attempts.join(&self.attempt_id).exists()).then_some(())
        })
        .await;
        task
    }
}

async fn start_daemon(dir: &TempDir, client: &Client, secret: &str) -> DaemonProcess {
    DaemonProcess::start(BATON, dir.path(), "worker", client.url(), secret).await
}

/// The directory that speaks of the task.
fn own_attempt(attempts: &std::path::Path, task_id: &str) -> String {
    let dirs = fs::read_dir(attempts).expect("the daemon keeps attempts");
    let mut speaking = dirs.flatten().filter(|dir| {
        let meta = fs::read(dir.path().join("attempt")).unwrap_or_default();
        meta.windows(task_id.len())
            .any(|part| part == task_id.as_bytes())
    });
    let name = speaking.next().expect("the attempt is kept").file_name();
    name.into_string().expect("attempts have plain names")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_no_relay_heard_is_adopted_after_the_relay_gave_it_up() {
    let mut after = Aftermath::of_a_result_that_nobody_heard("relay-first").await;
    after.relay.revive().await;
    let mut watch = after.client.watch(&after.task_id).await;
    let end = watch.until_kind(TaskEventKind::Ended).await;
    assert_eq!(end.state(), AttemptState::Lost);
    watch.until_state(TaskState::NeedsAttention).await;
    let mut daemon = after.start_daemon().await;
    let task = after.assert_told(&daemon).await;
    assert!(task.attempts[0].adopted_late);
    assert_eq!(daemon.terminate().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_no_relay_heard_is_told_by_a_daemon_that_was_back_first() {
    let mut after = Aftermath::of_a_result_that_nobody_heard("daemon-first").await;
    let mut daemon = after.start_daemon().await;
    after.relay.revive().await;
    after.assert_told(&daemon).await;
    assert_eq!(daemon.terminate().await.code(), Some(0));
}
