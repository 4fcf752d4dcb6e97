//! Machines that are suspended for an hour, with real processes. Suspended time counts against a
//! lease, and a relay that was suspended expires no lease that is renewed in time. The tests
//! imitate the kernel: all processes stop at once, and afterwards the clocks have advanced while
//! the timers of the async runtime have not.

use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    AttemptState, DeadlineProfile, Role, TaskEventKind, TaskSpec, TaskState, Termination,
    daemon_frame,
};
use baton_tests::{
    DaemonProcess, FrameTap, RelayProcess, TappedFrame, TestClient, TestClock, attempt_processes,
    command_task, is_stopped, marked_processes, poll_until, task_until_file,
    wait_until_marked_gone, with_retry_on_loss,
};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{BATON, STANDIN};

const AN_HOUR: Duration = Duration::from_secs(60 * 60);
/// Longer than any test: the relay, which is not suspended, never sees this lease expire.
const LONG_LEASE: Duration = Duration::from_secs(10 * 60);
const SHORT_LEASE: Duration = Duration::from_secs(5);

fn with_lease(spec: TaskSpec, lease: Duration) -> TaskSpec {
    TaskSpec {
        // Deadlines use the same clocks. Without them only the lease can end the attempt.
        profile: Some(DeadlineProfile::default()),
        ..with_retry_on_loss(spec, lease)
    }
}

/// Stops or continues all processes of a machine. A process that has already ended is skipped.
fn signal_all(pids: &[u32], signal: Signal) {
    for pid in pids {
        let pid = Pid::from_raw(pid.cast_signed()).expect("a valid process id");
        match kill_process(pid, signal) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// A daemon with its own clock behind a frame tap, and a relay with the real clock.
struct SuspendFixture {
    _relay: RelayProcess,
    client: TestClient,
    clock: TestClock,
    tap: FrameTap,
    dir: TempDir,
    secret: String,
    daemon: DaemonProcess,
}

impl SuspendFixture {
    async fn start(name: &str) -> Self {
        let relay = RelayProcess::start(BATON).await;
        let client = relay.admin().clone();
        let (_, secret) = client.create_token("", Role::Daemon).await;
        let (clock, tap) = (TestClock::new(), FrameTap::start(client.url()).await);
        let dir = tempfile::tempdir().expect("a directory");
        let baton = clock.apply_to(BATON);
        let daemon = DaemonProcess::start(baton, dir.path(), name, &tap.url(), &secret).await;
        Self {
            _relay: relay,
            client,
            clock,
            tap,
            dir,
            secret,
            daemon,
        }
    }

    async fn restart_daemon(&mut self, name: &str) {
        let (baton, dir) = (self.clock.apply_to(BATON), self.dir.path());
        let url = self.tap.url();
        self.daemon = DaemonProcess::start(baton, dir, name, &url, &self.secret).await;
    }

    /// Starts a child that prints lines and has a grandchild in its own process session. The
    /// `runs` file lists the attempts that were started.
    async fn start_printing_attempt(&self, mark: &str) -> PrintingAttempt {
        let runs = self.dir.path().join("runs");
        let runs_text = runs.display().to_string();
        let arguments = ["count", &runs_text, "grandchild", "tick", "100000", "10"];
        let spec = with_lease(command_task(STANDIN, &arguments, mark), LONG_LEASE);
        let task_id = self.client.submit(spec).await.task_id;
        let mut watch = self.client.watch(&task_id).await;
        watch.wait_for_output().await;
        poll_until("the grandchild to run", || {
            (marked_processes(mark).len() == 2).then_some(())
        })
        .await;
        let attempt_id = self.client.get(&task_id).await.attempts[0]
            .attempt_id
            .clone();
        PrintingAttempt {
            task_id,
            attempt_id,
            runs,
        }
    }

    /// Suspends the machine for an hour and wakes the given processes. Returns the number of
    /// frames sent before the suspend.
    async fn sleep_for_an_hour(&self, attempt_id: &str, woken: WokenProcesses) -> usize {
        let daemon = [self.daemon.pid()];
        let others: Vec<u32> = attempt_processes(attempt_id)
            .iter()
            .map(|one| one.pid)
            .collect();
        let all = [&daemon, &others[..]].concat();
        signal_all(&all, Signal::STOP);
        poll_until("all processes to stop", || {
            all.iter().all(|pid| is_stopped(*pid)).then_some(())
        })
        .await;
        let sent = self.wait_until_quiet().await;
        self.clock.advance_suspended(AN_HOUR);
        signal_all(&daemon, Signal::CONT);
        match woken {
            WokenProcesses::Everything => signal_all(&others, Signal::CONT),
            WokenProcesses::DaemonAlone => {}
        }
        sent
    }

    /// Waits until frames that were in flight when the sender stopped have arrived: the count
    /// must not change over many polls.
    async fn wait_until_quiet(&self) -> usize {
        let (mut sent, mut looks) = (0, 0);
        poll_until("the connection to be quiet", || {
            let now = self.tap.frames().len();
            looks = if now == sent { looks + 1 } else { 0 };
            sent = now;
            (looks > 25).then_some(now)
        })
        .await
    }
}

struct PrintingAttempt {
    task_id: String,
    attempt_id: String,
    runs: PathBuf,
}

impl PrintingAttempt {
    /// Waits for the next attempt and returns its id.
    async fn successor(&self) -> String {
        poll_until("a successor to run", || {
            let started = started_attempts(&self.runs);
            (started.len() == 2).then(|| started[1].clone())
        })
        .await
    }
}

fn started_attempts(runs: &Path) -> Vec<String> {
    let lines = std::fs::read_to_string(runs).unwrap_or_default();
    lines.lines().map(str::to_owned).collect()
}

/// A frame of the daemon about an attempt.
#[derive(Debug, PartialEq, Eq)]
enum AttemptReport {
    Renewal,
    /// A receipt that no process of the attempt is left.
    TerminationReceipt,
    Other,
}

fn reports_on_attempt(attempt_id: &str, frames: &[TappedFrame]) -> Vec<AttemptReport> {
    let daemon_frames = frames.iter().filter_map(|frame| match frame {
        TappedFrame::FromDaemon(up) => up.frame.as_ref(),
        TappedFrame::FromRelay(_) => None,
    });
    let reports = daemon_frames.filter_map(|frame| match frame {
        daemon_frame::Frame::Heartbeat(beat) => {
            let renewed = beat.renew.iter().any(|one| one.attempt_id == attempt_id);
            renewed.then_some(AttemptReport::Renewal)
        }
        daemon_frame::Frame::Attempt(frame) => {
            let attempt_ref = frame.r#ref.as_ref();
            let is_own = attempt_ref.is_some_and(|one| one.attempt_id == attempt_id);
            let report = match &frame.body {
                Some(Body::Receipt(receipt)) if receipt.group_empty => {
                    AttemptReport::TerminationReceipt
                }
                _ => AttemptReport::Other,
            };
            is_own.then_some(report)
        }
        daemon_frame::Frame::Hello(_)
        | daemon_frame::Frame::Hold(_)
        | daemon_frame::Frame::Goodbye(_) => None,
    });
    reports.collect()
}

/// The processes that continue when the machine wakes.
#[derive(Clone, Copy, Debug)]
enum WokenProcesses {
    Everything,
    /// The shim stays stopped, so the daemon itself must kill the child.
    DaemonAlone,
}

async fn assert_dead_before_report(name: &str, woken: WokenProcesses) {
    let worker = SuspendFixture::start(name).await;
    let attempt = worker.start_printing_attempt(name).await;
    let first = attempt.attempt_id.as_str();
    let before = worker.sleep_for_an_hour(first, woken).await;
    poll_until("a frame about the attempt", || {
        let frames = worker.tap.frames();
        (!reports_on_attempt(first, &frames[before..]).is_empty()).then_some(())
    })
    .await;
    assert_eq!(
        attempt_processes(first),
        [],
        "the daemon reported while processes were alive"
    );

    let successor = attempt.successor().await;
    let attempts = worker.client.get(&attempt.task_id).await.attempts;
    assert_eq!(attempts[0].state(), AttemptState::Lost);
    assert_eq!(attempts[0].termination(), Termination::Confirmed);
    assert_eq!(attempts[1].attempt_id, successor);
    worker.client.cancel(&attempt.task_id).await;
    wait_until_marked_gone(name).await;
    let reports = reports_on_attempt(first, &worker.tap.frames()[before..]);
    assert!(!reports.contains(&AttemptReport::Renewal), "{reports:?}");
    assert_eq!(
        reports.last(),
        Some(&AttemptReport::TerminationReceipt),
        "{reports:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_hour_of_suspend_a_daemon_kills_before_it_reports() {
    assert_dead_before_report("slept", WokenProcesses::Everything).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_suspend_with_a_stuck_shim_a_daemon_kills_before_it_reports() {
    assert_dead_before_report("slept-on", WokenProcesses::DaemonAlone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_shim_without_a_daemon_ends_its_child_on_wake() {
    let mut worker = SuspendFixture::start("orphan").await;
    let attempt = worker.start_printing_attempt("slept-alone").await;
    worker.daemon.kill().await;
    assert_eq!(
        marked_processes("slept-alone").len(),
        2,
        "they keep running without the daemon"
    );
    worker.clock.advance_suspended(AN_HOUR);
    wait_until_marked_gone("slept-alone").await;
    poll_until("the shim to be gone", || {
        attempt_processes(&attempt.attempt_id)
            .is_empty()
            .then_some(())
    })
    .await;
    let before = worker.tap.frames().len();
    worker.restart_daemon("orphan").await;
    attempt.successor().await;
    let attempts = worker.client.get(&attempt.task_id).await.attempts;
    assert_eq!(attempts[0].state(), AttemptState::Lost);
    assert_eq!(attempts[0].termination(), Termination::Confirmed);
    let reports = reports_on_attempt(&attempt.attempt_id, &worker.tap.frames()[before..]);
    assert!(!reports.contains(&AttemptReport::Renewal), "{reports:?}");
    worker.client.cancel(&attempt.task_id).await;
    wait_until_marked_gone("slept-alone").await;
}

/// The number of renewals that the daemon has sent for this attempt.
fn renewal_count(tap: &FrameTap, attempt_id: &str) -> usize {
    let reports = reports_on_attempt(attempt_id, &tap.frames());
    reports
        .iter()
        .filter(|report| **report == AttemptReport::Renewal)
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_suspended_for_an_hour_expires_no_lease_renewed_in_time() {
    let clock = TestClock::new();
    let relay = RelayProcess::start(clock.apply_to(BATON)).await;
    let client = relay.admin().clone();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let tap = FrameTap::start(client.url()).await;
    let dir = tempfile::tempdir().unwrap();
    let _daemon = DaemonProcess::start(BATON, dir.path(), "awake", &tap.url(), &secret).await;
    let go_on = dir.path().join("go-on");
    let mut attempts = Vec::new();
    for number in 0..3 {
        let spec = task_until_file(&go_on, &format!("awake-{number}"));
        let spec = TaskSpec {
            total_ms: Some(24 * 60 * 60 * 1_000),
            ..with_lease(spec, SHORT_LEASE)
        };
        let task = client.submit(spec).await.task_id;
        let mut watch = client.watch(&task).await;
        watch.wait_for_output().await;
        let attempt = client.get(&task).await.attempts[0].attempt_id.clone();
        attempts.push((task, attempt));
    }
    for _ in 0..3 {
        clock.advance_suspended(AN_HOUR);
        let counts: Vec<usize> = attempts
            .iter()
            .map(|(_, attempt)| renewal_count(&tap, attempt))
            .collect();
        // By then the relay has checked its timers with the new time and received several
        // renewals of each attempt.
        poll_until("three renewals of each attempt", || {
            let mut both = attempts.iter().zip(&counts);
            both.all(|((_, attempt), count)| renewal_count(&tap, attempt) >= count + 3)
                .then_some(())
        })
        .await;
        for (task, _) in &attempts {
            assert_eq!(client.get(task).await.state(), TaskState::Running);
        }
    }
    std::fs::write(&go_on, "").unwrap();
    for (task, attempt) in &attempts {
        client.wait_for_state(task, TaskState::Completed).await;
        let record = client.get(task).await;
        assert_eq!(record.attempts.len(), 1);
        assert_eq!(record.attempts[0].attempt_id, *attempt);
        assert_eq!(client.read_output_to_end(task).await, b"begun\nfinished\n");
        let events = client.watch(task).await.collect_to_end().await;
        let ends = events
            .iter()
            .filter(|event| event.kind() == TaskEventKind::Ended);
        assert_eq!(ends.count(), 1, "{events:#?}");
    }
}
