//! Planned restarts. A stopping daemon requests a lease extension (`--hold`), so that its
//! successor can take the attempts over; the extension survives a restart of the relay. If no
//! successor comes, the shims kill the attempts before another daemon may run the task.

use std::time::Duration;

use baton_daemon::Clock;
use baton_proto::v1::{Role, TaskEventKind, TaskSpec, TaskState};
use baton_tests::{
    DaemonProcess, RelayProcess, TestClient, assert_counted_lines, attempt_processes, command_task,
    counting_task, marked_processes, poll_until, wait_until_marked_gone, with_retry_on_loss,
};
use tempfile::TempDir;

use crate::{BATON, STANDIN};

/// The shortest lease that the relay grants.
const LEASE: Duration = Duration::from_secs(5);
const HAND_OFF_FLAGS: [&str; 4] = ["--drain", "1s", "--hold", "2m"];
/// Time from a process's death until a poll notices it on a busy machine.
const DETECTION_DELAY: Duration = Duration::from_secs(1);

/// A relay process and the directory of its daemons.
struct PlannedRestartFixture {
    relay: RelayProcess,
    client: TestClient,
    secret: String,
    dir: TempDir,
}

impl PlannedRestartFixture {
    async fn new() -> Self {
        let relay = RelayProcess::start(BATON).await;
        let client = relay.admin().clone();
        let (_, secret) = client.create_token("", Role::Daemon).await;
        Self {
            relay,
            client,
            secret,
            dir: tempfile::tempdir().expect("a directory"),
        }
    }

    async fn start_daemon(&self, name: &str, stopping: &[&str]) -> DaemonProcess {
        let link = (self.client.url(), self.secret.as_str());
        DaemonProcess::start_with(BATON, self.dir.path(), name, link, stopping).await
    }

    /// Submits a task, waits for its first output, and returns the ids of task and attempt.
    async fn submit_until_running(&self, spec: TaskSpec) -> (String, String) {
        let task = self.client.submit(spec).await.task_id;
        let mut watch = self.client.watch(&task).await;
        watch.wait_for_output().await;
        let attempt = self.client.get(&task).await.attempts.remove(0);
        (task, attempt.attempt_id)
    }

    /// Waits until a lease that starts now has expired at the relay, including the relay's
    /// grace.
    async fn wait_past_lease(&mut self) {
        let mut witness = self.start_daemon("witness", &[]).await;
        let spec = with_short_lease(command_task(STANDIN, &["print", "1", "pause"], "witness"));
        let (task, _) = self.submit_until_running(spec).await;
        let mut watch = self.client.watch(&task).await;
        witness.kill().await;
        let end = watch.wait_for_kind(TaskEventKind::Ended).await;
        assert_eq!(end.failure_code, "lease_expired");
    }

    async fn only_attempt(&self, task: &str) -> String {
        let mut attempts = self.client.get(task).await.attempts;
        assert_eq!(attempts.len(), 1, "{attempts:#?}");
        attempts.remove(0).attempt_id
    }
}

fn with_short_lease(spec: TaskSpec) -> TaskSpec {
    TaskSpec {
        lease_ttl_ms: Some(u64::try_from(LEASE.as_millis()).expect("a short lease")),
        ..spec
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_extension_survives_a_relay_restart_during_a_daemon_restart() {
    let mut fixture = PlannedRestartFixture::new().await;
    let mut daemon = fixture.start_daemon("upgraded", &HAND_OFF_FLAGS).await;
    let go_on = fixture.dir.path().join("go-on");
    let (task, attempt) = fixture
        .submit_until_running(with_short_lease(counting_task(&go_on, "handed-over")))
        .await;
    let processes = marked_processes("handed-over");
    assert_eq!(daemon.terminate().await.code(), Some(0));
    fixture.relay.kill().await;
    fixture.relay.start_again().await;

    fixture.wait_past_lease().await;
    assert_eq!(fixture.client.get(&task).await.state(), TaskState::Running);
    let running = marked_processes("handed-over");
    assert!(
        !running.is_empty() && processes.iter().any(|process| running.contains(process)),
        "the shim kept the child running"
    );

    let mut next = fixture.start_daemon("upgraded", &HAND_OFF_FLAGS).await;
    std::fs::write(&go_on, "").unwrap();
    fixture
        .client
        .wait_for_state(&task, TaskState::Completed)
        .await;
    assert_eq!(fixture.only_attempt(&task).await, attempt);
    assert_counted_lines(&fixture.client.read_output_to_end(&task).await);
    wait_until_marked_gone("handed-over").await;
    assert_eq!(next.terminate().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unused_lease_extension_ends_with_all_processes_dead() {
    let fixture = PlannedRestartFixture::new().await;
    // Longer than the lease, so the child survives only if its shim got the extension.
    let extension = LEASE + Duration::from_secs(3);
    let mut stopped = fixture
        .start_daemon("gone", &["--drain", "0s", "--hold", "8s"])
        .await;
    let runs = fixture.dir.path().join("runs");
    let runs_text = runs.display().to_string();
    // The child ignores TERM; its grandchild has its own process session.
    let arguments = [
        "count",
        &runs_text,
        "print",
        "1",
        "grandchild",
        "ignore-term",
        "pause",
    ];
    let spec = with_retry_on_loss(command_task(STANDIN, &arguments, "left-alone"), LEASE);
    let (task, first) = fixture.submit_until_running(spec).await;
    poll_until("the grandchild to run", || {
        (marked_processes("left-alone").len() == 2).then_some(())
    })
    .await;
    let clock = Clock::boot();
    let before = clock.now();
    assert_eq!(stopped.terminate().await.code(), Some(0));
    let after = clock.now();
    let _other = fixture.start_daemon("other", &[]).await;
    let dead = poll_until("all processes to be dead", || {
        attempt_processes(&first).is_empty().then(|| clock.now())
    });
    let succeeded = poll_until("the successor to run", || {
        let ran = std::fs::read_to_string(&runs).unwrap_or_default();
        (ran.lines().count() == 2).then(|| attempt_processes(&first))
    });
    let (dead, left) = tokio::join!(dead, succeeded);
    assert!(
        left.is_empty(),
        "still alive when the successor ran: {left:?}"
    );
    let lived = after.until(dead);
    assert!(
        lived > LEASE,
        "the extension was not used: dead after {lived:?}"
    );
    let took = before.until(dead);
    assert!(
        took < extension + DETECTION_DELAY,
        "processes lived {took:?} after the stop"
    );
    fixture.client.cancel(&task).await;
    wait_until_marked_gone("left-alone").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_continue_over_planned_relay_restarts() {
    let mut fixture = PlannedRestartFixture::new().await;
    let _daemon = fixture.start_daemon("loyal", &[]).await;
    let go_on = fixture.dir.path().join("go-on");
    let (task, attempt) = fixture
        .submit_until_running(with_short_lease(counting_task(&go_on, "loyal")))
        .await;
    for _ in 0..3 {
        assert_eq!(fixture.relay.terminate().await.code(), Some(0));
        fixture.relay.start_again().await;
        assert_eq!(fixture.client.get(&task).await.state(), TaskState::Running);
    }
    std::fs::write(&go_on, "").unwrap();
    fixture
        .client
        .wait_for_state(&task, TaskState::Completed)
        .await;
    assert_eq!(fixture.only_attempt(&task).await, attempt);
    assert_counted_lines(&fixture.client.read_output_to_end(&task).await);
}
