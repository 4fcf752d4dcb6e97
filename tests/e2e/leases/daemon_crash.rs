//! A daemon is killed while its attempts run. A restarted daemon takes the attempts over;
//! without a daemon the shims kill them when their leases end. `BATON_ROUNDS=50` makes the full
//! run of the first two tests.

use std::path::Path;
use std::time::Duration;

use baton_proto::v1::read_output_response::Item;
use baton_proto::v1::{
    AttemptState, ReadOutputRequest, Role, TaskEventKind, TaskSpec, TaskState, Termination,
};
use baton_tests::{
    DaemonProcess, RelayProcess, TestBootId, TestClient, attempt_processes, boottime, command_task,
    join_all, marked_processes, poll_until, test_rounds, wait_until_marked_gone, wait_within,
    with_retry_on_loss,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{BATON, STANDIN};

const SHORT_RUN: usize = 3;
/// The shortest lease that the relay grants.
pub(super) const SHORT_LEASE: Duration = Duration::from_secs(5);
/// Time from a process's death until a poll notices it on a busy machine.
pub(super) const DETECTION_DELAY: Duration = Duration::from_secs(1);
/// Machines that lose their daemon at the same time. With more of them the test would measure
/// the load of this machine instead of the leases.
const MACHINES_AT_ONCE: usize = 5;
const LINE_COUNT: usize = 80;
const TICK_MS: &str = "15";

/// A relay and a daemon on one machine, both as processes.
pub(super) struct DaemonCrashFixture {
    _relay: RelayProcess,
    pub(super) client: TestClient,
    pub(super) dir: TempDir,
    secret: String,
    boot: TestBootId,
    pub(super) daemon: DaemonProcess,
}

impl DaemonCrashFixture {
    pub(super) async fn start() -> Self {
        let relay = RelayProcess::start(BATON).await;
        let client = relay.admin().clone();
        let (_, secret) = client.create_token("", Role::Daemon).await;
        let dir = tempfile::tempdir().expect("a directory");
        let boot = TestBootId::new();
        let daemon = start_daemon(&boot, dir.path(), &client, &secret).await;
        Self {
            _relay: relay,
            client,
            dir,
            secret,
            boot,
            daemon,
        }
    }

    /// Starts a daemon on the data directory of the killed one.
    pub(super) async fn restart_daemon(&mut self) {
        self.daemon = start_daemon(&self.boot, self.dir.path(), &self.client, &self.secret).await;
    }

    /// Submits a task, waits until its child runs, and returns the ids of task and attempt.
    pub(super) async fn submit_until_running(
        &self,
        spec: TaskSpec,
        mark: &str,
    ) -> (String, String) {
        let task = self.client.submit(spec).await;
        poll_until(&format!("{mark} to run"), || {
            (!marked_processes(mark).is_empty()).then_some(())
        })
        .await;
        let attempt = self.client.get(&task.task_id).await.attempts[0].clone();
        (task.task_id, attempt.attempt_id)
    }
}

async fn start_daemon(
    boot: &TestBootId,
    dir: &Path,
    client: &TestClient,
    secret: &str,
) -> DaemonProcess {
    DaemonProcess::start(boot.apply_to(BATON), dir, "holder", client.url(), secret).await
}

fn expected_lines(count: usize) -> Vec<u8> {
    let lines: String = (1..=count).map(|line| format!("line {line}\n")).collect();
    lines.into_bytes()
}

/// Waits until the relay has this many lines of the newest attempt, or the end of its output.
pub(super) async fn wait_for_lines(client: &TestClient, task_id: &str, wanted: usize) {
    let request = ReadOutputRequest {
        task_id: task_id.to_owned(),
        follow: true,
        ..ReadOutputRequest::default()
    };
    let opened = client.tasks().read_output(request).await;
    let mut pieces = opened.expect("output can be read").into_inner();
    let mut seen = 0;
    while seen < wanted {
        let piece = wait_within("the next piece of output", pieces.message()).await;
        match piece
            .expect("the output stream continues")
            .and_then(|piece| piece.item)
        {
            Some(Item::Chunk(chunk)) => {
                seen += chunk.data.iter().filter(|byte| **byte == b'\n').count();
            }
            _ => return,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_survives_a_killed_daemon_without_output_gap_or_duplicate() {
    let mut machine = DaemonCrashFixture::start().await;
    let runs = machine.dir.path().join("runs");
    let runs_text = runs.display().to_string();
    let rounds = test_rounds(SHORT_RUN);
    let mut alive_at_kills = 0;
    for round in 0..rounds {
        let mark = format!("adopted-{round}");
        let arguments = [
            "count",
            &runs_text,
            "tick",
            &LINE_COUNT.to_string(),
            TICK_MS,
        ];
        let spec = command_task(STANDIN, &arguments, &mark);
        let (task, attempt) = machine.submit_until_running(spec, &mark).await;
        let child = marked_processes(&mark);
        let mut moments = [0; 2].map(|_| rand::random_range(0..LINE_COUNT));
        moments.sort_unstable();
        for moment in moments {
            wait_for_lines(&machine.client, &task, moment).await;
            machine.daemon.kill().await;
            let still = marked_processes(&mark);
            assert!(still.iter().all(|process| child.contains(process)));
            alive_at_kills += still.len();
            machine.restart_daemon().await;
        }
        machine
            .client
            .wait_for_state(&task, TaskState::Completed)
            .await;
        let done = machine.client.get(&task).await;
        let ids: Vec<&str> = done
            .attempts
            .iter()
            .map(|one| one.attempt_id.as_str())
            .collect();
        assert_eq!(ids, [attempt.as_str()], "another attempt ran: {done:#?}");
        let output = machine.client.read_output_to_end(&task).await;
        let text = String::from_utf8_lossy(&output);
        assert!(
            output == expected_lines(LINE_COUNT),
            "round {round}, killed at {moments:?}: {text}"
        );
        let ran = std::fs::read_to_string(&runs).unwrap();
        assert_eq!(ran.lines().count(), round + 1, "each child ran once");
        assert_eq!(ran.lines().last(), Some(attempt.as_str()));
        wait_until_marked_gone(&mark).await;
    }
    println!(
        "{rounds} rounds, {} kills of the daemon ({alive_at_kills} with the child alive): every attempt continued, \
         its output complete and without duplicates",
        rounds * 2
    );
    assert!(
        alive_at_kills >= rounds,
        "too few children were alive at a kill"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_daemon_every_process_is_dead_when_its_lease_ends() {
    let rounds: Vec<usize> = (0..test_rounds(SHORT_RUN)).collect();
    let mut longest = Duration::ZERO;
    for batch in rounds.chunks(MACHINES_AT_ONCE) {
        let took = join_all(batch.iter().map(|round| measure_orphan_lifetime(*round))).await;
        longest = took.into_iter().fold(longest, Duration::max);
    }
    println!(
        "{} rounds: all processes dead at most {longest:?} after the daemon, with leases of 5 s",
        rounds.len()
    );
}

/// How long processes that ignore TERM live without their daemon.
async fn measure_orphan_lifetime(round: usize) -> Duration {
    let mut machine = DaemonCrashFixture::start().await;
    let mark = format!("orphaned-{round}");
    // The child ignores TERM; its grandchild has its own process session.
    let arguments = ["print", "1", "grandchild", "ignore-term", "pause"];
    let spec = TaskSpec {
        lease_ttl_ms: Some(5_000),
        ..command_task(STANDIN, &arguments, &mark)
    };
    let (task, attempt) = machine.submit_until_running(spec, &mark).await;
    poll_until("the grandchild to run", || {
        (marked_processes(&mark).len() == 2).then_some(())
    })
    .await;
    let mut watch = machine.client.watch(&task).await;
    // Until the relay has the PromptWritten phase, the prompt deadline would expire before the
    // lease.
    watch
        .wait_for_event("its first line to reach the relay", |event| {
            event.state() == AttemptState::Streaming
        })
        .await;
    machine.daemon.kill().await;
    let killed = boottime();
    assert_eq!(
        marked_processes(&mark).len(),
        2,
        "they keep running without their daemon"
    );
    let dead = poll_until("all processes to be dead", || {
        attempt_processes(&attempt).is_empty().then(boottime)
    });
    let lost = watch.wait_for_kind(TaskEventKind::Ended);
    let (dead, left) = tokio::join!(dead, async {
        let lost = lost.await;
        assert_eq!(lost.failure_code, "lease_expired");
        attempt_processes(&attempt)
    });
    assert!(
        left.is_empty(),
        "still alive when the relay declared the attempt lost: {left:?}"
    );
    // The last renewal was sent before the daemon died, so the lease ends within its length from
    // then.
    let took = dead - killed;
    assert!(
        took < SHORT_LEASE + DETECTION_DELAY,
        "processes lived {took:?} after the daemon"
    );
    machine.restart_daemon().await;
    machine
        .client
        .wait_for_state(&task, TaskState::NeedsAttention)
        .await;
    let termination = wait_for_termination(&machine.client, &task).await;
    assert_eq!(
        termination,
        Termination::Confirmed,
        "the next daemon delivers the receipt"
    );
    took
}

/// The termination state of the first attempt, once its receipt has arrived.
async fn wait_for_termination(client: &TestClient, task_id: &str) -> Termination {
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    wait_within("a receipt", async {
        loop {
            ticks.tick().await;
            let termination = client.get(task_id).await.attempts[0].termination();
            if termination == Termination::Confirmed {
                return termination;
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_boot_id_frees_the_machines_tasks_at_once() {
    let mut machine = DaemonCrashFixture::start().await;
    let dir = machine.dir.path().display().to_string();
    let (mut tasks, mut firsts) = (Vec::new(), Vec::new());
    for number in 0..3 {
        let mark = format!("booted-{number}");
        let script =
            format!("echo x >> {dir}/runs; mkdir {dir}/{mark} 2>/dev/null || exit 0; sleep 600");
        // Much longer than the test runs.
        let lease = Duration::from_secs(3_600);
        let spec = with_retry_on_loss(command_task("sh", &["-c", &script], &mark), lease);
        let (task, attempt) = machine.submit_until_running(spec, &mark).await;
        let at_work = machine.dir.path().join(&mark);
        poll_until("the child to start its work", || {
            at_work.exists().then_some(())
        })
        .await;
        tasks.push(task);
        firsts.push(attempt);
    }
    // The machine goes down: daemon, shims and children die together.
    machine.daemon.kill().await;
    for process in firsts.iter().flat_map(|first| attempt_processes(first)) {
        let pid = Pid::from_raw(process.pid.cast_signed()).expect("a valid process id");
        // The child dies with its shim, so this process may already be gone.
        let _ = kill_process(pid, Signal::KILL);
    }
    poll_until("all processes to be gone", || {
        let left = firsts.iter().map(|first| attempt_processes(first).len());
        (left.sum::<usize>() == 0).then_some(())
    })
    .await;
    machine.boot.change_boot_id();
    let booted = boottime();
    machine.restart_daemon().await;
    for task in &tasks {
        machine
            .client
            .wait_for_state(task, TaskState::Completed)
            .await;
        let done = machine.client.get(task).await;
        assert_eq!(done.attempts.len(), 2, "{done:#?}");
        assert_eq!(done.attempts[0].state(), AttemptState::Lost);
    }
    let took = boottime() - booted;
    println!(
        "{} tasks ran again within {took:?} of the boot, with leases of an hour",
        tasks.len()
    );
    let runs = std::fs::read_to_string(machine.dir.path().join("runs")).unwrap();
    assert_eq!(runs.lines().count(), 2 * tasks.len());
}
