//! A relay that is stopped (SIGSTOP) while its daemons continue: for less than a lease, and for
//! two leases. `BATON_TTL=30` runs both with the default lease, in seconds.

use std::path::Path;
use std::time::Duration;

use baton_daemon::Clock;
use baton_proto::v1::{AttemptState, Role, TaskEvent, TaskSpec, TaskState, Termination};
use baton_tests::{
    DaemonProcess, RelayProcess, TestClient, WatchedProcesses, boottime, command_task,
    earliest_start_time, is_stopped, poll_until, processes_by_attempt, send_signal,
    with_retry_on_loss,
};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{BATON, allowance_ms};

/// The relay's default, and its share of a short lease.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Time that the relay adds to a lease.
const LEASE_GRACE: Duration = Duration::from_secs(5);

/// Long enough that a renewal that is late by a heartbeat is in time on a busy machine.
const LEASE_OUTLASTING_STOP: Duration = Duration::from_secs(12);
/// The shortest lease that the relay grants.
const SHORTEST_LEASE: Duration = Duration::from_secs(5);

fn configured_ttl(short: Duration) -> Duration {
    std::env::var("BATON_TTL").map_or(short, |seconds| {
        Duration::from_secs(seconds.parse().expect("BATON_TTL is a number"))
    })
}

/// A relay, a daemon, and the files that their children wait for.
struct StoppedRelayFixture {
    relay: RelayProcess,
    secret: String,
    _daemon: DaemonProcess,
    dir: TempDir,
}

impl StoppedRelayFixture {
    async fn start() -> Self {
        let relay = RelayProcess::start(BATON).await;
        let client = relay.admin();
        let (_, secret) = client.create_token("", Role::Daemon).await;
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = start_daemon(client, dir.path(), "worker", &secret).await;
        Self {
            relay,
            secret,
            _daemon: daemon,
            dir,
        }
    }

    /// A second daemon that takes any free task.
    async fn other_daemon(&self) -> DaemonProcess {
        start_daemon(self.client(), self.dir.path(), "other", &self.secret).await
    }

    fn client(&self) -> &TestClient {
        self.relay.admin()
    }

    /// A task whose child prints twice: at its start and when `file` exists.
    fn task_until_file(&self, file: &str, mark: &str) -> TaskSpec {
        let file = self.dir.path().join(file);
        let script = format!(
            "echo begun; until [ -e {} ]; do sleep 0.02; done; echo finished",
            file.display()
        );
        command_task("sh", &["-c", &script], mark)
    }

    fn create_file(&self, file: &str) {
        std::fs::write(self.dir.path().join(file), "").expect("a file can be written");
    }

    async fn start_watched_attempt(&self, spec: TaskSpec) -> WatchedProcesses {
        let task_id = self.client().submit(spec).await.task_id;
        let attempt_id = self.wait_for_output(&task_id, 1).await;
        let living = processes_by_attempt();
        WatchedProcesses::new(&task_id, &attempt_id, &living[&attempt_id])
    }

    /// Waits for output of this attempt's child and returns the attempt's id.
    async fn wait_for_output(&self, task_id: &str, number: u32) -> String {
        let streams = |event: &TaskEvent| {
            event.attempt_number == number && event.state() == AttemptState::Streaming
        };
        let mut watch = self.client().watch(task_id).await;
        watch
            .wait_for_event("output of the child", streams)
            .await
            .attempt_id
    }

    /// Stops the relay for this long and returns when that began.
    async fn stop_relay_for(&self, span: Duration, meanwhile: impl FnOnce()) -> Duration {
        let pid = self.relay.pid();
        send_signal(pid, Signal::STOP);
        poll_until("the relay to stop", || is_stopped(pid).then_some(())).await;
        let since = boottime();
        meanwhile();
        sleep_until_boottime(since + span).await;
        send_signal(pid, Signal::CONT);
        since
    }

    async fn assert_still_running(&self, running: &WatchedProcesses) {
        assert!(!running.has_ended(), "{} ended", running.attempt_id);
        let task = self.client().get(&running.task_id).await;
        let attempts: Vec<&str> = task.attempts.iter().map(|one| &*one.attempt_id).collect();
        assert_eq!(attempts, [running.attempt_id.as_str()]);
        assert_eq!(task.state(), TaskState::Running);
    }

    async fn assert_completes(&self, task_id: &str, attempts: usize) {
        let client = self.client();
        client.wait_for_state(task_id, TaskState::Completed).await;
        let task = client.get(task_id).await;
        assert_eq!(task.attempts.len(), attempts, "{task:#?}");
        let last = task.attempts.last().expect("the task has an attempt");
        assert_eq!(last.termination(), Termination::Confirmed);
        assert_eq!(
            client.read_output_to_end(task_id).await,
            b"begun\nfinished\n"
        );
    }
}

async fn start_daemon(client: &TestClient, dir: &Path, name: &str, secret: &str) -> DaemonProcess {
    let more = ["--slots", "8"];
    DaemonProcess::start_with(BATON, dir, name, (client.url(), secret), &more).await
}

/// The test measures durations, and no event marks the end of this one.
async fn sleep_until_boottime(until: Duration) {
    let clock = Clock::boot();
    let left = until.saturating_sub(boottime());
    clock.sleep_until(clock.now().after(left)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_stopped_for_less_than_a_lease_ends_no_attempt() {
    let fixture = StoppedRelayFixture::start().await;
    let ttl = configured_ttl(LEASE_OUTLASTING_STOP);
    let span = ttl - 2 * HEARTBEAT.min(ttl / 3);
    let mut running = Vec::new();
    for number in 0..4 {
        let spec = fixture.task_until_file("end", &format!("ridden-out-{number}"));
        running.push(
            fixture
                .start_watched_attempt(with_retry_on_loss(spec, ttl))
                .await,
        );
    }
    let since = fixture.stop_relay_for(span, || {}).await;
    // Any lease that was not renewed since then has expired by then, for the worker and for the
    // relay.
    sleep_until_boottime(since + ttl + LEASE_GRACE + Duration::from_millis(allowance_ms())).await;
    for one in &running {
        fixture.assert_still_running(one).await;
    }
    fixture.create_file("end");
    for one in &running {
        fixture.assert_completes(&one.task_id, 1).await;
    }
    println!(
        "a relay was stopped for {span:?}, under leases of {ttl:?}: all {} attempts continued",
        running.len()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_end_in_time_while_a_relay_is_stopped_for_two_leases() {
    let fixture = StoppedRelayFixture::start().await;
    let ttl = configured_ttl(SHORTEST_LEASE);
    let (mut expiring, mut results, mut longer) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..3 {
        let spec = fixture.task_until_file("end", &format!("expiring-{number}"));
        expiring.push(
            fixture
                .start_watched_attempt(with_retry_on_loss(spec, ttl))
                .await,
        );
    }
    for number in 0..2 {
        let spec = fixture.task_until_file("in-time", &format!("result-{number}"));
        results.push(
            fixture
                .start_watched_attempt(with_retry_on_loss(spec, ttl))
                .await,
        );
        // Renewed in time: their lease is twice as long as the stop.
        let spec = fixture.task_until_file("end", &format!("longer-{number}"));
        longer.push(
            fixture
                .start_watched_attempt(with_retry_on_loss(spec, 4 * ttl))
                .await,
        );
    }
    let _other = fixture.other_daemon().await;
    let since = fixture
        .stop_relay_for(2 * ttl, || fixture.create_file("in-time"))
        .await;
    for one in &results {
        fixture.assert_completes(&one.task_id, 1).await;
    }
    let (mut least, mut longest) = (Duration::MAX, Duration::ZERO);
    let tasks: Vec<String> = expiring.iter().map(|one| one.task_id.clone()).collect();
    for one in expiring {
        let second = fixture.wait_for_output(&one.task_id, 2).await;
        let began = earliest_start_time(&processes_by_attempt()[&second]);
        let end = one.wait_for_end().await;
        assert!(
            end < began,
            "ended at {end:?}, but the next began at {began:?}"
        );
        (least, longest) = (least.min(began - end), longest.max(end - since));
    }
    let limit = ttl + Duration::from_millis(allowance_ms());
    assert!(
        longest < limit,
        "the last process ended {longest:?} after the relay stopped"
    );
    for one in &longer {
        fixture.assert_still_running(one).await;
    }
    println!(
        "a relay was stopped for {:?}: {} attempts had ended at most {longest:?} after the stop, under leases of \
         {ttl:?}, and their successors began at least {least:?} later; {} results of that time were taken; {} attempts \
         with longer leases went on",
        2 * ttl,
        tasks.len(),
        results.len(),
        longer.len()
    );
    fixture.create_file("end");
    for task in &tasks {
        fixture.assert_completes(task, 2).await;
    }
    for one in &longer {
        fixture.assert_completes(&one.task_id, 1).await;
    }
}
