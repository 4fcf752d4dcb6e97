//! Restarts on purpose. A daemon hands what it runs over to the next one under a hold, which the relay keeps over a
//! restart of its own; without a next one the shims end it before anybody else may run it.

use std::path::Path;
use std::time::Duration;

use baton_daemon::Clock;
use baton_proto::v1::{
    AttemptState, RetryPolicy, Role, TaskEventKind, TaskSpec, TaskState, WhenUnsafe,
};
use baton_tests::{
    DaemonProcess, RelayProcess, TestClient, attempt_processes, command_task, marked_processes,
    poll_until, wait_until_marked_gone,
};
use tempfile::TempDir;

use crate::{BATON, STANDIN};

/// The shortest that the relay grants.
const LEASE: Duration = Duration::from_secs(5);
const HAND_OFF_FLAGS: [&str; 4] = ["--drain", "1s", "--hold", "2m"];
/// From a death to the look that sees it, on a machine that is busy.
const DETECTION_DELAY: Duration = Duration::from_secs(1);

/// A relay as a process, and where its daemons live.
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

    /// The task and its attempt, once the attempt has said something.
    async fn submit_until_running(&self, spec: TaskSpec) -> (String, String) {
        let task = self.client.submit(spec).await.task_id;
        let mut watch = self.client.watch(&task).await;
        watch
            .wait_for_event("output", |event| event.state() == AttemptState::Streaming)
            .await;
        let attempt = self.client.get(&task).await.attempts.remove(0);
        (task, attempt.attempt_id)
    }

    /// Returns when a lease that began only now is over, with all that the relay adds to it.
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

/// Counts lines until the file is there.
fn counting_task(file: &Path, mark: &str) -> TaskSpec {
    let script = format!(
        "i=0; until [ -e {} ]; do i=$((i+1)); echo line $i; sleep 0.05; done; echo last $i",
        file.display()
    );
    with_short_lease(command_task("sh", &["-c", &script], mark))
}

fn assert_counted_lines(output: &[u8]) {
    let text = String::from_utf8_lossy(output);
    let lines = text.lines().count() - 1;
    let wanted: String = (1..=lines).map(|line| format!("line {line}\n")).collect();
    assert_eq!(text, format!("{wanted}last {lines}\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_restarted_on_purpose_hands_over_and_a_relay_restarted_meanwhile_keeps_the_hold() {
    let mut site = PlannedRestartFixture::new().await;
    let mut daemon = site.start_daemon("upgraded", &HAND_OFF_FLAGS).await;
    let go_on = site.dir.path().join("go-on");
    let (task, attempt) = site
        .submit_until_running(counting_task(&go_on, "handed-over"))
        .await;
    let processes = marked_processes("handed-over");
    assert_eq!(daemon.terminate().await.code(), Some(0));
    site.relay.kill().await;
    site.relay.start_again().await;

    site.wait_past_lease().await;
    assert_eq!(site.client.get(&task).await.state(), TaskState::Running);
    let still = marked_processes("handed-over");
    assert!(
        !still.is_empty() && processes.iter().any(|process| still.contains(process)),
        "its shim kept it"
    );

    let mut next = site.start_daemon("upgraded", &HAND_OFF_FLAGS).await;
    std::fs::write(&go_on, "").unwrap();
    site.client
        .wait_for_state(&task, TaskState::Completed)
        .await;
    assert_eq!(site.only_attempt(&task).await, attempt);
    assert_counted_lines(&site.client.read_output_to_end(&task).await);
    wait_until_marked_gone("handed-over").await;
    assert_eq!(next.terminate().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn when_nobody_comes_back_the_hold_ends_and_all_are_dead_before_a_successor_runs() {
    let site = PlannedRestartFixture::new().await;
    // Longer than the lease, so that the shim must know of it.
    let hold = LEASE + Duration::from_secs(3);
    let mut gone = site
        .start_daemon("gone", &["--drain", "0s", "--hold", "8s"])
        .await;
    let runs = site.dir.path().join("runs");
    let runs_text = runs.display().to_string();
    // The child ignores TERM; its grandchild has a session of its own.
    let arguments = [
        "count",
        &runs_text,
        "print",
        "1",
        "grandchild",
        "ignore-term",
        "pause",
    ];
    let spec = TaskSpec {
        retry: Some(RetryPolicy {
            when_unsafe: WhenUnsafe::Retry.into(),
            backoff_initial_ms: Some(10),
            ..RetryPolicy::default()
        }),
        ..with_short_lease(command_task(STANDIN, &arguments, "left-alone"))
    };
    let (task, first) = site.submit_until_running(spec).await;
    poll_until("the grandchild to run", || {
        (marked_processes("left-alone").len() == 2).then_some(())
    })
    .await;
    let clock = Clock::boot();
    let before = clock.now();
    assert_eq!(gone.terminate().await.code(), Some(0));
    let after = clock.now();
    let _other = site.start_daemon("other", &[]).await;
    let dead = poll_until("all to be dead", || {
        attempt_processes(&first).is_empty().then(|| clock.now())
    });
    let succeeded = poll_until("the successor to run", || {
        let ran = std::fs::read_to_string(&runs).unwrap_or_default();
        (ran.lines().count() == 2).then(|| attempt_processes(&first))
    });
    let (dead, left) = tokio::join!(dead, succeeded);
    assert!(left.is_empty(), "alive when a successor ran: {left:?}");
    let lived = after.until(dead);
    assert!(lived > LEASE, "ended with the lease: {lived:?}");
    let took = before.until(dead);
    assert!(
        took < hold + DETECTION_DELAY,
        "dead only {took:?} after the stop"
    );
    site.client.cancel(&task).await;
    wait_until_marked_gone("left-alone").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_restarted_on_purpose_costs_running_attempts_nothing() {
    let mut site = PlannedRestartFixture::new().await;
    let _daemon = site.start_daemon("loyal", &[]).await;
    let go_on = site.dir.path().join("go-on");
    let (task, attempt) = site
        .submit_until_running(counting_task(&go_on, "loyal"))
        .await;
    for _ in 0..3 {
        assert_eq!(site.relay.terminate().await.code(), Some(0));
        site.relay.start_again().await;
        assert_eq!(site.client.get(&task).await.state(), TaskState::Running);
    }
    std::fs::write(&go_on, "").unwrap();
    site.client
        .wait_for_state(&task, TaskState::Completed)
        .await;
    assert_eq!(site.only_attempt(&task).await, attempt);
    assert_counted_lines(&site.client.read_output_to_end(&task).await);
}
